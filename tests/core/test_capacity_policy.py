"""The two capacity policies: preempt when blocks run out, or reserve all that a request may generate."""

from __future__ import annotations

from typing import Any

import pytest

from core.worlds import World
from hotseat.errors import ConfigError

OPTIONS: dict[str, Any] = {"num_kv_blocks": 12, "block_size": 4, "max_num_seqs": 6, "max_num_batched_tokens": 64}


def crowd(**options: Any) -> World:
    world = World(**OPTIONS, watermark=0.0, **options)
    for index in range(6):
        world.add(9, f"r{index}", max_tokens=14)
    world.run()
    world.assert_answers_are_right()
    return world


def test_no_evict_preempts_nothing_where_max_utilization_does() -> None:
    assert crowd().scheduler.stats().num_preemptions > 0
    assert crowd(capacity_policy="no-evict").scheduler.stats().num_preemptions == 0


def test_no_evict_gives_the_blocks_of_prompt_and_answer_at_admission() -> None:
    world = World(**OPTIONS, capacity_policy="no-evict")
    world.add(9, "first", max_tokens=14)  # 9 + 14 tokens, the newest without a slot: 22 slots, 6 blocks
    world.add(9, "second", max_tokens=15)  # 23 slots, 6 blocks
    world.add(9, "third", max_tokens=14)
    batch = world.step()
    assert batch.admitted_ids == ["first", "second"]
    assert [len(one.block_ids) for one in batch.new_requests] == [6, 6]
    assert world.scheduler.stats().blocks_free == 0
    world.run()
    assert all(not one.block_appends for one in world.batches)
    world.assert_answers_are_right()


def test_no_evict_reserves_the_rest_of_the_cache_for_a_request_without_max_tokens() -> None:
    world = World(**OPTIONS, capacity_policy="no-evict")
    world.add(5, "endless", max_tokens=None)
    world.add(5, "next", max_tokens=1)
    assert world.step().admitted_ids == ["endless"]
    world.run()
    world.assert_answers_are_right()


def test_a_more_urgent_request_may_still_take_a_seat_under_no_evict() -> None:
    world = World(**OPTIONS, capacity_policy="no-evict", scheduling_policy="priority")
    world.add(5, "late", max_tokens=None, priority=5)
    world.step()
    world.add(5, "urgent", max_tokens=2, priority=0)
    batch = world.step()
    assert [one.request_id for one in batch.preempted] == ["late"]
    world.run()
    world.assert_answers_are_right()


def test_another_capacity_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="capacity_policy must be max-utilization or no-evict, not 'static'"):
        World(capacity_policy="static")
