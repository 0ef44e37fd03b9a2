"""``hotseat trace``: what the records say, read back by a library of others for the format."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import chrometrace
import pytest

from hotseat import cli

SIMULATED = [
    {"id": "a", "arrival_s": 0, "prompt_len": 90, "output_len": 40},
    {"id": "b", "arrival_s": 0.01, "prompt_len": 60, "output_len": 60},
    {"id": "c", "arrival_s": 0.02, "prompt_len": 50, "output_len": 50},
    {"id": "d", "arrival_s": 0.03, "prompt_len": 30, "output_len": 5},
    {"id": "e", "arrival_s": 0.04, "prompt_len": 30, "output_len": 1},
]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A minute of a small KV cache: requests queue, and are preempted."""
    folder = tmp_path_factory.mktemp("trace")
    (folder / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in SIMULATED))
    words = ["--num-kv-blocks", "14", "--max-num-seqs", "3", "--max-num-batched-tokens", "64"]
    path = folder / "steps.jsonl"
    assert cli.main(["simulate", str(folder / "requests.jsonl"), *words, "--record", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def events(records: Path) -> list[dict[str, Any]]:
    path = records.with_name("trace.json")
    assert cli.main(["trace", str(records), "-o", str(path)]) == 0
    document = json.loads(path.read_text())
    found: list[dict[str, Any]] = document["traceEvents"]
    return found


def steps(records: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in records.read_text().splitlines()]


def test_a_library_for_the_format_reads_every_event(events: list[dict[str, Any]]) -> None:
    phases = {kind.value for kind in chrometrace.TraceEventType} | {"i"}  # the small i took the place of the large one
    for event in events:
        apart = {name: event[name] for name in ("id", "bp") if name in event}  # of arrows, which it does not model
        read = chrometrace.TraceEvent.from_dict({k: v for k, v in event.items() if k not in apart})
        assert read.event_type in phases
        assert read.to_dict().items() >= {k: v for k, v in event.items() if k not in apart}.items()
        assert bool(apart) == (event["ph"] in "stf")


def test_there_is_a_slice_for_each_chunk_on_the_track_of_its_seat(events: list[dict[str, Any]], records: Path) -> None:
    chunks = Counter(
        (f"seat {chunk['seat']}", chunk["id"], chunk["phase"], chunk["start"], chunk["end"], record["step"])
        for record in steps(records)
        for chunk in record["scheduled"]
    )
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    slices = Counter(
        (tracks[e["tid"]], e["name"], e["cat"], e["args"]["start"], e["args"]["end"], e["args"]["step"])
        for e in events
        if e["ph"] == "X" and e["tid"]
    )
    assert slices == chunks
    assert len(tracks) == 4


def test_slices_of_a_track_do_not_overlap(events: list[dict[str, Any]]) -> None:
    for track in {event["tid"] for event in events} - {0}:
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == track)
        assert all(end <= begin + 0.01 for (_, end), (begin, _) in pairwise(spans))


def test_an_arrow_leads_from_the_first_chunk_of_a_request_to_its_last(events: list[dict[str, Any]]) -> None:
    slices = {(e["tid"], e["ts"], e["name"]) for e in events if e["ph"] == "X"}
    by_id: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] in "stf":
            by_id.setdefault(event["id"], []).append(event)
            assert (event["tid"], event["ts"], event["args"]["id"]) in slices
    assert len(by_id) == 4  # e has one chunk
    for arrow in by_id.values():
        assert [event["ph"] for event in arrow] == ["s", *["t"] * (len(arrow) - 2), "f"]
        assert [event["ts"] for event in arrow] == sorted(event["ts"] for event in arrow)


def test_marks_say_who_came_waited_left_and_was_preempted(events: list[dict[str, Any]], records: Path) -> None:
    marks = Counter(event["name"].split()[-1] for event in events if event["ph"] == "i")
    lines = steps(records)
    assert marks == {
        "admitted": sum(len(line["admitted"]) for line in lines),
        "ended": len(SIMULATED),
        "preempted": sum(len(line["preempted"]) for line in lines),
        "deferred": sum(len(line["deferred"]) for line in lines),
    }
    assert marks["preempted"] >= 1


def test_counters_are_those_of_the_records(events: list[dict[str, Any]], records: Path) -> None:
    lines = steps(records)
    queue = [event["args"]["waiting"] for event in events if event["name"] == "queue"]
    used = [event["args"]["used"] for event in events if event["name"] == "KV blocks"]
    times = [event["args"] for event in events if event["name"] == "ms of a step"]
    assert queue == [line["waiting"] for line in lines]
    assert used == [line["blocks_used"] for line in lines]
    for found, line in zip(times, lines, strict=True):
        assert found["schedule"] + found["compute"] == pytest.approx(line["duration_s"] * 1e3, abs=1e-3)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [("not json\n", "line 1: this is not JSON"), ('{"step": 0}\n', "start_s is missing"), ("", "has no step so far")],
)
def test_what_is_no_record_is_refused(
    tmp_path: Path, content: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(content)
    assert cli.main(["trace", str(path)]) == 2
    assert complaint in capsys.readouterr().err


def test_without_records_the_command_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trace"]) == 2
    assert "hotseat trace steps.jsonl -o trace.json" in capsys.readouterr().err
