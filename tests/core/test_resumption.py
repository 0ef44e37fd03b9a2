"""The order of preempted requests among those that wait for their first seat."""

from __future__ import annotations

from typing import Any

import pytest

from core.worlds import World


def preempted_after_passing(**options: Any) -> World:
    """Return a world in which A passed three larger requests, ran, and was preempted when R grew."""
    world = World(num_kv_blocks=20, max_num_seqs=8, **options)
    world.add(96, "R", max_tokens=160)
    for name in ("B0", "B1", "B2"):
        world.now += 0.25
        world.add(225, name, max_tokens=20)
    world.now += 0.25
    world.add(100, "A", max_tokens=160)
    while not world.step().preempted:
        pass
    assert [one.request_id for one in world.batches[-1].preempted] == ["A"]
    return world


def admissions(world: World) -> list[str]:
    return [request_id for batch in world.batches for request_id in batch.admitted_ids]


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair", "deadline"])
def test_preempted_request_resumes_before_earlier_ones_that_never_had_a_seat(policy: str) -> None:
    world = preempted_after_passing(scheduling_policy=policy)
    world.run()
    assert admissions(world) == ["R", "A", "A", "B0", "B1", "B2"]
    world.assert_answers_are_right()


def test_a_request_with_the_reservation_goes_before_a_preempted_one() -> None:
    world = preempted_after_passing(max_times_passed=1)
    world.run()
    assert admissions(world) == ["R", "A", "B0", "B1", "B2", "A"], "A passed all three once"


def test_a_strictly_more_urgent_request_goes_before_a_preempted_one() -> None:
    world = preempted_after_passing(scheduling_policy="priority")
    world.add(225, "urgent", max_tokens=2, priority=-1)
    world.run()
    order = admissions(world)
    assert order.index("urgent") == 2
    assert "A" in order[3:]


def test_the_explanation_of_a_preempted_request_says_that_it_resumes_first() -> None:
    world = preempted_after_passing()
    explanation = world.scheduler.explain(world.requests["A"].id, world.now)
    assert explanation is not None
    assert explanation.reason.startswith("preempted: resumes before all that are not strictly more urgent; ")
