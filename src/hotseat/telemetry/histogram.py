"""A histogram of plain integers, and the bucket bounds that dashboards expect."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

__all__ = [
    "ITERATION_TOKEN_BOUNDS",
    "ITL_BOUNDS_S",
    "LATENCY_BOUNDS_S",
    "NUM_PREEMPTION_BOUNDS",
    "NUM_SEQUENCE_BOUNDS",
    "STEP_BOUNDS_S",
    "TTFT_BOUNDS_S",
    "Histogram",
    "token_bounds",
]

# vLLM's, so that its dashboards fit.
LATENCY_BOUNDS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TTFT_BOUNDS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_BOUNDS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
ITERATION_TOKEN_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
NUM_SEQUENCE_BOUNDS = (1, 2, 5, 10, 20)
NUM_PREEMPTION_BOUNDS = (1, 2, 3, 4, 5, 10, 20)
# Ours: a step is shorter than a token's latency.
STEP_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def token_bounds(max_model_len: int) -> tuple[int, ...]:
    """Return 1, 2, 5, 10, 20, 50 … up to ``max_model_len``."""
    bounds: list[int] = []
    decade = 1
    while decade <= max_model_len:
        bounds += [bound for bound in (decade, 2 * decade, 5 * decade) if bound <= max_model_len]
        decade *= 10
    return tuple(bounds)


class Histogram:
    """Count values by bucket. One thread observes, any thread reads."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)  # the last bucket has no upper bound
        self._sum = 0.0

    @property
    def count(self) -> int:
        """Return how many values were observed."""
        return sum(self._counts)

    @property
    def sum(self) -> float:
        """Return the sum of the values."""
        return self._sum

    def observe(self, value: float, times: int = 1) -> None:
        """Count ``value``, ``times`` times; a bucket includes its upper bound."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def cumulative(self) -> list[tuple[str, int]]:
        """Return each upper bound, as Prometheus writes it, with the number of values up to it."""
        total = 0
        rows: list[tuple[str, int]] = []
        for bound, count in zip((*self._bounds, float("inf")), tuple(self._counts), strict=True):
            total += count
            rows.append(("+Inf" if bound == float("inf") else repr(float(bound)), total))
        return rows
