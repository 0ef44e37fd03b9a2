"""Preemption: victims when blocks run out or a more urgent request comes, and how they resume."""

from __future__ import annotations

from typing import Any

from core.worlds import World
from hotseat.core.request import FinishReason, RequestStatus


def crowded(**options: Any) -> World:
    """Return a world in which three requests of 13 tokens cannot all grow to 31."""
    defaults: dict[str, Any] = {
        "num_kv_blocks": 12,
        "block_size": 4,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "watermark": 0.0,
    }
    return World(**(defaults | options))


def step_until_preemption(world: World) -> list[str]:
    """Run until somebody got up and return who."""
    for _ in range(100):
        batch = world.step()
        if batch.preempted:
            return [request_id for request_id, _ in batch.preempted]
    raise AssertionError("nobody got up")


def test_no_preemption_while_space_is_available() -> None:
    world = crowded(num_kv_blocks=24)
    for _ in range(3):
        world.add(13, max_tokens=18)
    world.run()
    assert world.scheduler.stats().num_preemptions == 0


def test_fcfs_preempts_the_last_to_arrive() -> None:
    world = crowded()
    for name in ("a", "b", "c"):
        world.add(13, name, max_tokens=18)
        world.now += 0.5
    assert step_until_preemption(world) == ["c"]


def test_priority_preempts_the_least_urgent_even_if_it_was_admitted_first() -> None:
    world = crowded(scheduling_policy="priority")
    world.add(13, "lowly", max_tokens=18, priority=9)
    world.step()
    world.add(13, "a", max_tokens=18, priority=1)
    world.add(13, "b", max_tokens=18, priority=1)
    assert step_until_preemption(world) == ["lowly"]


def test_preempted_request_resumes_with_the_same_output() -> None:
    world = crowded()
    for index in range(3):
        world.add(13, f"r{index}", max_tokens=18)
    world.run()
    assert world.scheduler.stats().num_preemptions > 0
    assert {len(output) for output in world.outputs.values()} == {18}
    world.assert_answers_are_right()


def test_preempted_request_keeps_arrival_and_output_and_gives_everything_back() -> None:
    world = crowded()
    for name in ("a", "b", "c"):
        world.add(13, name, max_tokens=18)
    step_until_preemption(world)
    victim = world.requests["c"]
    assert victim.status is RequestStatus.WAITING
    assert victim.arrived_at == 0.0
    assert len(victim.output_token_ids) > 0
    assert (victim.seat, victim.blocks, victim.num_computed_tokens) == (None, [], 0)
    assert "c" in world.batches[-1].released_ids


def test_preempted_request_goes_before_those_that_arrived_later() -> None:
    world = crowded(max_num_seqs=3)
    for name in ("a", "b", "c"):
        world.add(13, name, max_tokens=18)
    world.now += 0.5
    world.add(20, "later", max_tokens=5)
    assert step_until_preemption(world) == ["c"]
    world.run()
    order = [request_id for batch in world.batches for request_id in batch.admitted_ids]
    assert order[:3] == ["a", "b", "c"]
    assert order[-1] == "later"
    assert order.count("later") == 1


def test_nobody_is_skipped_when_the_victim_is_served_before_the_one_that_asks() -> None:
    world = crowded(scheduling_policy="priority")
    world.add(13, "victim", max_tokens=18, priority=9)
    world.add(13, "a", max_tokens=18, priority=1)
    world.add(13, "b", max_tokens=18, priority=1)
    step_until_preemption(world)
    assert world.sizes(world.batches[-1]) == {"a": 1, "b": 1}


def test_who_asks_is_its_own_victim_when_it_is_the_least_urgent() -> None:
    world = crowded(num_kv_blocks=11)
    world.add(15, "a", max_tokens=18)
    world.add(14, "b", max_tokens=18)
    world.add(10, "c", max_tokens=18)
    victims = step_until_preemption(world)
    assert victims == ["c"]
    assert world.sizes(world.batches[-1]).keys() == {"a", "b"}
    world.run()
    world.assert_answers_are_right()


def test_nobody_is_admitted_in_a_step_that_preempted_its_equal() -> None:
    world = crowded(num_kv_blocks=8)
    world.add(13, "a", max_tokens=10)
    world.add(13, "b", max_tokens=10)
    world.step()
    world.add(1, "tiny", max_tokens=1)
    assert step_until_preemption(world) == ["b"]
    batch = world.batches[-1]
    assert batch.admitted_ids == []
    assert batch.blocks_free == 3
    assert world.step().admitted_ids == ["tiny"]


