"""A step cost that is learned from a record: what steps of this model take on this machine, and what is around them.

    seconds of a step = Σ coefficient · feature, times the residual of some recorded step
    features            1, 1 if there is prefill, rows in five ranges, positions read by decodes, pairs of prefills

A row is a token that is computed; it costs the less, the more there are, so each range of their number has a rate of
its own. The fit minimises squared relative errors with no coefficient below zero (the least negative is left out, one
after the other), and is scaled so that the recorded steps take as long together as they did.

The residuals are used in the order in which they were recorded, again and again: so the spread of step times, and the
spans in which the machine did something else, are those of the record, and a simulation stays reproducible.

Between two steps the tokens are handed over. Before a request is taken in, it is read, tokenized and sent to the
engine, and its first token goes back the same way. These are learned from gaps and from the files of requests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from hotseat.core.batch import Batch, RequestUpdate
from hotseat.core.events import EventSink, StepRecord
from hotseat.errors import ConfigError
from hotseat.simulator.least_squares import nonnegative_fit
from hotseat.telemetry import record_as_dict

__all__ = ["CostSequence", "LearnedCost", "StepLog", "calibrate", "entry_delay_s"]

SCHEMA = "hotseat.step-cost/1"
ROW_RANGES = (1, 4, 16, 64, 256, 1 << 30)  # rows 1 to 4, 4 to 16, …
NUM_FEATURES = 2 + len(ROW_RANGES) - 1 + 2
MIN_STEPS = 50
MAX_RESIDUALS = 8192
MAX_GAP_S = 1.0  # a longer pause is no handing over


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedCost:
    """The cost of steps as a record tells it; call it with a batch."""

    coefficients: tuple[float, ...]  # seconds, for the features
    residuals: tuple[float, ...]  # taken / predicted, in the order of the record
    between_coefficients: tuple[float, float]  # seconds between two steps: base, per sequence
    between_residuals: tuple[float, ...]
    entry_s: float  # until a request is with the engine, and its tokens with the client
    num_steps: int
    median_error: float  # |predicted − taken| / taken of the recorded steps
    p90_error: float

    def predict(self, features: Sequence[float]) -> float:
        """Return the expected seconds."""
        return math.fsum(c * x for c, x in zip(self.coefficients, features, strict=True))

    def save(self, path: Path) -> None:
        """Write it as JSON.

        Raises:
            ConfigError: the file cannot be written.
        """
        try:
            path.write_text(json.dumps({"schema": SCHEMA, **asdict(self)}) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"the step cost {str(path)!r} cannot be written: {error}") from None

    @classmethod
    def load(cls, path: Path) -> LearnedCost:
        """Read what ``save`` wrote.

        Raises:
            ConfigError: it cannot be read, or is something else.
        """
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            assert values.pop("schema") == SCHEMA
            lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
            return cls(**(values | lists))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
            raise ConfigError(f"step_cost {str(path)!r} is no file that --save-step-cost wrote: {error}") from None

    def describe(self) -> str:
        """Return where it is from, and how well it fits."""
        return (
            f"what was learned from {self.num_steps} steps (error of single ones: median "
            f"{100 * self.median_error:.1f} %, p90 {100 * self.p90_error:.1f} %), and {1e3 * self.entry_s:.2f} ms on "
            f"the way in and out"
        )


class CostSequence:
    """A cost on its way through one simulation: each step takes the next residual."""

    def __init__(self, cost: LearnedCost) -> None:
        self._cost = cost
        self._num_steps = self._num_gaps = 0

    def __call__(self, batch: Batch) -> float:
        if not batch.chunks:
            return 0.0
        sizes = [(chunk.start, chunk.end) for chunk in batch.chunks]
        residuals = self._cost.residuals
        residual = residuals[self._num_steps % len(residuals)]
        self._num_steps += 1
        return self._cost.predict(step_features(sizes[: batch.num_decodes], sizes[batch.num_decodes :])) * residual

    def between(self, num_sequences: int) -> float:
        """Return the seconds from a step of ``num_sequences`` to the next."""
        if not num_sequences:
            return 0.0
        base, each = self._cost.between_coefficients
        residuals = self._cost.between_residuals
        residual = residuals[self._num_gaps % len(residuals)] if residuals else 1.0
        self._num_gaps += 1
        return (base + each * num_sequences) * residual


def step_features(decodes: Sequence[tuple[int, int]], prefills: Sequence[tuple[int, int]]) -> list[float]:
    """Return the features of a step with these chunks, each ``[start, end)``."""
    num_rows = len(decodes) + sum(end - start for start, end in prefills)
    ranges = [max(0, min(num_rows, high) - low) for low, high in pairwise(ROW_RANGES)]
    positions = sum(end for _, end in decodes)
    pairs = sum((end - start) * (start + end + 1) // 2 for start, end in prefills)
    return [1.0, float(bool(prefills)), *map(float, ranges), float(positions), float(pairs)]


class StepLog(EventSink):
    """An event sink that keeps record lines, to learn from."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def on_step(self, record: StepRecord, updates: Sequence[RequestUpdate]) -> None:
        self.records.append(record_as_dict(record))


