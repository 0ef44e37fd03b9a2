"""The engine's start and stop, questions between steps, idle time, memory."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest

from engine.fakes import (
    WAIT_S,
    FakeRunner,
    StartedEngine,
    Witness,
    assert_all_free,
    expected_tokens,
    in_thread,
    make_request,
    make_scheduler,
    read,
    step_over,
)
from hotseat.core.batch import RequestUpdate
from hotseat.core.events import StepRecord
from hotseat.core.explain import Explanation
from hotseat.core.request import FinishReason, RequestId
from hotseat.engine import Engine, UpdateStream, VirtualClock
from hotseat.errors import EngineStoppedError


def test_stop_aborts_outstanding_work_and_refuses_more() -> None:
    async def scenario(started: StartedEngine) -> None:
        started.runner.hold()
        reading = asyncio.create_task(read(started.engine, make_request("a", max_tokens=500)))
        await in_thread(started.runner.entered)
        stopping = asyncio.create_task(asyncio.to_thread(started.engine.stop))
        late: list[asyncio.Task[UpdateStream]] = []
        while not late or not late[-1].done():  # until one is refused at once; those before wait for the engine thread
            late.append(asyncio.create_task(started.engine.submit([make_request(f"late{len(late)}")])))
            await asyncio.sleep(0)
        started.runner.let_go()
        await stopping
        _, last = await reading
        assert last.finish_reason is FinishReason.ABORT
        for submission in late:
            with pytest.raises(EngineStoppedError):
                await submission
        with pytest.raises(EngineStoppedError):
            await started.engine.submit([make_request("later")])
        assert await started.engine.explain(RequestId("a")) is None
        assert not started.engine.health().alive

    started = StartedEngine().run(scenario)
    assert started.witness.ends == {"a": "abort"}
    assert_all_free(started.scheduler)


def test_stop_lets_running_requests_finish_within_the_drain_time() -> None:
    async def scenario(started: StartedEngine) -> None:
        started.runner.hold()
        request = make_request("a", max_tokens=30)
        reading = asyncio.create_task(read(started.engine, request))
        await in_thread(started.runner.entered)
        stopping = asyncio.create_task(asyncio.to_thread(started.engine.stop, 60.0))
        started.runner.let_go()
        tokens, last = await reading
        await stopping
        assert last.finish_reason is FinishReason.LENGTH
        assert tokens == expected_tokens(request)

    StartedEngine().run(scenario)


def test_engine_that_was_never_started_refuses_and_stops() -> None:
    async def scenario(engine: Engine) -> None:
        with pytest.raises(EngineStoppedError, match="not started"):
            await engine.submit([make_request("a")])

    engine = Engine(make_scheduler(), FakeRunner())
    assert not engine.health().alive
    asyncio.run(scenario(engine))
    engine.stop()


def test_reader_whose_event_loop_is_closed_counts_as_gone() -> None:
    async def abandon(started: StartedEngine) -> None:
        started.runner.hold()
        streams.append(await started.engine.submit([make_request("a", max_tokens=500)]))
        await in_thread(started.runner.entered)

    async def live_on(started: StartedEngine) -> None:
        await read(started.engine, make_request("b", max_tokens=2))

    streams: list[object] = []
    with StartedEngine() as started:
        asyncio.run(abandon(started))
        started.runner.let_go()
        asyncio.run(live_on(started))
    assert list(started.witness.ends.items()) == [("a", "abort"), ("b", "length")]


def test_explain_stats_and_records_answer_while_a_request_runs() -> None:
    async def scenario(started: StartedEngine) -> None:
        started.runner.hold()
        reading = asyncio.create_task(read(started.engine, make_request("a", max_tokens=3)))
        await in_thread(started.runner.entered)
        explanation = await started.engine.explain(RequestId("a"))
        assert explanation is not None
        assert (explanation.request_id, explanation.seat) == ("a", 0)
        started.runner.let(1)
        await in_thread(started.runner.entered)
        assert started.engine.stats().num_running == 1
        started.runner.let_go()
        await reading
        assert await started.engine.explain(RequestId("a")) is None
        assert await started.engine.reset_prefix_cache()
        records = started.engine.step_records()
        assert [record.step for record in records] == [record.step for record in started.witness.records]
        assert started.engine.step_records(since=records[0].step, limit=1) == records[-1:]

    StartedEngine().run(scenario)


def test_reset_after_an_abort_sees_the_request_gone() -> None:
    """Also when both come between two steps."""

    class Interrupter(Witness):
        """Waits at the end of the second step until both were sent."""

        ask: Callable[[], Awaitable[None]]
        loop: asyncio.AbstractEventLoop

        def on_step(self, record: StepRecord, updates: Sequence[RequestUpdate]) -> None:
            super().on_step(record, updates)
            if len(self.records) == 2:
                asyncio.run_coroutine_threadsafe(self.ask(), self.loop).result(WAIT_S)

    async def scenario() -> tuple[object, object]:
        asked: list[asyncio.Task[object]] = []

        async def ask() -> None:
            engine.abort(RequestId("a"))
            asked.append(asyncio.create_task(engine.explain(RequestId("a"))))
            asked.append(asyncio.create_task(engine.reset_prefix_cache()))
            await asyncio.sleep(0)  # both are sent

        interrupter.ask, interrupter.loop = ask, asyncio.get_running_loop()
        _, last = await read(engine, make_request("a", max_tokens=400))
        assert last.finish_reason is FinishReason.ABORT
        explanation = await asked[0]
        assert isinstance(explanation, Explanation)
        return explanation.reason.partition(":")[0], await asked[1]

    interrupter = Interrupter()
    engine = Engine(make_scheduler(), FakeRunner(), sinks=[interrupter])
    engine.start()
    try:
        assert asyncio.run(scenario()) == ("ends", True)
    finally:
        engine.stop()


def test_batching_mode_that_waits_for_company_starts_without_it_in_time() -> None:
    async def scenario(started: StartedEngine) -> None:
        request = make_request("alone", max_tokens=3)
        request.arrived_at = started.engine.clock.now()
        tokens, _ = await read(started.engine, request)
        assert tokens == expected_tokens(request)

    started = StartedEngine(make_scheduler(batching="dynamic", max_delay_ms=20.0)).run(scenario)
    num_idle = sum(1 for record in started.witness.records if not record.chunks)
    assert num_idle <= 5, "it sleeps until the delay is over"


def test_idle_engine_sleeps() -> None:
    """Between requests the thread runs no step and takes no turn: it waits in the queue."""

    async def scenario(started: StartedEngine) -> None:
        await read(started.engine, make_request("a", max_tokens=2))
        await step_over(started.engine)  # one without chunks follows the last end; then the thread sleeps again
        turns = clock.num_calls
        await asyncio.to_thread(threading.Event().wait, 0.05)
        assert clock.num_calls == turns

    class CountingClock(VirtualClock):
        num_calls = 0

        def now(self) -> float:
            self.num_calls += 1
            return super().now()

    clock = CountingClock()
    StartedEngine(clock=clock).run(scenario)


def test_memory_is_flat_over_5000_requests() -> None:
    async def run_many(started: StartedEngine, first: int, count: int) -> None:
        for start in range(first, first + count, 50):
            requests = [make_request(f"r{i}", 4, max_tokens=2) for i in range(start, start + 50)]
            await asyncio.gather(*(read(started.engine, request) for request in requests))
            started.witness.__init__()  # type: ignore[misc]

    async def scenario(started: StartedEngine) -> tuple[int, int]:
        await run_many(started, 0, 1000)
        gc.collect()
        before = len(gc.get_objects())
        await run_many(started, 1000, 5000)
        gc.collect()
        return before, len(gc.get_objects())

    with StartedEngine(num_step_records=16) as started:
        before, after = asyncio.run(scenario(started))
    assert after - before < 500, f"{after - before} objects were left by 5,000 requests"