def test_request_that_outgrows_the_pool_alone_ends_with_length_and_the_scheduler_lives() -> None:
    world = World(num_kv_blocks=4, block_size=4, max_num_batched_tokens=64)
    request = world.add(5, max_tokens=100)
    world.run()
    assert world.ends[request.id] is FinishReason.LENGTH
    assert request.num_tokens == 17
    after = world.add(5, max_tokens=2)
    world.run()
    assert len(world.outputs[after.id]) == 2
    world.assert_answers_are_right()


def test_request_that_outgrows_the_pool_beside_one_that_shares_its_blocks_ends_with_length() -> None:
    world = World(scheduling_policy="priority", num_kv_blocks=12, block_size=1, max_num_seqs=2, watermark=0.0)
    world.add(list(range(8)), "outgrows", max_tokens=None, priority=5)
    for _ in range(4):
        world.step()
    world.add(list(range(8)), "shares", max_tokens=3, priority=0)
    world.step()
    world.run()
    assert world.ends == {"outgrows": FinishReason.LENGTH, "shares": FinishReason.LENGTH}
    assert world.requests["outgrows"].num_tokens == 13
    world.assert_answers_are_right()


def test_urgent_request_takes_a_seat_in_the_next_step_and_one_victim_resumes_with_the_same_output() -> None:
    world = World(scheduling_policy="priority", max_num_seqs=4, max_num_batched_tokens=64)
    for index in range(4):
        world.add(20, f"r{index}", max_tokens=12, priority=5)
    world.step()
    world.step()
    world.add(20, "urgent", max_tokens=3, priority=0)
    batch = world.step()
    assert batch.admitted_ids == ["urgent"]
    assert [request_id for request_id, _ in batch.preempted] == ["r3"]
    assert "urgent" in world.sizes(batch)
    assert len(world.outputs["urgent"]) == 1
    world.run()
    assert world.scheduler.stats().num_preemptions == 1
    assert {len(world.outputs[f"r{index}"]) for index in range(4)} == {12}
    world.assert_answers_are_right()


def test_urgent_request_takes_blocks_from_as_many_as_it_needs_and_no_more() -> None:
    world = World(
        scheduling_policy="priority", num_kv_blocks=20, block_size=4, max_num_batched_tokens=100, watermark=0.0
    )
    for index in range(4):
        world.add(17, f"r{index}", max_tokens=3, priority=5)
    world.step()
    world.add(39, "urgent", max_tokens=1, priority=0)
    batch = world.step()
    assert [request_id for request_id, _ in batch.preempted] == ["r3", "r2"]
    assert batch.admitted_ids == ["urgent"]
    world.run()
    world.assert_answers_are_right()


def test_equal_urgency_never_preempts() -> None:
    world = World(scheduling_policy="priority", max_num_seqs=2, max_num_batched_tokens=64)
    world.add(20, "a", max_tokens=5, priority=3)
    world.add(20, "b", max_tokens=5, priority=3)
    world.step()
    world.add(20, "c", max_tokens=5, priority=3)
    world.run()
    assert world.scheduler.stats().num_preemptions == 0


def test_blocked_request_does_not_preempt_an_equal_that_passed_it() -> None:
    world = crowded(scheduling_policy="priority", num_kv_blocks=22, max_num_batched_tokens=100)
    world.add(40, "stays", max_tokens=12, priority=3)
    world.add(16, "leaves", max_tokens=2, priority=3)
    world.step()
    world.add(36, "big", max_tokens=1, priority=3)
    world.now += 0.5
    world.add(20, "small", max_tokens=12, priority=3)
    assert world.step().admitted_ids == ["small"]
    world.run()
    assert world.scheduler.stats().num_preemptions == 0
    world.assert_answers_are_right()


def test_urgent_request_that_could_not_be_helped_preempts_nobody() -> None:
    world = World(
        scheduling_policy="priority", num_kv_blocks=20, block_size=4, max_num_batched_tokens=100, watermark=0.0
    )
    world.add(40, "urgent too", max_tokens=8, priority=0)
    world.add(20, "lowly", max_tokens=8, priority=5)
    world.step()
    world.add(60, "urgent", max_tokens=1, priority=0)
    batch = world.step()
    assert batch.preempted == []
    world.run()
    world.assert_answers_are_right()


def test_nobody_gets_up_for_one_that_would_find_no_budget() -> None:
    world = World(scheduling_policy="priority", max_num_seqs=3, max_num_batched_tokens=32, short_prefill_share=0.0)
    world.add(8, "old", max_tokens=50, priority=9)
    world.step()
    world.add(200, "urgent 1", max_tokens=1, priority=0)
    world.add(8, "old too", max_tokens=50, priority=9)
    world.step()
    world.add(200, "urgent 2", max_tokens=1, priority=0)
    world.add(200, "urgent 3", max_tokens=1, priority=0)
    assert world.step().preempted == []
    world.run()
    world.assert_answers_are_right()
