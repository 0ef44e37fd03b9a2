"""The engine with its thread, read from an event loop."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
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
)
from hotseat.core.batch import Batch, RequestUpdate, StepOutput
from hotseat.core.events import StepRecord
from hotseat.core.request import FinishReason, Request, RequestId
from hotseat.core.scheduler import Scheduler
from hotseat.engine import Engine, RequestStream, VirtualClock
from hotseat.errors import EngineStoppedError, InvalidRequestError, PromptTooLongError, QueueFullError


async def read(engine: Engine, request: Request) -> tuple[list[int], RequestUpdate]:
    """Return all tokens of ``request`` and its last update."""
    tokens: list[int] = []
    last: RequestUpdate | None = None
    async for update in await engine.submit(request):
        assert last is None or last.finish_reason is None, "nothing comes after the end"
        tokens += update.new_token_ids
        last = update
    assert last is not None
    return tokens, last


def test_stream_gives_all_tokens_and_ends_with_a_reason() -> None:
    async def scenario(engine: Engine) -> None:
        request = make_request("a", max_tokens=20)
        tokens, last = await read(engine, request)
        assert tokens == expected_tokens(request)
        assert last.finish_reason is FinishReason.LENGTH

    with StartedEngine() as started:
        asyncio.run(scenario(started.engine))
    assert started.runner.is_closed
    assert_all_free(started.scheduler)


def test_64_streams_with_half_of_them_left_midway_leave_no_seat_and_no_block() -> None:
    async def leave_early(engine: Engine, request: Request) -> None:
        stream = await engine.submit(request)
        async for update in stream:
            assert update.finish_reason is None
            break
        await stream.aclose()

    async def pace(runner: FakeRunner) -> None:
        """One step for each turn of the loop, or thousands pass before a busy machine lets the readers leave."""
        while True:
            runner.let(1)
            await asyncio.sleep(0)

    async def scenario(started: StartedEngine) -> None:
        engine = started.engine
        stay = [make_request(f"stay{i}", 3 + i, max_tokens=1 + 3 * i) for i in range(32)]
        leave = [make_request(f"leave{i}", 3 + i, max_tokens=8000) for i in range(32)]
        started.runner.hold()
        pacing = asyncio.create_task(pace(started.runner))
        results = asyncio.gather(*(read(engine, request) for request in stay))
        await asyncio.gather(*(leave_early(engine, request) for request in leave))
        pacing.cancel()
        started.runner.let_go()
        for request, (tokens, last) in zip(stay, await results, strict=True):
            assert tokens == expected_tokens(request)
            assert last.finish_reason is FinishReason.LENGTH

    scheduler = make_scheduler(max_num_seqs=16, max_model_len=10_000, num_kv_blocks=16 * 640)
    with StartedEngine(scheduler) as started:
        asyncio.run(scenario(started))
    assert Counter(started.witness.ends.values()) == {"length": 32, "abort": 32}
    assert started.runner.seats == {}
    assert_all_free(started.scheduler)


def test_cancelled_reader_aborts_its_request_only() -> None:
    async def scenario(started: StartedEngine) -> None:
        started.runner.hold()
        doomed = asyncio.create_task(read(started.engine, make_request("a", max_tokens=100)))
        other = asyncio.create_task(read(started.engine, make_request("b", max_tokens=4)))
        await in_thread(started.runner.entered)
        doomed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doomed
        started.runner.let_go()
        tokens, _ = await other
        assert len(tokens) == 4

    with StartedEngine() as started:
        asyncio.run(scenario(started))
    assert started.witness.ends == {"a": "abort", "b": "length"}


def test_cancelled_wait_aborts_though_somebody_keeps_the_stream() -> None:
    async def scenario(started: StartedEngine) -> None:
        started.runner.hold()
        stream = await started.engine.submit(make_request("a", max_tokens=100))
        await in_thread(started.runner.entered)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), timeout=0.001)
        started.runner.let_go()
        await read(started.engine, make_request("b", max_tokens=1))
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    with StartedEngine() as started:
        asyncio.run(scenario(started))
    assert list(started.witness.ends.items()) == [("a", "abort"), ("b", "length")]


def test_abort_of_a_request_whose_submission_is_still_in_the_queue() -> None:
    async def scenario(started: StartedEngine) -> None:
        started.runner.hold()
        busy = asyncio.create_task(read(started.engine, make_request("busy", max_tokens=3)))
        await in_thread(started.runner.entered)
        early = asyncio.create_task(read(started.engine, make_request("early", max_tokens=3)))
        await asyncio.sleep(0)
        started.engine.abort(RequestId("early"))
        started.runner.let_go()
        _, last = await early
        assert last.finish_reason is FinishReason.ABORT
        await busy

    with StartedEngine() as started:
        asyncio.run(scenario(started))
    assert started.witness.ends == {"busy": "length", "early": "abort"}


def test_dropped_stream_aborts_its_request() -> None:
    async def scenario(started: StartedEngine) -> None:
        started.runner.hold()
        stream = await started.engine.submit(make_request("a", max_tokens=100))
        await in_thread(started.runner.entered)
        del stream
        gc.collect()
        started.runner.let_go()
        await read(started.engine, make_request("b", max_tokens=1))

    with StartedEngine() as started:
        asyncio.run(scenario(started))
    assert started.witness.ends == {"a": "abort", "b": "length"}


def test_abort_wins_over_the_step_that_computes_the_last_token() -> None:
    async def scenario(started: StartedEngine) -> None:
        started.runner.hold()
        stream = await started.engine.submit(make_request("a", max_tokens=1))
        await in_thread(started.runner.entered)
        started.engine.abort(RequestId("a"))
        started.runner.let(1)
        updates = [update async for update in stream]
        assert [(update.new_token_ids, update.finish_reason) for update in updates] == [([], FinishReason.ABORT)]
        started.runner.let_go()

    with StartedEngine() as started:
        asyncio.run(scenario(started))
    assert started.witness.ends == {"a": "abort"}


def test_request_cancelled_before_it_was_admitted_never_runs() -> None:
    async def scenario(started: StartedEngine) -> None:
        started.runner.hold()
        busy = asyncio.create_task(read(started.engine, make_request("busy", max_tokens=3)))
        await in_thread(started.runner.entered)
        ghost = asyncio.create_task(started.engine.submit(make_request("ghost")))
        await asyncio.sleep(0)  # the submission is in the queue, the engine thread is in the runner
        ghost.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ghost
        started.runner.let_go()
        await busy

    with StartedEngine() as started:
        asyncio.run(scenario(started))
    assert started.witness.ends == {"busy": "length", "ghost": "abort"}
    assert all(chunk.request_id != "ghost" for record in started.witness.records for chunk in record.chunks)


def test_ids_that_begin_alike_are_different_requests() -> None:
    async def scenario(started: StartedEngine) -> None:
        started.runner.hold()
        names = ("batch_1", "batch_10")
        streams = await asyncio.gather(*(started.engine.submit(make_request(name, max_tokens=5)) for name in names))
        await in_thread(started.runner.entered)
        started.engine.abort(RequestId("batch_1"))
        started.engine.abort(RequestId("batch"))
        started.runner.let_go()
        for stream in streams:
            async for _ in stream:
                pass

    with StartedEngine() as started:
        asyncio.run(scenario(started))
    assert started.witness.ends == {"batch_1": "abort", "batch_10": "length"}


def test_finish_ends_with_its_reason() -> None:
    async def scenario(started: StartedEngine) -> None:
        started.runner.hold()
        stream = await started.engine.submit(make_request("a", max_tokens=100))
        await in_thread(started.runner.entered)
        started.engine.finish(RequestId("a"), FinishReason.STOP)
        started.engine.abort(RequestId("a"))
        started.runner.let_go()
        assert [update.finish_reason async for update in stream][-1] is FinishReason.STOP

    with StartedEngine() as started:
        asyncio.run(scenario(started))
    assert started.witness.ends == {"a": "stop"}


def test_refused_requests_raise_at_submit() -> None:
    async def scenario(started: StartedEngine) -> None:
        engine = started.engine
        with pytest.raises(PromptTooLongError):
            await engine.submit(make_request("long", 10_000))
        started.runner.hold()
        streams = [await engine.submit(make_request("a"))]
        await in_thread(started.runner.entered)
        started.runner.let(1)
        with pytest.raises(InvalidRequestError, match="'a'"):
            await engine.submit(make_request("a"))
        await in_thread(started.runner.entered)
        waiting = asyncio.create_task(engine.submit(make_request("b")))
        refused = asyncio.create_task(engine.submit(make_request("c")))
        await asyncio.sleep(0)
        started.runner.let_go()
        streams.append(await waiting)
        with pytest.raises(QueueFullError):
            await refused
        for stream in streams:
            async for _ in stream:
                pass

    with StartedEngine(make_scheduler(max_num_seqs=1, max_num_queued_reqs=1)) as started:
        asyncio.run(scenario(started))
    assert started.witness.ends == {"a": "length", "b": "length"}
    assert [request.id for request, _ in started.witness.rejected] == ["long", "a", "c"]


def test_submit_all_takes_all_or_none() -> None:
    async def scenario(started: StartedEngine) -> None:
        with pytest.raises(PromptTooLongError):
            await started.engine.submit_all([make_request("a"), make_request("b", 10_000)])
        ends: dict[str, int] = {}
        requests = [make_request(f"c{i}", max_tokens=2 + i) for i in range(3)]
        async for updates in await started.engine.submit_all(requests):
            for update in updates:
                ends[update.request_id] = ends.get(update.request_id, 0) + len(update.new_token_ids)
        assert ends == {"c0": 2, "c1": 3, "c2": 4}

    with StartedEngine() as started:
        asyncio.run(scenario(started))
    assert started.witness.ends == {"a": "abort", "c0": "length", "c1": "length", "c2": "length"}


def test_slow_reader_finds_merged_updates() -> None:
    async def scenario(started: StartedEngine) -> None:
        slow_request = make_request("slow", max_tokens=6, logprobs=0)
        slow = await started.engine.submit(slow_request)
        await read(started.engine, make_request("quick", max_tokens=20))
        updates = [update async for update in slow]
        assert len(updates) == 1
        assert updates[0].new_token_ids == expected_tokens(slow_request)
        assert [entry.token_id for entry in updates[0].logprobs or ()] == expected_tokens(slow_request)
        assert updates[0].finish_reason is FinishReason.LENGTH

    with StartedEngine() as started:
        asyncio.run(scenario(started))


def test_news_of_a_step_cross_to_the_event_loop_in_one_call() -> None:
    async def scenario(started: StartedEngine) -> int:
        loop = asyncio.get_running_loop()
        started.runner.hold()
        stream = await started.engine.submit_all([make_request(f"r{i}", max_tokens=10) for i in range(16)])
        await in_thread(started.runner.entered)
        num_calls = 0
        original = loop.call_soon_threadsafe

        def counting(*args: object, **kwargs: object) -> asyncio.Handle:
            nonlocal num_calls
            num_calls += 1
            return original(*args, **kwargs)  # type: ignore[arg-type]

        loop.call_soon_threadsafe = counting  # type: ignore[assignment]
        started.runner.let_go()
        async for _ in stream:
            pass
        loop.call_soon_threadsafe = original  # type: ignore[method-assign]
        return num_calls

    with StartedEngine() as started:
        num_calls = asyncio.run(scenario(started))
    num_steps = sum(1 for record in started.witness.records if record.chunks)
    assert num_steps >= 10
    assert num_calls == num_steps


def test_runner_that_raises_in_one_step_costs_that_batch_and_no_more() -> None:
    async def scenario(started: StartedEngine) -> None:
        _, last = await read(started.engine, make_request("bad"))
        assert last.finish_reason is FinishReason.ERROR
        assert "bad weights" in (last.error or "")
        good = make_request("good")
        tokens, last = await read(started.engine, good)
        assert tokens == expected_tokens(good)
        assert started.engine.health().alive

    runner = FakeRunner(lambda batch: RuntimeError("bad weights") if runner.num_steps == 1 else None)
    with StartedEngine(runner=runner) as started:
        asyncio.run(scenario(started))
    assert_all_free(started.scheduler)


def test_runner_that_always_raises_turns_health_red_until_a_step_succeeds() -> None:
    async def scenario(started: StartedEngine) -> None:
        for i in range(3):
            assert started.engine.health().alive
            await read(started.engine, make_request(f"bad{i}"))
        health = started.engine.health()
        assert not health.alive
        assert "no device" in (health.reason or "")
        broken.clear()
        await read(started.engine, make_request("good"))
        assert started.engine.health().alive

    broken = threading.Event()
    broken.set()
    with StartedEngine(runner=FakeRunner(lambda batch: OSError("no device") if broken.is_set() else None)) as started:
        asyncio.run(scenario(started))


class BuggyScheduler(Scheduler):
    """Breaks after the third step was scheduled or updated; ``stays_broken``: its invariants fail from then on."""

    breaks_in = "schedule"
    stays_broken = False
    num_calls = 0

    def schedule(self, now: float) -> Batch:
        batch = super().schedule(now)
        self.num_calls += 1
        assert self.num_calls != 3 or self.breaks_in != "schedule", "free + used = total"
        return batch

    def update(self, batch: Batch, output: StepOutput, now: float) -> list[RequestUpdate]:
        updates = super().update(batch, output, now)
        assert self.num_calls != 3 or self.breaks_in != "update", "free + used = total"
        return updates

    def check_invariants(self) -> None:
        assert not self.stays_broken, "still broken"
        super().check_invariants()


@pytest.mark.parametrize("stays_broken", [False, True])
@pytest.mark.parametrize("breaks_in", ["schedule", "update"])
def test_bug_in_the_scheduler_gives_every_client_an_answer(breaks_in: str, stays_broken: bool) -> None:
    async def scenario(started: StartedEngine) -> None:
        # The release of the short one is in the lost batch; a runner that never hears of it keeps its seat taken.
        requests = [make_request("short", max_tokens=2), *(make_request(f"r{i}", max_tokens=9) for i in range(4))]
        ends: dict[str, FinishReason | None] = {}
        async for updates in await started.engine.submit_all(requests):
            ends.update((update.request_id, update.finish_reason) for update in updates)
        assert ends.pop("short") is FinishReason.LENGTH
        assert set(ends.values()) == {FinishReason.ERROR}
        if stays_broken:
            with pytest.raises(EngineStoppedError, match=r"free \+ used"):
                await read(started.engine, make_request("late"))
            await asyncio.to_thread(started.engine.stop)
            assert not started.engine.health().alive
            assert "free + used" in (started.engine.health().reason or "")
        else:
            late = [make_request(f"late{i}") for i in range(8)]
            results = await asyncio.gather(*(read(started.engine, request) for request in late))
            assert [tokens for tokens, _ in results] == [expected_tokens(request) for request in late]
            assert started.engine.health().alive

    scheduler = BuggyScheduler(make_scheduler(max_num_seqs=8).config)
    scheduler.breaks_in, scheduler.stays_broken = breaks_in, stays_broken
    with StartedEngine(scheduler) as started:
        asyncio.run(scenario(started))
    assert started.runner.is_closed
    assert Counter(started.witness.ends.values())["error"] == 4


def test_stop_aborts_outstanding_work_and_refuses_more() -> None:
    async def scenario(started: StartedEngine) -> None:
        started.runner.hold()
        reading = asyncio.create_task(read(started.engine, make_request("a", max_tokens=500)))
        await in_thread(started.runner.entered)
        stopping = asyncio.create_task(asyncio.to_thread(started.engine.stop))
        late: list[asyncio.Task[RequestStream]] = []
        while not late or not late[-1].done():  # until one is refused at once; those before wait for the engine thread
            late.append(asyncio.create_task(started.engine.submit(make_request(f"late{len(late)}"))))
            await asyncio.sleep(0)
        started.runner.let_go()
        await stopping
        _, last = await reading
        assert last.finish_reason is FinishReason.ABORT
        for submission in late:
            with pytest.raises(EngineStoppedError):
                await submission
        with pytest.raises(EngineStoppedError):
            await started.engine.submit(make_request("later"))
        with pytest.raises(EngineStoppedError):
            await started.engine.explain(RequestId("a"))
        assert not started.engine.health().alive

    with StartedEngine() as started:
        asyncio.run(scenario(started))
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

    with StartedEngine() as started:
        asyncio.run(scenario(started))


def test_engine_that_was_never_started_refuses_and_stops() -> None:
    async def scenario(engine: Engine) -> None:
        with pytest.raises(EngineStoppedError, match="not started"):
            await engine.submit(make_request("a"))

    engine = Engine(make_scheduler(), FakeRunner())
    assert not engine.health().alive
    asyncio.run(scenario(engine))
    engine.stop()


def test_reader_whose_event_loop_is_closed_counts_as_gone() -> None:
    async def abandon(started: StartedEngine) -> None:
        started.runner.hold()
        streams.append(await started.engine.submit(make_request("a", max_tokens=500)))
        await in_thread(started.runner.entered)

    async def live_on(started: StartedEngine) -> None:
        await read(started.engine, make_request("b", max_tokens=2))

    streams: list[object] = []
    with StartedEngine() as started:
        asyncio.run(abandon(started))
        started.runner.let_go()
        asyncio.run(live_on(started))
    assert list(started.witness.ends.items()) == [("a", "abort"), ("b", "length")]


def test_health_turns_red_when_a_step_hangs_and_green_when_it_goes_on() -> None:
    async def scenario(started: StartedEngine, clock: VirtualClock) -> None:
        clock.advance(100.0)
        assert started.engine.health().alive, "idle is not stalled"
        started.runner.hold()
        reading = asyncio.create_task(read(started.engine, make_request("a", max_tokens=2)))
        await in_thread(started.runner.entered)
        clock.advance(9.0)
        assert started.engine.health().alive
        clock.advance(1.5)
        health = started.engine.health()
        assert not health.alive
        assert health.stalled_for_s == pytest.approx(10.5)
        assert "10.5 s" in (health.reason or "")
        started.runner.let(1)
        await in_thread(started.runner.entered)
        assert started.engine.health().alive
        started.runner.let_go()
        await reading
        clock.advance(100.0)
        assert started.engine.health().alive

    clock = VirtualClock()
    with StartedEngine(clock=clock, stall_timeout_s=10.0) as started:
        asyncio.run(scenario(started, clock))


def test_a_batch_that_waits_to_be_full_is_no_stall() -> None:
    async def scenario(started: StartedEngine, clock: VirtualClock) -> None:
        first = asyncio.create_task(read(started.engine, make_request("a", max_tokens=2)))
        while await started.engine.explain(RequestId("a")) is None:
            await asyncio.sleep(0)
        # The answer to a second question comes after a step that found the batch incomplete.
        await started.engine.explain(RequestId("a"))
        clock.advance(1000.0)
        assert started.engine.health().alive
        _, last = await read(started.engine, make_request("b", max_tokens=2))
        assert last.finish_reason is FinishReason.LENGTH
        await first

    clock = VirtualClock()
    scheduler = make_scheduler(batching="static", batch_size=2, max_num_seqs=2)
    with StartedEngine(scheduler, clock=clock, stall_timeout_s=10.0) as started:
        asyncio.run(scenario(started, clock))


def test_explain_stats_and_records_answer_while_a_request_runs() -> None:
    async def scenario(started: StartedEngine) -> None:
        started.runner.hold()
        reading = asyncio.create_task(read(started.engine, make_request("a", max_tokens=3)))
        await in_thread(started.runner.entered)
        question = asyncio.create_task(started.engine.explain(RequestId("a")))
        await asyncio.sleep(0)
        started.runner.let(1)
        explanation = await question
        assert explanation is not None
        assert (explanation.request_id, explanation.seat) == ("a", 0)
        assert started.engine.stats().num_running == 1
        started.runner.let_go()
        await reading
        assert await started.engine.explain(RequestId("a")) is None
        assert await started.engine.reset_prefix_cache()
        records = started.engine.step_records()
        assert [record.step for record in records] == [record.step for record in started.witness.records]
        assert started.engine.step_records(since=records[0].step, limit=1) == records[-1:]

    with StartedEngine() as started:
        asyncio.run(scenario(started))


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
        return await asked[0], await asked[1]

    interrupter = Interrupter()
    engine = Engine(make_scheduler(), FakeRunner(), sinks=[interrupter])
    engine.start()
    try:
        assert asyncio.run(scenario()) == (None, True)
    finally:
        engine.stop()


def test_batching_mode_that_waits_for_company_starts_without_it_in_time() -> None:
    async def scenario(started: StartedEngine) -> None:
        request = make_request("alone", max_tokens=3)
        request.arrived_at = started.engine.clock.now()
        tokens, _ = await read(started.engine, request)
        assert tokens == expected_tokens(request)

    with StartedEngine(make_scheduler(batching="dynamic", max_delay_ms=20.0)) as started:
        asyncio.run(scenario(started))
    num_fruitless = sum(1 for record in started.witness.records if not record.chunks)
    assert num_fruitless <= 5, "it sleeps until the delay is over"


def test_idle_engine_sleeps() -> None:
    """Between requests the thread runs no step and takes no turn: it waits in the queue."""

    async def scenario(started: StartedEngine) -> None:
        await read(started.engine, make_request("a", max_tokens=2))
        await started.engine.reset_prefix_cache()  # has gone through the queue: the thread sleeps again
        turns = clock.num_calls
        await asyncio.to_thread(threading.Event().wait, 0.05)
        assert clock.num_calls == turns

    class CountingClock(VirtualClock):
        num_calls = 0

        def now(self) -> float:
            self.num_calls += 1
            return super().now()

    clock = CountingClock()
    with StartedEngine(clock=clock) as started:
        asyncio.run(scenario(started))


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
