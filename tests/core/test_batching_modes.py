"""Static and dynamic batching, the baselines."""

from __future__ import annotations

from core.worlds import World
from hotseat.core.request import FinishReason


def test_continuous_batching_lets_the_next_one_sit_down_at_once() -> None:
    world = World(max_num_seqs=2)
    world.add(10, "short", max_tokens=1)
    world.add(10, "long", max_tokens=10)
    world.add(10, "next", max_tokens=1)
    world.step()
    assert world.step().admitted_ids == ["next"]


def test_static_batch_waits_until_it_is_full_and_admits_nobody_until_it_ends() -> None:
    world = World(batching="static", batch_size=3)
    world.add(10, "a", max_tokens=2)
    world.add(10, "b", max_tokens=5)
    assert world.step().chunks == []
    world.add(10, "c", max_tokens=1)
    world.add(10, "d", max_tokens=1)
    world.add(10, "e", max_tokens=1)
    world.add(10, "f", max_tokens=1)
    assert world.step().admitted_ids == ["a", "b", "c"]
    for _ in range(4):
        assert world.step().admitted_ids == []
    assert world.ends.keys() == {"a", "b", "c"}
    assert world.step().admitted_ids == ["d", "e", "f"]


def test_static_batch_that_nobody_will_fill_starts_on_flush() -> None:
    world = World(batching="static", batch_size=3)
    world.add(10, "a")
    assert world.step().chunks == []
    world.scheduler.flush()
    assert world.step().admitted_ids == ["a"]
    world.run()
    world.add(10, "b")
    assert world.step().chunks == []


def test_dynamic_batch_closes_after_its_delay() -> None:
    world = World(batching="dynamic", batch_size=8, max_delay_ms=2500.0)
    world.add(10, "a", max_tokens=5)
    assert world.scheduler.next_event_at() == 2.5
    assert world.step().chunks == []
    world.add(10, "b", max_tokens=1)
    assert world.step().chunks == []
    assert world.step().chunks == []
    assert world.step().admitted_ids == ["a", "b"]
    world.add(10, "too late", max_tokens=1)
    while "a" not in world.ends:
        assert world.step().admitted_ids == []
    assert world.step().admitted_ids == ["too late"]


def test_dynamic_batch_closes_early_when_it_is_full() -> None:
    world = World(batching="dynamic", batch_size=2, max_delay_ms=60_000.0)
    world.add(10, "a")
    world.add(10, "b")
    world.add(10, "c")
    assert world.step().admitted_ids == ["a", "b"]


def test_batch_size_is_the_number_of_seats_unless_told_otherwise() -> None:
    world = World(batching="static", max_num_seqs=2)
    for name in ("a", "b", "c"):
        world.add(10, name)
    assert world.step().admitted_ids == ["a", "b"]


def test_batch_that_needs_several_steps_of_budget_is_admitted_completely() -> None:
    world = World(batching="static", batch_size=3, max_num_batched_tokens=64, short_prefill_share=0.0)
    for name in ("a", "b", "c"):
        world.add(60, name, max_tokens=20)
    admitted = [world.step().admitted_ids for _ in range(3)]
    assert admitted == [["a", "b"], ["c"], []]


def test_preempted_member_of_a_batch_comes_back_to_it() -> None:
    world = World(batching="static", batch_size=3, num_kv_blocks=12, block_size=4, max_num_seqs=4, watermark=0.0)
    for name in ("a", "b", "c", "d", "e", "f"):
        world.add(13, name, max_tokens=18)
    world.run()
    assert world.scheduler.stats().num_preemptions > 0
    assert set(world.ends.values()) == {FinishReason.LENGTH}
    world.assert_answers_are_right()


def test_aborting_all_of_a_batch_opens_the_gate_for_the_next() -> None:
    world = World(batching="static", batch_size=2)
    for name in ("a", "b", "c", "d"):
        world.add(10, name, max_tokens=50)
    world.step()
    for name in ("a", "b"):
        world.note(world.scheduler.abort(world.requests[name].id, world.now))
    assert world.step().admitted_ids == ["c", "d"]


def test_who_comes_after_a_batch_was_formed_does_not_take_the_place_of_one_that_left() -> None:
    world = World(batching="static", batch_size=4, max_num_batched_tokens=64, short_prefill_share=0.0)
    for name in ("a", "b", "c", "d"):
        world.add(60, name, max_tokens=30)
    assert world.step().admitted_ids == ["a", "b"]
    for name in ("c", "d"):
        world.note(world.scheduler.abort(world.requests[name].id, world.now))
    world.add(5, "late")
    while not {"a", "b"} <= world.ends.keys():
        assert world.step().admitted_ids == []
    assert world.step().admitted_ids == []
    assert world.scheduler.is_gathering
    for name in ("e", "f", "g"):
        world.add(5, name)
    assert world.step().admitted_ids == ["late", "e", "f", "g"]


def test_preempted_member_comes_back_although_a_shorter_job_waits_at_the_gate() -> None:
    world = World(
        batching="static",
        max_num_seqs=2,
        num_kv_blocks=8,
        watermark=0.0,
        scheduling_policy="sjf",
        enable_prefix_caching=False,
    )
    world.add(60, "a", max_tokens=60)
    world.add(55, "b", max_tokens=60)
    world.step()
    world.add(2, "tiny", max_tokens=2)
    for _ in range(300):
        world.step()
        if world.ends.keys() == {"a", "b"}:
            break
    assert world.scheduler.stats().num_preemptions > 0
    assert world.ends.keys() == {"a", "b"}
    world.assert_answers_are_right()


def test_a_newcomer_ahead_in_the_order_does_not_keep_a_member_of_the_batch_out() -> None:
    world = World(batching="static", batch_size=3, max_num_batched_tokens=64, scheduling_policy="sjf")
    for name in ("a", "b", "c"):
        world.add(60, name, max_tokens=20)
    assert world.step().admitted_ids == ["a", "b"]
    world.add(2, "tiny", max_tokens=2)
    assert world.step().admitted_ids == ["c"]


def test_a_batch_goes_on_although_its_first_members_end_before_the_others_sat_down() -> None:
    world = World(batching="static", batch_size=4, max_num_batched_tokens=64, max_num_seqs=4, short_prefill_share=0.0)
    for name in ("a", "b", "c", "d"):
        world.add(64, name, max_tokens=1)
    assert [world.step().admitted_ids for _ in range(4)] == [["a"], ["b"], ["c"], ["d"]]


def test_members_that_wait_for_the_prefix_of_one_that_ends_sit_down_afterwards() -> None:
    world = World(batching="static", batch_size=3)
    for name in ("a", "b", "c"):
        world.add(list(range(100)), name, max_tokens=1)
    assert world.step().admitted_ids == ["a"]
    assert world.step().admitted_ids == ["b", "c"]
    world.run()
    assert world.ends.keys() == {"a", "b", "c"}


def test_members_sit_down_one_by_one_when_the_cache_holds_one_at_a_time() -> None:
    world = World(batching="dynamic", batch_size=3, num_kv_blocks=8, watermark=0.0, enable_prefix_caching=False)
    for name in ("a", "b", "c"):
        world.add(100, name, max_tokens=2)
    assert world.step().admitted_ids == ["a"]
    world.add(5, "late")
    world.run()
    admitted = [name for batch in world.batches for name in batch.admitted_ids]
    assert admitted == ["a", "b", "c", "late"]
