"""A record on a full disk ends with one line of the log; serving goes on."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from engine.fakes import StartedEngine, make_request, read
from hotseat.engine import Engine
from hotseat.telemetry import LineFile, RecordWriter, RequestWriter

FULL = Path("/dev/full")  # takes no byte

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")


def test_a_full_disk_ends_the_file_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), LineFile(FULL) as file:
        for _ in range(1000):
            file.write("x" * 100 + "\n")
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "/dev/full" in caplog.text
    assert "No space left" in caplog.text


def test_what_is_left_at_the_end_may_find_no_place_either(caplog: pytest.LogCaptureFixture) -> None:
    with LineFile(FULL) as file:
        file.write("short\n")
    assert caplog.text.count("No space left") == 1


def test_lines_are_written_where_there_is_room(tmp_path: Path) -> None:
    with LineFile(tmp_path / "lines") as file:
        file.write("one\n")
        file.write("two\n")
    assert (tmp_path / "lines").read_text() == "one\ntwo\n"
    file.close()
    file.write("late\n")
    assert (tmp_path / "lines").read_text() == "one\ntwo\n"


def test_requests_go_on_when_their_record_ends(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(engine: Engine) -> list[int]:
        return [len((await read(engine, make_request(f"r{number}", max_tokens=100)))[0]) for number in range(3)]

    with LineFile(FULL) as steps, LineFile(FULL) as requests:
        started = StartedEngine()
        started.engine = Engine(
            started.scheduler, started.runner, sinks=[RecordWriter(steps), RequestWriter(requests, 16)]
        )
        with started:
            assert asyncio.run(scenario(started.engine)) == [100] * 3
    assert caplog.text.count("No space left") == 2
    assert "Traceback" not in caplog.text
