"""The loop around scheduler and runner, in one thread and on a clock that stands still."""

from __future__ import annotations

import pytest

from engine.fakes import FakeRunner, Witness, assert_all_free, expected_tokens, make_request, make_scheduler
from hotseat.core.batch import Batch, RequestUpdate, StepOutput
from hotseat.core.events import StepRecord
from hotseat.core.request import FinishReason, RequestId
from hotseat.core.scheduler import Scheduler
from hotseat.engine import StepLoop, VirtualClock
from hotseat.errors import InvalidRequestError, PromptTooLongError


class TimedRunner(FakeRunner):
    """Lets a second pass in each step."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def execute(self, batch: Batch) -> StepOutput:
        self._clock.advance(1.0)
        return super().execute(batch)


def make_loop(scheduler: Scheduler, runner: FakeRunner, witness: Witness, **options: object) -> StepLoop:
    return StepLoop(scheduler, runner, clock=VirtualClock(), sinks=[witness], **options)  # type: ignore[arg-type]


def collect(updates: list[RequestUpdate], into: dict[str, list[int]]) -> None:
    for update in updates:
        into.setdefault(update.request_id, []).extend(update.new_token_ids)


def test_requests_run_to_their_ends_and_leave_nothing() -> None:
    scheduler, runner, witness = make_scheduler(), FakeRunner(), Witness()
    loop = make_loop(scheduler, runner, witness)
    requests = [make_request(f"r{i}", 3 + 7 * i, max_tokens=1 + i) for i in range(10)]
    tokens: dict[str, list[int]] = {}
    for updates in loop.run(requests):
        collect(updates, tokens)
    assert tokens == {request.id: expected_tokens(request) for request in requests}
    assert witness.ends == {request.id: "length" for request in requests}
    assert not loop.has_work
    assert_all_free(scheduler)


def test_record_holds_start_duration_and_what_ended() -> None:
    clock, witness = VirtualClock(100.0), Witness()
    loop = StepLoop(make_scheduler(), TimedRunner(clock), clock=clock, sinks=[witness])
    loop.add(make_request("a", 5, max_tokens=2))
    while loop.has_work:
        loop.step()
    first, last, after = witness.records
    assert (first.start_s, first.duration_s) == (100.0, 1.0)
    assert (first.admitted, first.finished) == (["a"], [])
    assert [(item.start, item.end, item.phase) for item in first.scheduled()] == [(0, 5, "prefill")]
    assert (last.start_s, last.finished) == (101.0, [("a", FinishReason.LENGTH)])
    assert [(item.start, item.end, item.phase) for item in last.scheduled()] == [(5, 6, "decode")]
    assert (after.chunks, after.finished, after.blocks_used) == ([], [], 0)


def test_abort_of_the_last_request_is_recorded_and_told_to_the_runner() -> None:
    scheduler, runner, witness = make_scheduler(), FakeRunner(), Witness()
    loop = make_loop(scheduler, runner, witness)
    loop.add(make_request("a", max_tokens=50))
    loop.step()
    assert runner.seats == {"a": 0}
    update = loop.abort(RequestId("a"))
    assert update is not None
    assert update.finish_reason is FinishReason.ABORT
    assert loop.abort(RequestId("a")) is None
    assert loop.has_work
    assert loop.step() == []
    assert witness.records[-1].finished == [("a", FinishReason.ABORT)]
    assert runner.seats == {}
    assert not loop.has_work
    assert_all_free(scheduler)


def test_abort_between_execute_and_update_wins_over_the_result() -> None:
    scheduler, runner, witness = make_scheduler(), FakeRunner(), Witness()
    loop = make_loop(scheduler, runner, witness, before_update=lambda: loop.abort(RequestId("a")))
    loop.add(make_request("a", max_tokens=1))
    loop.add(make_request("b", max_tokens=1))
    updates = loop.step()
    assert [(update.request_id, update.finish_reason) for update in updates] == [("b", FinishReason.LENGTH)]
    assert witness.ends == {"a": "abort", "b": "length"}
    assert_all_free(scheduler)


def test_runner_that_raises_costs_the_requests_of_its_batch_only(caplog: pytest.LogCaptureFixture) -> None:
    runner = FakeRunner(lambda batch: RuntimeError("a tile fell off") if runner.num_steps == 2 else None)
    scheduler, witness = make_scheduler(max_num_seqs=2), Witness()
    loop = make_loop(scheduler, runner, witness)
    requests = [make_request(f"r{i}", 20, max_tokens=4) for i in range(4)]
    for request in requests:
        loop.add(request)
    loop.step()
    updates = loop.step()
    assert {update.request_id: update.finish_reason for update in updates} == {
        "r0": FinishReason.ERROR,
        "r1": FinishReason.ERROR,
    }
    assert all("a tile fell off" in (update.error or "") for update in updates)
    assert loop.failure is not None
    tokens: dict[str, list[int]] = {}
    while loop.has_work:
        collect(loop.step(), tokens)
    assert loop.failure is None
    assert tokens == {request.id: expected_tokens(request) for request in requests[2:]}
    assert caplog.text.count("Traceback") == 1
    assert_all_free(scheduler)


def test_failed_step_leaves_nothing_in_the_prefix_cache() -> None:
    fails = [True]
    runner = FakeRunner(lambda batch: RuntimeError("broken") if fails[0] else None)
    scheduler, witness = make_scheduler(), Witness()
    loop = make_loop(scheduler, runner, witness)
    prompt = range(1000, 1100)
    loop.add(make_request("a", prompt))
    loop.step()
    assert witness.ends == {"a": "error"}
    fails[0] = False
    again = make_request("b", prompt)
    loop.add(again)
    loop.step()
    assert again.num_cached_tokens == 0


def test_seats_of_a_failed_step_are_released_though_the_runner_never_heard() -> None:
    """The fake runner raises before it looks at a batch, and asserts that a seat is free when it is taken."""
    fail_on = {2, 3}
    runner = FakeRunner(lambda batch: ValueError("no") if runner.num_steps in fail_on else None)
    loop = make_loop(make_scheduler(max_num_seqs=3), runner, Witness())
    ends: list[FinishReason] = []
    for updates in loop.run(make_request(f"r{i}", 4, max_tokens=3) for i in range(12)):
        ends += [update.finish_reason for update in updates if update.finish_reason]
    assert ends.count(FinishReason.ERROR) == 6
    assert ends.count(FinishReason.LENGTH) == 6


def test_ctrl_c_in_a_step_leaves_nothing_behind() -> None:
    fails: list[BaseException | None] = [None, KeyboardInterrupt()]
    runner = FakeRunner(lambda batch: fails.pop(0) if fails else None)
    scheduler, witness = make_scheduler(), Witness()
    loop = make_loop(scheduler, runner, witness)
    steps = loop.run([make_request("a"), make_request("b")])
    next(steps)
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    assert set(witness.ends) == {"a", "b"}
    assert_all_free(scheduler)
    assert sum(len(updates) for updates in loop.run([make_request("c", max_tokens=3)])) == 3


def test_leaving_run_early_aborts_what_it_brought_and_nothing_else() -> None:
    scheduler, witness = make_scheduler(), Witness()
    loop = make_loop(scheduler, FakeRunner(), witness)
    loop.add(make_request("mine", max_tokens=3))
    steps = loop.run([make_request("a"), make_request("b")])
    next(steps)
    steps.close()
    assert witness.ends == {"a": "abort", "b": "abort"}
    while loop.has_work:
        loop.step()
    assert witness.ends["mine"] == "length"
    assert_all_free(scheduler)


def test_run_feeds_a_bounded_queue_as_it_empties() -> None:
    scheduler, witness = make_scheduler(max_num_seqs=2, max_num_queued_reqs=1), Witness()
    loop = make_loop(scheduler, FakeRunner(), witness)
    for _ in loop.run(make_request(f"r{i}", max_tokens=2) for i in range(9)):
        pass
    assert witness.ends == {f"r{i}": "length" for i in range(9)}


def test_one_impossible_request_ends_run_and_aborts_the_others() -> None:
    scheduler, witness = make_scheduler(), Witness()
    loop = make_loop(scheduler, FakeRunner(), witness)
    with pytest.raises(PromptTooLongError):
        list(loop.run([make_request("a"), make_request("b", 100_000)]))
    assert witness.ends == {"a": "abort"}
    assert [request.id for request, _ in witness.rejected] == ["b"]
    assert_all_free(scheduler)


def test_id_in_use_is_refused() -> None:
    loop = make_loop(make_scheduler(), FakeRunner(), Witness())
    loop.add(make_request("a"))
    with pytest.raises(InvalidRequestError, match="'a'"):
        loop.add(make_request("a"))
    assert loop.request_ids == ["a"]


def test_sink_that_raises_hurts_nobody_and_is_told_no_more(caplog: pytest.LogCaptureFixture) -> None:
    class BrokenSink(Witness):
        num_calls = 0

        def on_step(self, record: StepRecord, updates: object) -> None:
            self.num_calls += 1
            raise OSError("disk full")

    broken, witness = BrokenSink(), Witness()
    loop = StepLoop(make_scheduler(), FakeRunner(), clock=VirtualClock(), sinks=[broken, witness])
    for _ in loop.run([make_request("a", max_tokens=5)]):
        pass
    assert broken.num_calls == 1
    assert len(witness.records) == 5 + 1
    assert witness.ends == {"a": "length"}
    assert caplog.text.count("Traceback") == 1


@pytest.mark.parametrize("batching", ["static", "dynamic", "continuous"])
def test_run_does_not_wait_for_requests_that_will_never_come(batching: str) -> None:
    witness = Witness()
    loop = make_loop(make_scheduler(batching=batching, batch_size=4, max_num_queued_reqs=2), FakeRunner(), witness)
    for _ in loop.run(make_request(f"r{i}", max_tokens=2) for i in range(7)):
        pass
    assert witness.ends == {f"r{i}": "length" for i in range(7)}


def test_repeated_failures_leave_one_traceback(caplog: pytest.LogCaptureFixture) -> None:
    loop = make_loop(make_scheduler(max_num_seqs=1), FakeRunner(lambda batch: OSError("gone")), Witness())
    for _ in loop.run([make_request(f"r{i}") for i in range(5)]):
        pass
    assert caplog.text.count("Traceback") == 1
    assert caplog.text.count("gone") >= 5


def test_close_aborts_and_closes_the_runner() -> None:
    runner, witness = FakeRunner(), Witness()
    loop = make_loop(make_scheduler(), runner, witness)
    loop.add(make_request("a"))
    loop.close()
    loop.close()
    assert witness.ends == {"a": "abort"}
    assert runner.is_closed
