"""What the engine runs before the first client comes."""

from __future__ import annotations

import pytest

from engine.fakes import FakeRunner, Witness, assert_all_free, make_request, make_scheduler
from hotseat.core.batch import Batch, StepOutput
from hotseat.engine import StepLoop, VirtualClock, warm_up


class SteadyRunner(FakeRunner):
    """Takes 10 ms for a step and half a millisecond for each of its tokens."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def execute(self, batch: Batch) -> StepOutput:
        if batch.chunks:
            self._clock.advance(0.010 + 0.0005 * batch.num_tokens)
        return super().execute(batch)


def warmed_up(**options: object) -> tuple[StepLoop, Witness, FakeRunner]:
    clock, witness = VirtualClock(5.0), Witness()
    scheduler, runner = make_scheduler(**options), SteadyRunner(clock)
    loop = StepLoop(scheduler, runner, clock=clock, sinks=[witness])
    warm_up(loop, scheduler.config)
    assert_all_free(scheduler)
    return loop, witness, runner


def test_the_first_clients_step_keeps_the_target() -> None:
    loop, witness, _ = warmed_up(target_itl_ms=50.0)
    num_before = len(witness.records)
    loop.add(make_request("client", 400, max_tokens=2))
    loop.step()
    (record,) = witness.records[num_before:]
    assert 0.040 < record.duration_s <= 0.050


@pytest.mark.parametrize(
    "options",
    [
        {"scheduling_policy": "fcfs"},
        {"scheduling_policy": "sjf"},
        {"scheduling_policy": "fair"},
        {"batching": "static"},
    ],
    ids=str,
)
def test_runner_and_scheduler_hold_nothing_afterwards(options: dict[str, object]) -> None:
    loop, witness, runner = warmed_up(target_itl_ms=50.0, **options)
    assert not loop.has_work
    assert runner.seats == {}
    assert set(witness.ends.values()) == {"length"}
    assert {chunk.phase for record in witness.records for chunk in record.scheduled()} == {"prefill", "decode"}


@pytest.mark.parametrize(("max_model_len", "num_requests"), [(512, 3), (100, 2), (30, 1), (8, 0)])
def test_prompts_that_the_engine_cannot_hold_are_left_out(max_model_len: int, num_requests: int) -> None:
    _, witness, _ = warmed_up(target_itl_ms=50.0, max_model_len=max_model_len)
    assert len(witness.ends) == num_requests
    assert not witness.rejected


def test_the_shortest_job_is_still_found_soon_by_what_clients_ask_for() -> None:
    loop, witness, _ = warmed_up(target_itl_ms=50.0, scheduling_policy="sjf", max_num_seqs=1)
    for index in range(6):
        loop.add(make_request(f"first{index}", 10, max_tokens=100))
    while loop.has_work:
        loop.step()
    num_before = len(witness.records)
    for name, prompt_len, max_tokens in (("seat", 10, 50), ("many", 20, 100), ("few", 40, 5)):
        loop.add(make_request(name, prompt_len, max_tokens=max_tokens))
        loop.step()
    while loop.has_work:
        loop.step()
    admitted = [request_id for record in witness.records[num_before:] for request_id in record.admitted]
    assert admitted == ["seat", "few", "many"]
