"""How answers end before their time: clients that leave, aborts, failures, shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from hotseat.server import ServerConfig
from hotseat.server.state import shutting_down
from server.fakes import TIMEOUT_S, FakeRunner, FakeServer, chat, completion

PATHS = [("/v1/completions", completion), ("/v1/chat/completions", chat)]


def long(make: Callable[..., dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """Return a request that runs for a while."""
    return make(**{"max_tokens": 400, **fields})


def check_nothing_is_left(server: FakeServer) -> None:
    """The server still works, and then every seat and block is free."""
    assert server.post("/v1/completions", completion()).status == 200
    assert server.run(server.engine.reset_prefix_cache()), "no block is in use"
    stats = server.engine.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert len(server.in_flight) == 0


@pytest.mark.parametrize(("path", "make"), PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_a_running_request_of_a_client_that_leaves_is_aborted(
    server: FakeServer, path: str, make: Callable[..., dict[str, Any]], stream: bool, n: int
) -> None:
    async def leave() -> None:
        server.runner.hold()
        exchange, task = server.start_post(path, long(make, stream=stream, n=n))
        await server.runner.until_entered()
        exchange.left.set()
        server.runner.release()
        await task

    server.run(leave())
    check_nothing_is_left(server)


def test_a_stream_that_is_left_in_its_middle_is_aborted(server: FakeServer) -> None:
    async def leave() -> bytes:
        server.runner.hold()
        exchange, task = server.start_post("/v1/completions", long(completion, stream=True))
        server.runner.step()
        await exchange.written.wait()
        exchange.left.set()
        await task
        server.runner.release()
        return exchange.body

    assert server.run(leave()).count(b"data:") == 1
    assert server.runner.released.get(timeout=TIMEOUT_S)
    check_nothing_is_left(server)


def test_a_queued_request_of_a_client_that_leaves_ends_alone(start: Callable[..., FakeServer]) -> None:
    server = start(max_num_seqs=1)

    async def leave() -> tuple[int, int]:
        server.runner.hold()
        running, first = server.start_post("/v1/completions", completion(max_tokens=50))
        await server.runner.until_entered()
        queued, second = server.start_post("/v1/completions", completion(max_tokens=50))
        await asyncio.sleep(0)
        queued.left.set()
        await second
        server.runner.release()
        await first
        return running.status, queued.status

    assert server.run(leave()) == (200, 0)
    assert sum(len(record.chunks) for record in server.engine.step_records()) <= 50
    check_nothing_is_left(server)


@pytest.mark.parametrize(("path", "make"), PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_an_aborted_answer_ends_with_the_reason_abort(
    server: FakeServer, path: str, make: Callable[..., dict[str, Any]], stream: bool
) -> None:
    async def abort() -> list[Any]:
        server.runner.hold()
        exchange, task = server.start_post(path, long(make, stream=stream, n=2))
        await server.runner.until_entered()
        ((answer_id, _),) = server.in_flight.items()
        wrong_ids = [answer_id[:-1], answer_id + "0", answer_id.upper()]
        asked = asyncio.create_task(post(server, "/abort_requests", {"request_ids": wrong_ids}))
        while not asked.done():
            server.runner.step()  # the engine answers between two steps
            await server.runner.until_entered()
        missing = await asked
        found = await post(server, "/abort_requests", {"request_ids": [answer_id]})
        server.runner.release()
        await task
        assert missing == {"aborted": [], "not_found": wrong_ids}
        assert found == {"aborted": [answer_id], "not_found": []}
        reply = exchange.reply()
        return reply.events() if stream else [reply.json()]

    choices = [choice for event in server.run(abort()) for choice in event["choices"]]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert reasons == ["abort", "abort"]
    check_nothing_is_left(server)


async def post(server: FakeServer, path: str, body: Any) -> Any:
    exchange, task = server.start_post(path, body)
    await task
    return exchange.reply().json()


@pytest.mark.parametrize("stream", [False, True])
def test_a_failed_step_is_500_before_the_headers(start: Callable[..., FakeServer], stream: bool) -> None:
    server = start(runner=FakeRunner(fails=True))
    reply = server.post("/v1/completions", completion(stream=stream))
    assert reply.status == 500
    assert reply.headers["x-should-retry"] == "false"
    server.runner.fails = False
    check_nothing_is_left(server)


@pytest.mark.parametrize(("path", "make"), PATHS)
def test_a_failure_within_a_stream_is_an_event_and_then_done(
    server: FakeServer, path: str, make: Callable[..., dict[str, Any]]
) -> None:
    async def fail() -> list[Any]:
        server.runner.hold()
        exchange, task = server.start_post(path, long(make, stream=True))
        server.runner.step()
        await exchange.written.wait()
        server.runner.fails = True
        server.runner.release()
        await task
        assert exchange.status == 200
        return exchange.reply().events()

    events = server.run(fail())
    assert events[-1]["error"]["code"] == 500
    assert all("error" not in event for event in events[:-1])
    server.runner.fails = False
    check_nothing_is_left(server)


@pytest.mark.parametrize("stream", [False, True])
def test_at_shutdown_the_rest_is_told_and_new_ones_are_refused(server: FakeServer, stream: bool) -> None:
    async def shut_down() -> list[Any]:
        server.runner.hold()
        exchange, task = server.start_post("/v1/completions", long(completion, stream=stream))
        server.runner.step()
        await (exchange.written.wait() if stream else server.runner.until_entered())
        server.in_flight.refuses_new = True
        late, refused = server.start_post("/v1/completions", completion())
        await refused
        assert late.status == 503
        assert late.headers["retry-after"]
        server.in_flight.end_all(shutting_down())
        await task
        server.runner.release()
        assert exchange.status == (200 if stream else 503)
        return exchange.reply().events() if stream else [exchange.reply().json()]

    assert server.run(shut_down())[-1]["error"]["message"] == "The server is shutting down."
    assert server.get("/ready").status == 503
    assert server.get("/health").status == 200
    server.in_flight.refuses_new = False
    check_nothing_is_left(server)


def test_a_timed_out_request_gets_504(start: Callable[..., FakeServer]) -> None:
    server = start(request_timeout_s=1e-6)
    reply = server.post("/v1/completions", completion())
    assert reply.status == 504
    assert reply.error["type"] == "TimeoutError"


def test_a_silent_stream_is_kept_alive_by_comments(start: Callable[..., FakeServer]) -> None:
    server = start(config=ServerConfig(sse_keep_alive_interval_s=0.01))

    async def wait_long() -> bytes:
        server.runner.hold()
        exchange, task = server.start_post("/v1/completions", completion(stream=True))
        await exchange.written.wait()
        assert exchange.body.startswith(b": keep-alive\n\n")
        server.runner.release()
        await task
        return exchange.body

    body = server.run(wait_long())
    assert b"".join(part + b"\n\n" for part in body.split(b"\n\n") if part.startswith(b"data")).endswith(b"[DONE]\n\n")


def test_a_failure_after_a_keep_alive_is_an_event(start: Callable[..., FakeServer]) -> None:
    server = start(config=ServerConfig(sse_keep_alive_interval_s=0.01))

    async def wait_long() -> Any:
        server.runner.hold()
        exchange, task = server.start_post("/v1/completions", completion(stream=True))
        await exchange.written.wait()
        server.runner.fails = True
        server.runner.release()
        await task
        return exchange.reply().events()

    (event,) = server.run(wait_long())
    assert event["error"]["code"] == 500


def test_a_dead_engine_is_503_and_unhealthy(server: FakeServer) -> None:
    server.engine.stop()
    reply = server.post("/v1/completions", completion())
    assert reply.status == 503
    health = server.get("/health")
    assert health.status == 503
    assert health.json()["reason"]
    assert server.get("/ready").status == 503
