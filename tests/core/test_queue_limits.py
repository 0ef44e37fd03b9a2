"""The bounded queue and the time-outs."""

from __future__ import annotations

import pytest

from core.worlds import World
from hotseat.core.request import FinishReason
from hotseat.errors import QueueFullError


def test_queue_takes_so_many_and_no_more() -> None:
    world = World(max_num_seqs=1, max_num_queued_reqs=2)
    world.add(10, "running", max_tokens=3)
    world.step()
    world.add(10, "a", max_tokens=1)
    world.add(10, "b", max_tokens=1)
    with pytest.raises(QueueFullError, match="2 requests wait for a seat and max_num_queued_reqs is 2"):
        world.add(10, "c")
    world.run()
    assert world.ends.keys() == {"running", "a", "b"}


def test_requests_that_find_a_free_seat_are_not_queued() -> None:
    world = World(max_num_seqs=8, max_num_queued_reqs=1)
    for _ in range(9):
        world.add(10)
    with pytest.raises(QueueFullError):
        world.add(10)


def test_queue_takes_so_many_tokens_and_no_more() -> None:
    world = World(max_num_seqs=1, max_num_queued_tokens=100)
    world.add(10, "running", max_tokens=3)
    world.step()
    world.add(60)
    with pytest.raises(QueueFullError, match=r"60 prompt tokens wait.*41 more.*max_num_queued_tokens = 100"):
        world.add(41)
    world.add(40)
    assert world.scheduler.stats().num_queued_tokens == 100


def test_waiting_requests_take_bounded_memory() -> None:
    world = World(max_num_seqs=1, max_queue_memory_bytes=120_000)
    world.add(10, "running", max_tokens=3)
    world.step()
    for _ in range(3):
        world.add(100)
    message = r"3 requests with 300 prompt tokens wait.*one of 100.*max_queue_memory_bytes is 120000"
    with pytest.raises(QueueFullError, match=message):
        world.add(100)
    world.run()
    world.add(100)  # a seat is free: nothing waits


def test_room_comes_back_when_one_leaves_the_queue() -> None:
    world = World(max_num_seqs=1, max_num_queued_reqs=1)
    world.add(10, "running", max_tokens=3)
    world.step()
    waiting = world.add(10, "waiting")
    world.note(world.scheduler.abort(waiting.id, world.now))
    world.add(10, "next")


def test_preempted_request_is_not_counted_as_new() -> None:
    world = World(
        num_kv_blocks=12, block_size=4, max_num_seqs=3, max_num_batched_tokens=64, watermark=0.0, max_num_queued_reqs=1
    )
    for _ in range(3):
        world.add(13, max_tokens=18)
    while not world.scheduler.stats().num_preemptions:
        world.step()
    assert world.scheduler.num_waiting == 1
    assert world.scheduler.stats().num_queued_tokens == 0
    world.add(13, "new", max_tokens=1)
    world.run()
    assert set(world.ends.values()) == {FinishReason.LENGTH}


def test_request_that_finds_no_seat_in_time_ends_with_timeout() -> None:
    world = World(max_num_seqs=1, queue_timeout_s=5.0)
    world.add(10, "running", max_tokens=20)
    world.step()
    world.add(10, "waiting", max_tokens=1)
    assert world.scheduler.next_event_at() == 6.0
    world.run()
    assert world.ends == {"running": FinishReason.LENGTH, "waiting": FinishReason.TIMEOUT}
    assert world.requests["waiting"].finished_at == 6.0
    assert "queue_timeout_s = 5" in (world.updates["waiting"][-1].error or "")
    assert "waiting" not in world.runner.num_computed


def test_preempted_request_is_not_timed_out_by_the_queue() -> None:
    world = World(
        num_kv_blocks=12, block_size=4, max_num_seqs=3, max_num_batched_tokens=64, watermark=0.0, queue_timeout_s=2.0
    )
    for _ in range(3):
        world.add(13, max_tokens=18)
    world.run()
    assert world.scheduler.stats().num_preemptions > 0
    assert set(world.ends.values()) == {FinishReason.LENGTH}


def test_request_that_does_not_end_in_time_ends_with_timeout_and_frees_its_seat() -> None:
    world = World(max_num_seqs=1, request_timeout_s=5.0)
    world.add(10, "slow", max_tokens=100)
    world.step()
    world.add(10, "next", max_tokens=1, arrived_at=4.0)
    world.run()
    assert world.ends == {"slow": FinishReason.TIMEOUT, "next": FinishReason.LENGTH}
    assert len(world.outputs["slow"]) == 5
    assert world.requests["next"].admitted_at == 5.0
    assert "slow" in world.batches[5].released_ids
    assert world.scheduler.stats().blocks_used == 0


def test_ended_requests_are_not_kept_for_their_time_out() -> None:
    world = World(request_timeout_s=1000.0, queue_timeout_s=1000.0, is_light=True)
    world.add(10, "stays", max_tokens=3000)
    for index in range(1000):
        world.add(5, f"r{index}", max_tokens=1)
        world.step()
    assert len(world.scheduler._limits._alive) < 200
    assert len(world.scheduler._limits._queued) < 200


def test_request_that_meets_both_time_outs_at_once_ends_once() -> None:
    world = World(max_num_seqs=1, queue_timeout_s=5.0, request_timeout_s=5.0)
    world.add(4, "running", max_tokens=50)
    world.add(4, "waiting", max_tokens=5)
    for _ in range(6):
        world.step()
    assert [update.error for update in world.updates["waiting"]] == ["waiting found no seat in queue_timeout_s = 5"]
    assert world.ends == {"running": FinishReason.TIMEOUT, "waiting": FinishReason.TIMEOUT}


def test_time_of_the_next_event_is_that_of_the_first_time_out() -> None:
    world = World(max_num_seqs=1, queue_timeout_s=5.0, request_timeout_s=7.0)
    assert world.scheduler.next_event_at() is None
    world.add(4, "running", max_tokens=50)
    world.step()
    assert world.scheduler.next_event_at() == 7.0
    world.add(4, "waiting", max_tokens=5)
    assert world.scheduler.next_event_at() == 6.0
    world.scheduler.abort(world.requests["waiting"].id, world.now)
    assert world.scheduler.next_event_at() == 7.0
