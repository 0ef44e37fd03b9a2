"""Pieces of work, each measured many times, in turns with the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hotseat.roofline.limits import LimitMeter, Limits, Work

__all__ = ["Measure", "Point", "measure_in_turns", "rounded"]

Measure = Callable[[], float]

_JOBS_BETWEEN_READINGS = 8


@dataclass(slots=True, kw_only=True)
class Point:
    """One piece of work on one path, and its times."""

    kind: str  # linear, decode attention, prefill attention
    name: str
    size: int  # rows, or positions that attention looks at
    dtype: str
    isa: str
    work: Work
    seconds: list[float] = field(default_factory=list)
    bytes_per_s: list[float] = field(default_factory=list)  # that memory gave just before

    def chosen(self, statistic: str) -> tuple[float, float]:
        """Return one measurement, seconds and bytes a second: the median, or the best, which was disturbed least."""
        ordered = sorted(zip(self.seconds, self.bytes_per_s, strict=True))
        return ordered[0 if statistic == "best" else len(ordered) // 2]

    def limit_s(self, limits: Limits, statistic: str) -> float:
        """Return the time at the machine's limit, when the chosen measurement was made."""
        return limits.least_seconds(self.work, self.isa, self.chosen(statistic)[1])

    def share(self, limits: Limits, statistic: str) -> float:
        """Return the part of the machine's limit that is reached."""
        return self.limit_s(limits, statistic) / self.chosen(statistic)[0]


def rounded(values: Sequence[float]) -> list[float]:
    """Return numbers as they go into a file: four digits say all that there is to say."""
    return [float(f"{value:.4g}") for value in values]


def measure_in_turns(jobs: Sequence[tuple[Point, Measure]], meter: LimitMeter, num_rounds: int) -> None:
    """Measure every point once a round, so that a machine that slows down slows all of them, and its limits."""
    for _ in range(num_rounds):
        meter.measure_arithmetic()
        for index, (point, measure) in enumerate(jobs):
            if index % _JOBS_BETWEEN_READINGS == 0:
                bytes_per_s = meter.measure_memory()
            point.seconds.append(measure())
            point.bytes_per_s.append(bytes_per_s)
