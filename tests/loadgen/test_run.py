import asyncio
import json
from itertools import pairwise

import pytest

from hotseat.errors import HotseatError
from hotseat.loadgen import BenchConfig, measure, run
from hotseat.loadgen.measure import Measurement
from loadgen.fake_server import FakeServer


def measured(server: FakeServer, **options: object) -> Measurement:
    async def both() -> Measurement:
        async with server.running():
            return await measure(BenchConfig(url=server.url, **{"num_prompts": 6, "output_len": "3-9"} | options))

    return asyncio.run(both())


@pytest.mark.parametrize(("endpoint", "path"), [("chat", "/v1/chat/completions"), ("completions", "/v1/completions")])
def test_every_request_is_sent_and_its_tokens_are_counted(endpoint: str, path: str) -> None:
    server = FakeServer()
    summary = measured(server, endpoint=endpoint).summary
    assert (summary.completed, summary.failed) == (6, 0)
    assert {body["path"] for body in server.bodies} == {path}
    assert summary.num_output_tokens == sum(body["max_tokens"] for body in server.bodies)
    assert summary.num_prompt_tokens == 6 * 11
    assert summary.num_cached_tokens == 6 * 3
    assert summary.counted_by_server


def test_the_request_asks_for_what_a_measurement_needs() -> None:
    server = FakeServer()
    measured(server, num_prompts=1, temperature=0.5, extra_body='{"top_k": 3, "stream": true}')
    (body,) = server.bodies
    assert body["model"] == "fake"
    assert body["stream_options"] == {"include_usage": True}
    assert body["ignore_eos"] is True
    assert (body["temperature"], body["top_k"]) == (0.5, 3)


def test_times_of_a_request_are_in_order() -> None:
    for result in measured(FakeServer()).results:
        times = [result.sent_at, *result.chunk_times]
        assert all(sooner <= later for sooner, later in pairwise(times))
        assert 0 < result.ttft_s <= result.latency_s


def test_an_opening_chunk_without_text_is_not_a_first_token() -> None:
    server = FakeServer()
    measurement = measured(server)
    counts = sorted(len(result.chunk_times) for result in measurement.results)
    assert counts == sorted(body["max_tokens"] for body in server.bodies)


def test_closed_loop_never_has_more_in_flight_than_asked_for() -> None:
    server = FakeServer()
    summary = measured(server, num_prompts=12, max_concurrency=3).summary
    assert summary.completed == 12
    assert server.peak <= 3
    assert server.num_connections <= 3


def test_all_at_once_really_is_at_once() -> None:
    server = FakeServer(gather=6)  # it answers none before all six are there
    summary = measured(server).summary
    assert server.peak == summary.peak_concurrency == 6


def test_connections_are_kept_alive() -> None:
    server = FakeServer()
    measured(server, num_prompts=8, max_concurrency=1)
    assert server.num_connections == 1


def test_a_connection_that_the_server_closed_while_idle_is_replaced() -> None:
    server = FakeServer(hangs_up_after=1)
    summary = measured(server, num_prompts=5, max_concurrency=1).summary
    assert (summary.completed, summary.failed) == (5, 0)


def test_failures_are_counted_and_named_and_leave_the_rest_alone() -> None:
    server = FakeServer(behaviour={0: "error", 2: "hang_up", 3: "stream_error", 4: "error"})
    summary = measured(server, max_concurrency=1).summary
    assert (summary.completed, summary.failed) == (2, 4)
    assert summary.errors["HTTP 503: the queue is full"] == 2
    assert any("hung up" in message for message in summary.errors)
    assert any("it broke" in message for message in summary.errors)
    done = [body["max_tokens"] for index, body in enumerate(server.bodies) if index not in (0, 2, 3, 4)]
    assert summary.num_output_tokens == sum(done)


def test_without_usage_chunks_are_counted_and_the_summary_says_so() -> None:
    server = FakeServer(sends_usage=False)
    summary = measured(server).summary
    assert not summary.counted_by_server
    assert summary.num_output_tokens == sum(body["max_tokens"] for body in server.bodies)


def test_warm_up_requests_are_sent_but_not_measured() -> None:
    server = FakeServer()
    measurement = measured(server, num_warmups=2)
    assert len(server.bodies) == 8
    assert measurement.summary.completed == len(measurement.results) == 6


def test_a_request_that_takes_too_long_has_failed() -> None:
    summary = measured(FakeServer(gather=100), num_prompts=1, timeout_s=0.05).summary
    assert (summary.completed, summary.failed) == (0, 1)
    assert "0.05 s" in next(iter(summary.errors))


def test_poisson_arrivals_send_everything_in_order() -> None:
    results = measured(FakeServer(), num_prompts=10, request_rate=50.0).results
    sent = [result.sent_at for result in results]
    assert sent == sorted(sent)


def test_no_server_is_a_plain_error() -> None:
    with pytest.raises(HotseatError, match="no server answers"):
        asyncio.run(measure(BenchConfig(url="http://127.0.0.1:9")))


def test_run_prints_a_table_and_writes_a_report(tmp_path, capsys) -> None:
    path = tmp_path / "report.json"

    async def both() -> tuple[int, FakeServer]:
        server = FakeServer(behaviour={1: "error"})
        async with server.running():
            config = BenchConfig(
                url=server.url, num_prompts=4, max_concurrency=2, output_json=str(path), api_key="secret"
            )
            return await asyncio.to_thread(run, config, command="hotseat bench serve"), server

    status, _ = asyncio.run(both())
    assert status == 1, "a failed request is a failed run"
    printed = capsys.readouterr().out
    assert "3 completed, 1 failed" in printed
    assert "failed 1x: HTTP 503: the queue is full" in printed
    report = json.loads(path.read_text())
    assert report["command"] == "hotseat bench serve"
    assert report["server"] == {"version": "7"}
    assert report["machine"]["num_cores"] >= 1
    assert report["config"]["request_rate"] is None
    assert len(report["requests"]) == 4
    assert "secret" not in path.read_text()
    sent_and_done = [(entry["sent_s"], entry["chunks_s"]) for entry in report["requests"] if entry["error"] is None]
    assert all(sent <= chunks[0] <= chunks[-1] for sent, chunks in sent_and_done)


def test_a_run_in_which_all_failed_says_why_and_prints_no_table(capsys) -> None:
    server = FakeServer(behaviour={0: "error", 1: "error"})

    async def both() -> int:
        async with server.running():
            return await asyncio.to_thread(run, BenchConfig(url=server.url, num_prompts=2), command="")

    assert asyncio.run(both()) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"all requests to fake at {server.url} failed:\nfailed 2x: HTTP 503: the queue is full\n"
