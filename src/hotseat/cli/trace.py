"""``hotseat trace``: step records as a trace that Perfetto and chrome://tracing show.

    track   slices                                          marks
    steps   a step, in it: schedule, compute                deferred, with its reason
    seat k  a chunk, named as its request                   admitted, ended, preempted, with their reasons
    arrows  from the first chunk of a request over those that follow a preemption to its last
    counters  queue, seats, KV blocks, tokens of a step, milliseconds of a step by part

The format is the "Trace Event Format" of Chrome; times are microseconds since the first step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeAlias

from hotseat.cli.explain import ExplainOptions, get_json
from hotseat.errors import ConfigError, HotseatError

__all__ = ["TraceOptions", "trace", "trace_events"]

Event: TypeAlias = dict[str, Any]

PAGE = 4096  # records asked of a server at once
STEPS_TRACK = 0  # seats follow
_NAMES = (
    *("step", "start_s", "duration_s", "scheduled", "admitted", "finished", "preempted", "deferred", "waiting"),
    *("blocks_used", "blocks_cached", "blocks_free", "budget"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """The records, and the file to write."""

    records: str | None = field(
        default=None, metadata={"help": "file that `hotseat serve --record` wrote, or the address of a server"}
    )
    output: Path | None = field(default=None, metadata={"help": "file to write; none: standard output", "short": "-o"})
    api_key: str | None = field(default=None, metadata={"help": "key, if the server wants one"})


def trace(chosen: TraceOptions) -> str:
    """Write the trace and return one line that says what is in it.

    Raises:
        HotseatError: the records cannot be read, or the file cannot be written.
    """
    if chosen.records is None:
        raise ConfigError("records are missing: hotseat trace steps.jsonl -o trace.json")
    is_url = chosen.records.startswith(("http://", "https://"))
    records = list(_from_server(chosen) if is_url else _from_file(chosen.records))
    if not records:
        raise HotseatError(f"{chosen.records} has no step so far")
    if chosen.output is None:
        _write(sys.stdout, records)
        return ""
    try:
        with chosen.output.open("w", encoding="utf-8") as file:
            _write(file, records)
    except OSError as error:
        raise ConfigError(f"output {str(chosen.output)!r} cannot be written: {error}") from None
    seconds = records[-1]["start_s"] + records[-1]["duration_s"] - records[0]["start_s"]
    return (
        f"{len(records)} steps, {seconds:.1f} s: open {chosen.output} at https://ui.perfetto.dev or chrome://tracing\n"
    )


def _from_file(path: str) -> Iterator[dict[str, Any]]:
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                yield _checked(line, f"{path}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"records {path!r} cannot be read: {error}") from None


def _checked(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: this is not JSON: {error}") from None
    missing = [name for name in _NAMES if not isinstance(record, dict) or name not in record]
    if missing:
        raise ConfigError(f"{where}: {missing[0]} is missing; this is no record of a step")
    checked: dict[str, Any] = record
    return checked


def _from_server(chosen: TraceOptions) -> Iterator[dict[str, Any]]:
    assert chosen.records is not None, "there is an address"
    server = ExplainOptions(url=chosen.records, api_key=chosen.api_key)
    found: list[dict[str, Any]] = get_json(server, f"/v1/steps?limit={PAGE}")["steps"]
    yield from found


def _write(file: IO[str], records: Sequence[dict[str, Any]]) -> None:
    """Write one event a line, so that a long trace needs no more memory than its records."""
    file.write('{"displayTimeUnit":"ms","traceEvents":[')
    for number, event in enumerate(trace_events(records)):
        file.write(",\n" if number else "\n")
        file.write(json.dumps(event, separators=(",", ":")))
    file.write("\n]}\n")


def trace_events(records: Sequence[dict[str, Any]]) -> Iterator[Event]:
    """Yield the events of ``records``, which are step record lines in their order."""
    begin_s = records[0]["start_s"]
    seats = 1 + max((chunk["seat"] for record in records for chunk in record["scheduled"]), default=-1)
    yield from _tracks(seats)
    last_chunk = {chunk["id"]: record["step"] for record in records for chunk in record["scheduled"]}
    flows: dict[str, int] = {}
    seat_of: dict[str, int] = {}
    ended_s = begin_s
    for record in records:
        at = (record["start_s"] - begin_s) * 1e6
        yield from _step(record, at)
        yield from _counters(record, at, max(0.0, record["start_s"] - ended_s))
        restarted = set(record["admitted"])
        for chunk in record["scheduled"]:
            yield from _chunk(chunk, record, at)
            yield from _flow(chunk, record["step"] == last_chunk[chunk["id"]], restarted, flows, at)
            seat_of[chunk["id"]] = chunk["seat"]
        yield from _marks(record, seat_of, at)
        ended_s = record["start_s"] + record["duration_s"]


def _tracks(num_seats: int) -> Iterator[Event]:
    yield _metadata("process_name", STEPS_TRACK, {"name": "Hotseat"})
    for track in range(num_seats + 1):
        yield _metadata("thread_name", track, {"name": f"seat {track - 1}" if track else "steps"})
        yield _metadata("thread_sort_index", track, {"sort_index": track})


def _metadata(name: str, track: int, args: dict[str, Any]) -> Event:
    return {"name": name, "ph": "M", "ts": 0, "pid": 1, "tid": track, "args": args}


def _slice(name: str, category: str, at: float, seconds: float, track: int, args: dict[str, Any]) -> Event:
    duration = round(seconds * 1e6, 3)
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": round(at, 3),
        "dur": duration,
        "pid": 1,
        "tid": track,
        "args": args,
    }


def _step(record: dict[str, Any], at: float) -> Iterator[Event]:
    sizes = _sizes(record)
    args = sizes | {"budget": record["budget"], "waiting": record["waiting"]}
    yield _slice(f"step {record['step']}", "step", at, record["duration_s"], STEPS_TRACK, args)
    schedule_s = min(record.get("schedule_s", 0.0), record["duration_s"])
    if schedule_s:
        yield _slice("schedule", "step", at, schedule_s, STEPS_TRACK, {})
        rest_s = record["duration_s"] - schedule_s
        yield _slice("compute", "step", at + schedule_s * 1e6, rest_s, STEPS_TRACK, {})


def _sizes(record: dict[str, Any]) -> dict[str, int]:
    sizes = {"decode": 0, "prefill": 0}
    for chunk in record["scheduled"]:
        sizes[chunk["phase"]] = sizes.get(chunk["phase"], 0) + chunk["end"] - chunk["start"]
    return sizes


def _counters(record: dict[str, Any], at: float, between_s: float) -> Iterator[Event]:
    schedule_s = record.get("schedule_s", 0.0)
    compute_s = record["duration_s"] - schedule_s
    values = {
        "queue": {"waiting": record["waiting"]},
        "seats taken": {"running": len({chunk["seat"] for chunk in record["scheduled"]})},
        "KV blocks": {"used": record["blocks_used"], "evictable": record["blocks_cached"]},
        "tokens of a step": _sizes(record),
        "token budget": {"budget": record["budget"]},
        "ms of a step": {
            "schedule": round(schedule_s * 1e3, 4),
            "compute": round(compute_s * 1e3, 4),
            "before it": round(between_s * 1e3, 4),
        },
    }
    for name, args in values.items():
        yield {"name": name, "ph": "C", "ts": round(at, 3), "pid": 1, "tid": STEPS_TRACK, "args": args}


def _chunk(chunk: dict[str, Any], record: dict[str, Any], at: float) -> Iterator[Event]:
    args = {"step": record["step"], "start": chunk["start"], "end": chunk["end"]}
    yield _slice(chunk["id"], chunk["phase"], at, record["duration_s"], chunk["seat"] + 1, args)


def _flow(
    chunk: dict[str, Any], is_last: bool, restarted: set[str], flows: dict[str, int], at: float
) -> Iterator[Event]:
    """Yield the beginning, a step or the end of the arrow of a request; one of a single chunk has none."""
    request_id = chunk["id"]
    phase = "t"
    if request_id not in flows:
        if is_last:
            return
        flows[request_id], phase = len(flows) + 1, "s"
    elif is_last:
        phase = "f"
    elif request_id not in restarted:
        return
    yield {
        "name": "request",
        "cat": "request",
        "ph": phase,
        "id": flows[request_id],
        "ts": round(at, 3),
        "pid": 1,
        "tid": chunk["seat"] + 1,
        "bp": "e",
        "args": {"id": request_id},
    }


def _marks(record: dict[str, Any], seat_of: dict[str, int], at: float) -> Iterator[Event]:
    end = at + record["duration_s"] * 1e6
    for request_id in record["admitted"]:
        yield _mark(f"{request_id} admitted", at, seat_of.get(request_id), {})
    for entry in record["finished"]:
        yield _mark(f"{entry['id']} ended", end, seat_of.get(entry["id"]), {"reason": entry["reason"]})
    for entry in record["preempted"]:
        yield _mark(f"{entry['id']} preempted", at, seat_of.get(entry["id"]), {"cause": entry["cause"]})
    for entry in record["deferred"]:
        yield _mark(f"{entry['id']} deferred", at, None, {"why": entry["why"]})


def _mark(name: str, at: float, seat: int | None, args: dict[str, Any]) -> Event:
    track = STEPS_TRACK if seat is None else seat + 1
    return {"name": name, "cat": "mark", "ph": "i", "s": "t", "ts": round(at, 3), "pid": 1, "tid": track, "args": args}