def calibrate(records: Iterable[dict[str, Any]], entry_s: float = 0.0) -> LearnedCost:
    """Learn from step record lines.

    Raises:
        ConfigError: there are too few steps that computed something.
    """
    records = list(records)
    rows, seconds = [], []
    for record in records:
        if record["scheduled"] and record["duration_s"] > 0:
            rows.append(_features_of(record))
            seconds.append(float(record["duration_s"]))
    if len(rows) < MIN_STEPS:
        raise ConfigError(f"the record has {len(rows)} steps that computed something; {MIN_STEPS} are needed to learn")
    coefficients = nonnegative_fit(rows, seconds)
    predicted = [math.fsum(c * x for c, x in zip(coefficients, row, strict=True)) for row in rows]
    scale = math.fsum(seconds) / math.fsum(predicted)
    residuals = [taken / (scale * guess) for taken, guess in zip(seconds, predicted, strict=True)]
    errors = sorted(abs(1 / residual - 1) for residual in residuals)
    gaps = _gaps(records)
    between = nonnegative_fit([[1.0, count] for count, _ in gaps], [gap for _, gap in gaps]) if gaps else [0.0, 0.0]
    gap_residuals = [gap / guess for count, gap in gaps if (guess := between[0] + between[1] * count) > 0]
    mean = math.fsum(gap_residuals) / len(gap_residuals) if gap_residuals else 1.0
    return LearnedCost(
        coefficients=tuple(scale * value for value in coefficients),
        residuals=tuple(residuals[:MAX_RESIDUALS]),
        between_coefficients=(between[0] * mean, between[1] * mean),
        between_residuals=tuple(residual / mean for residual in gap_residuals[:MAX_RESIDUALS]),
        entry_s=entry_s,
        num_steps=len(rows),
        median_error=errors[len(errors) // 2],
        p90_error=errors[len(errors) * 9 // 10],
    )


def entry_delay_s(requests: Iterable[dict[str, Any]], records: Sequence[dict[str, Any]]) -> float:
    """Return how long requests are on the way to the engine, from lines that ``--record-requests`` wrote.

    Of those that were taken in while nothing ran, the middle one: the others also waited for a step to end.
    """
    spans = [(record["start_s"], record["start_s"] + record["duration_s"]) for record in records]
    delays = []
    at = 0
    for line in sorted(requests, key=lambda line: line["arrival_s"]):
        while at < len(spans) and spans[at][1] < line["arrival_s"]:
            at += 1
        is_busy = at < len(spans) and spans[at][0] < line["added_s"]
        if not is_busy:
            delays.append(line["added_s"] - line["arrival_s"])
    return sorted(delays)[len(delays) // 2] if delays else 0.0


def _features_of(record: dict[str, Any]) -> list[float]:
    sizes: dict[str, list[tuple[int, int]]] = {"decode": [], "prefill": []}
    for chunk in record["scheduled"]:
        sizes[chunk["phase"]].append((chunk["start"], chunk["end"]))
    return step_features(sizes["decode"], sizes["prefill"])


def _gaps(records: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """Return the sequences of each step and the seconds until the next one, where some of them went on."""
    gaps = []
    for record, following in pairwise(records):
        gap = following["start_s"] - record["start_s"] - record["duration_s"]
        ids = {chunk["id"] for chunk in record["scheduled"]}
        if 0 <= gap <= MAX_GAP_S and any(chunk["id"] in ids for chunk in following["scheduled"]):
            gaps.append((float(len(record["scheduled"])), max(gap, 1e-7)))
    return gaps
