"""The line of statistics: its numbers, and when it is silent."""

from __future__ import annotations

import pytest

from engine.fakes import make_request, make_scheduler
from hotseat.telemetry import StatsLog
from telemetry.test_metrics import Setting


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO", "hotseat.stats")
    return caplog


def test_a_line_has_what_happened_since_the_last_one(logged: pytest.LogCaptureFixture) -> None:
    setting = Setting(make_scheduler(max_num_seqs=1, block_size=4, num_kv_blocks=100))
    log = StatsLog(setting.metrics)
    log.tick(0.0)
    setting.add(make_request("a", range(40), max_tokens=200), make_request("b", range(40), max_tokens=200))
    for _ in range(20):
        setting.loop.step()
    log.tick(9.9)
    assert logged.messages == []
    log.tick(10.0)
    assert logged.messages == [
        "Avg prompt throughput: 4.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 1 reqs, "
        "Waiting: 1 reqs, KV cache usage: 15.0%, Prefix cache hit rate: 0.0%"
    ]
    setting.loop.abort(setting.loop.request_ids[0])
    for _ in range(10):
        setting.loop.step()
    log.tick(30.0)
    assert logged.messages[1] == (
        "Avg prompt throughput: 2.0 tokens/s, Avg generation throughput: 0.5 tokens/s, Running: 1 reqs, "
        "Waiting: 0 reqs, KV cache usage: 13.0%, Prefix cache hit rate: 97.5%"
    )


def test_it_is_silent_while_nothing_happens_and_tells_the_end_of_what_did(logged: pytest.LogCaptureFixture) -> None:
    setting = Setting()
    log = StatsLog(setting.metrics)
    for second in range(40):
        log.tick(float(second))
    setting.add(make_request("a", max_tokens=20))
    setting.run()
    for second in range(40, 100):
        log.tick(float(second))
    (line,) = logged.messages
    assert "generation throughput: 2.0 tokens/s, Running: 0 reqs" in line


def test_a_stall_is_told(logged: pytest.LogCaptureFixture) -> None:
    setting = Setting()
    log = StatsLog(setting.metrics)
    setting.add(make_request("a", max_tokens=20))
    for second in range(21):
        log.tick(float(second))
    assert [("Waiting: 1 reqs" in line, "generation throughput: 0.0" in line) for line in logged.messages] == [
        (True, True)
    ] * 2
