"""Waiters of a shared prefix: never later than their own urgency, never mixed up, never a cost that grows with them."""

from __future__ import annotations

import pytest

from core.worlds import World
from hotseat.core.admission import MAX_PREFIX_LOOKS
from hotseat.core.deferred import MAX_RECORDED

PREFIX = list(range(200))


def test_an_owner_that_others_outrank_computes_for_its_more_urgent_waiter() -> None:
    """Deadline, which does not preempt: a far-deadline prefill is passed by all that come, its waiter is urgent."""
    world = World(
        scheduling_policy="deadline", max_num_batched_tokens=32, max_num_seqs=4, short_prefill_share=0.0, is_light=True
    )
    world.add(PREFIX, "owner", deadline_at=1000.0, max_tokens=1)
    world.step()
    waiter = world.add([*PREFIX, 7], "waiter", deadline_at=20.0, max_tokens=1)
    for index in range(40):
        world.add(32, f"rival{index}", deadline_at=50.0 + index, max_tokens=1)
    world.run()
    assert waiter.first_token_at is not None
    assert waiter.num_cached_tokens == 192
    rivals = [one.first_token_at for name, one in world.requests.items() if "rival" in name]
    assert all(at is not None and at >= waiter.first_token_at for at in rivals)


@pytest.mark.parametrize("ends", ["waiter", "owner"])
def test_an_id_that_is_used_again_is_another_request(ends: str) -> None:
    world = World(max_num_batched_tokens=32, max_num_seqs=8)
    world.add(PREFIX, "owner", max_tokens=2)
    world.step()
    world.add([*PREFIX, 1], "waiter", max_tokens=2)
    world.step()
    gone = world.requests[ends]
    world.scheduler.abort(gone.id, world.now)
    world.scheduler.check_invariants()
    again = world.add([*PREFIX, 2] if ends == "waiter" else 30, ends, max_tokens=3)
    world.run()
    assert world.outputs[ends] != []
    assert again.num_preemptions == 0
    world.assert_answers_are_right()


def test_a_preempted_request_whose_id_is_used_again_leaves_no_trace() -> None:
    world = World(scheduling_policy="priority", max_num_seqs=1)
    world.add(20, "X", priority=5, max_tokens=50)
    world.step()
    world.add(20, "urgent", priority=0, max_tokens=3)
    world.step()
    old = world.requests["X"]
    assert old.num_preemptions == 1
    world.scheduler.abort(old.id, world.now)
    world.add(20, "X", priority=5, max_tokens=2)
    world.run()
    assert world.requests["X"].num_preemptions == 0
    world.assert_answers_are_right()


@pytest.mark.parametrize("num_waiting", [100, 5000])
def test_a_step_looks_at_a_bounded_number_whatever_the_queue_holds(num_waiting: int) -> None:
    world = World(max_num_batched_tokens=64, long_prefill_token_threshold=16, max_num_seqs=16, is_light=True)
    world.add(PREFIX, "owner", max_tokens=1)
    world.step()
    for index in range(num_waiting):
        world.add([*PREFIX, index], f"w{index}", max_tokens=1)
    looks = []
    match = world.scheduler._admission.cache.match
    world.scheduler._admission.cache.match = lambda request: (looks.append(request.id), match(request))[1]  # type: ignore[method-assign,func-returns-value]
    num_deferred = []
    for _ in range(6):
        looks.clear()
        num_deferred.append(len(world.step().deferred))
        assert len(looks) == MAX_PREFIX_LOOKS
    assert num_deferred == [16, 32, 48, MAX_RECORDED, MAX_RECORDED, MAX_RECORDED]
    world.run()
    assert all(one.first_token_at is not None for one in world.requests.values())


def test_all_waiters_go_on_when_their_prefix_is_there() -> None:
    world = World(max_num_batched_tokens=64, max_num_seqs=40)
    world.add(PREFIX, "owner", max_tokens=1)
    world.step()
    for index in range(20):
        world.add([*PREFIX, index], f"w{index}", max_tokens=1)
    world.run()
    cached = {one.num_cached_tokens for name, one in world.requests.items() if name != "owner"}
    assert cached == {192}
    world.assert_answers_are_right()
