"""Run the steps that an engine recorded once more, with its own step times, and compare the batches."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotseat.core.batch import Batch, RequestUpdate
from hotseat.core.config import SchedulerConfig
from hotseat.core.events import EventSink, StepRecord
from hotseat.core.policy import Policy
from hotseat.errors import HotseatError
from hotseat.simulator.arrivals import Arrival
from hotseat.simulator.simulation import Simulation
from hotseat.telemetry import record_as_dict

__all__ = ["RecordError", "Replay", "read_records", "replay"]

BATCH_FIELDS = ("scheduled", "admitted", "preempted", "finished")  # a difference in one of them is another batch
COUNT_FIELDS = ("waiting", "blocks_used", "blocks_cached", "blocks_free", "budget")
MAX_DIFFERENCES = 5


class RecordError(HotseatError):
    """A record cannot be replayed; the message names file, line and field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The result of a replay."""

    num_steps: int
    num_equal: int  # steps with the same batch
    num_equal_counts: int  # steps in which queue, blocks and budget were the same as well
    num_request_steps: int
    differences: list[str]  # the first ones, one line each

    @property
    def is_equal(self) -> bool:
        return self.num_equal == self.num_steps


def read_records(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the steps of a record, which must begin with the engine's first and leave none out.

    Raises:
        RecordError: the file cannot be read, or a line is no step.
    """
    try:
        with open(path, encoding="utf-8") as file:
            for expected, text in enumerate(file):
                yield _checked(f"{path}, line {expected + 1}", text, expected)
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path} cannot be read: {error}") from None


def _checked(where: str, text: str, expected: int) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise RecordError(f"{where}: this is not JSON: {error}") from None
    names = ("step", "start_s", "duration_s", *BATCH_FIELDS, *COUNT_FIELDS)
    missing = [name for name in names if not isinstance(record, dict) or name not in record]
    if missing:
        raise RecordError(f"{where}: {missing[0]} is missing; this is no record of a step")
    if record["step"] != expected:
        raise RecordError(
            f"{where}: step must be {expected}, not {record['step']!r}: a replay needs every step from 0 on"
        )
    for name in ("start_s", "duration_s"):
        if not isinstance(record[name], int | float) or record[name] < 0:
            raise RecordError(f"{where}: {name} must be a number of at least 0, not {record[name]!r}")
    return record


class _Pace(EventSink):
    """The duration of the next step, and the record of the last one."""

    def __init__(self) -> None:
        self.duration_s = 0.0
        self.record: StepRecord | None = None

    def __call__(self, batch: Batch) -> float:
        return self.duration_s

    def on_step(self, record: StepRecord, updates: Sequence[RequestUpdate]) -> None:
        self.record = record


def replay(
    config: SchedulerConfig,
    arrivals: Iterable[Arrival],
    records: Iterable[dict[str, Any]],
    policy: Policy | None = None,
) -> Replay:
    """Form the batches of ``records`` again: the same arrivals and aborts, each step as long as it was.

    Stops at the first step whose batch differs: what follows would differ for that reason alone.
    """
    pace = _Pace()
    simulation = Simulation(config, arrivals, cost=pace, policy=policy, sinks=[pace])
    num_steps = num_equal = num_equal_counts = num_request_steps = 0
    differences: list[str] = []
    for wanted in records:
        pace.duration_s = wanted["duration_s"]
        simulation.clock.advance_to(wanted["start_s"])
        simulation.deliver()
        simulation.step()
        simulation.clock.advance_to(wanted["start_s"] + wanted["duration_s"])
        assert pace.record is not None, "a step leaves a record"
        formed = record_as_dict(pace.record)
        num_steps += 1
        num_request_steps += len(wanted["scheduled"])
        found = [
            _difference(name, wanted, formed) for name in BATCH_FIELDS if _part(name, wanted) != _part(name, formed)
        ]
        if found:
            differences += found
            break
        num_equal += 1
        counts = [name for name in COUNT_FIELDS if wanted[name] != formed[name]]
        num_equal_counts += not counts
        if counts and len(differences) < MAX_DIFFERENCES:
            differences += [_difference(name, wanted, formed) for name in counts]
    return Replay(
        num_steps=num_steps,
        num_equal=num_equal,
        num_equal_counts=num_equal_counts,
        num_request_steps=num_request_steps,
        differences=differences,
    )


def _part(name: str, record: dict[str, Any]) -> Any:
    """Return what is compared. Of those who ended it is the ids alone: what ended a request from outside is an abort
    here, and those that ended together have no order."""
    value = record[name]
    return sorted(entry["id"] for entry in value) if name == "finished" else value


def _difference(name: str, wanted: dict[str, Any], formed: dict[str, Any]) -> str:
    return f"step {wanted['step']}: {name} was {_shorten(wanted[name])}, the simulator has {_shorten(formed[name])}"


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 300 else text[:300] + " …"
