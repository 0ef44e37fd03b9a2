"""What is measured: pieces of work, each many times, in turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hotseat.profile.limits import LimitMeter, Limits, Work

__all__ = ["Measure", "Point", "choose", "measure_in_turns", "rounded"]

Measure = Callable[[], float]


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

    def share(self, limits: Limits, statistic: str) -> float:
        """Return the part of the machine's limit that is reached."""
        return limits.least_seconds(self.work, self.isa) / choose(self.seconds, statistic)


def choose(values: Sequence[float], statistic: str) -> float:
    """Return the median, or the least: the one that other work disturbed least."""
    return min(values) if statistic == "best" else statistics.median(values)


def rounded(seconds: Sequence[float]) -> list[float]:
    """Return times as they go into a file: four digits say all that there is to say."""
    return [float(f"{value:.4g}") for value in seconds]


def measure_in_turns(jobs: Sequence[tuple[Point, Measure]], meter: LimitMeter, num_rounds: int) -> None:
    """Measure every point once a round, so that a machine that slows down slows all of them, and its limits."""
    for _ in range(num_rounds):
        meter.measure()
        for point, measure in jobs:
            point.seconds.append(measure())
