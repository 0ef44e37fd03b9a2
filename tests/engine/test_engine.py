"""The engine with its thread, read from an event loop: streams, aborts, refusals."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter

import pytest

from engine.fakes import (
    FakeRunner,
    StartedEngine,
    assert_all_free,
    expected_tokens,
    in_thread,
    make_request,
    make_scheduler,
    read,
)
from hotseat.core.request import FinishReason, Request, RequestId
from hotseat.engine import Engine
from hotseat.errors import InvalidRequestError, PromptTooLongError, QueueFullError


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
        stream = await engine.submit([request])
        async for (update,) in stream:
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
    started = StartedEngine(scheduler).run(scenario)
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

    started = StartedEngine().run(scenario)
    assert started.witness.ends == {"a": "abort", "b": "length"}


def test_cancelled_wait_aborts_though_somebody_keeps_the_stream() -> None:
    async def scenario(started: StartedEngine) -> None:
        started.runner.hold()
        stream = await started.engine.submit([make_request("a", max_tokens=100)])
        await in_thread(started.runner.entered)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), timeout=0.001)
        started.runner.let_go()
        await read(started.engine, make_request("b", max_tokens=1))
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    started = StartedEngine().run(scenario)
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

    started = StartedEngine().run(scenario)
    assert started.witness.ends == {"busy": "length", "early": "abort"}


def test_dropped_stream_aborts_its_request() -> None:
    async def scenario(started: StartedEngine) -> None:
        started.runner.hold()
        stream = await started.engine.submit([make_request("a", max_tokens=100)])
        await in_thread(started.runner.entered)
        del stream
        gc.collect()
        started.runner.let_go()
        await read(started.engine, make_request("b", max_tokens=1))

    started = StartedEngine().run(scenario)
    assert started.witness.ends == {"a": "abort", "b": "length"}


def test_abort_wins_over_the_step_that_computes_the_last_token() -> None:
    async def scenario(started: StartedEngine) -> None:
        started.runner.hold()
        stream = await started.engine.submit([make_request("a", max_tokens=1)])
        await in_thread(started.runner.entered)
        started.engine.abort(RequestId("a"))
        started.runner.let(1)
        updates = [update async for (update,) in stream]
        assert [(update.new_token_ids, update.finish_reason) for update in updates] == [([], FinishReason.ABORT)]
        started.runner.let_go()

    started = StartedEngine().run(scenario)
    assert started.witness.ends == {"a": "abort"}


def test_request_cancelled_before_it_was_admitted_never_runs() -> None:
    async def scenario(started: StartedEngine) -> None:
        started.runner.hold()
        busy = asyncio.create_task(read(started.engine, make_request("busy", max_tokens=3)))
        await in_thread(started.runner.entered)
        ghost = asyncio.create_task(started.engine.submit([make_request("ghost")]))
        await asyncio.sleep(0)  # the submission is in the queue, the engine thread is in the runner
        ghost.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ghost
        started.runner.let_go()
        await busy

    started = StartedEngine().run(scenario)
    assert started.witness.ends == {"busy": "length", "ghost": "abort"}
    assert all(chunk.request_id != "ghost" for record in started.witness.records for chunk in record.chunks)


def test_ids_that_begin_alike_are_different_requests() -> None:
    async def scenario(started: StartedEngine) -> None:
        started.runner.hold()
        names = ("batch_1", "batch_10")
        streams = await asyncio.gather(*(started.engine.submit([make_request(name, max_tokens=5)]) for name in names))
        await in_thread(started.runner.entered)
        started.engine.abort(RequestId("batch_1"))
        started.engine.abort(RequestId("batch"))
        started.runner.let_go()
        for stream in streams:
            async for _ in stream:
                pass

    started = StartedEngine().run(scenario)
    assert started.witness.ends == {"batch_1": "abort", "batch_10": "length"}


def test_finish_ends_with_its_reason() -> None:
    async def scenario(started: StartedEngine) -> None:
        started.runner.hold()
        stream = await started.engine.submit([make_request("a", max_tokens=100)])
        await in_thread(started.runner.entered)
        started.engine.finish(RequestId("a"), FinishReason.STOP)
        started.engine.abort(RequestId("a"))
        started.runner.let_go()
        assert [update.finish_reason async for (update,) in stream][-1] is FinishReason.STOP

    started = StartedEngine().run(scenario)
    assert started.witness.ends == {"a": "stop"}


def test_refused_requests_raise_at_submit() -> None:
    async def scenario(started: StartedEngine) -> None:
        engine = started.engine
        with pytest.raises(PromptTooLongError):
            await engine.submit([make_request("long", 10_000)])
        started.runner.hold()
        streams = [await engine.submit([make_request("a")])]
        await in_thread(started.runner.entered)
        started.runner.let(1)
        with pytest.raises(InvalidRequestError, match="'a'"):
            await engine.submit([make_request("a")])
        await in_thread(started.runner.entered)
        waiting = asyncio.create_task(engine.submit([make_request("b")]))
        refused = asyncio.create_task(engine.submit([make_request("c")]))
        await asyncio.sleep(0)
        started.runner.let_go()
        streams.append(await waiting)
        with pytest.raises(QueueFullError):
            await refused
        for stream in streams:
            async for _ in stream:
                pass

    started = StartedEngine(make_scheduler(max_num_seqs=1, max_num_queued_reqs=1)).run(scenario)
    assert started.witness.ends == {"a": "length", "b": "length"}
    assert [request.id for request, _ in started.witness.rejected] == ["long", "a", "c"]


def test_submit_all_takes_all_or_none() -> None:
    async def scenario(started: StartedEngine) -> None:
        with pytest.raises(PromptTooLongError):
            await started.engine.submit([make_request("a"), make_request("b", 10_000)])
        ends: dict[str, int] = {}
        requests = [make_request(f"c{i}", max_tokens=2 + i) for i in range(3)]
        async for updates in await started.engine.submit(requests):
            for update in updates:
                ends[update.request_id] = ends.get(update.request_id, 0) + len(update.new_token_ids)
        assert ends == {"c0": 2, "c1": 3, "c2": 4}

    started = StartedEngine().run(scenario)
    assert started.witness.ends == {"a": "abort", "c0": "length", "c1": "length", "c2": "length"}


def test_slow_reader_finds_merged_updates() -> None:
    async def scenario(started: StartedEngine) -> None:
        slow_request = make_request("slow", max_tokens=6, logprobs=0)
        slow = await started.engine.submit([slow_request])
        await read(started.engine, make_request("quick", max_tokens=20))
        updates = [update async for (update,) in slow]
        assert len(updates) == 1
        assert updates[0].new_token_ids == expected_tokens(slow_request)
        assert [entry.token_id for entry in updates[0].logprobs or ()] == expected_tokens(slow_request)
        assert updates[0].finish_reason is FinishReason.LENGTH

    StartedEngine().run(scenario)


def test_news_of_a_step_cross_to_the_event_loop_in_one_call() -> None:
    async def scenario(started: StartedEngine) -> int:
        loop = asyncio.get_running_loop()
        started.runner.hold()
        stream = await started.engine.submit([make_request(f"r{i}", max_tokens=10) for i in range(16)])
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
