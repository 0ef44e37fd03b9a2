"""Pauses: of the event loop, and of the engine between two steps."""

from __future__ import annotations

import time
from collections.abc import Callable

from hotseat.telemetry.histogram import Histogram

__all__ = ["PAUSE_BOUNDS_S", "Pauses"]

PAUSE_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
WINDOW_S = 60.0


class Pauses:
    """A histogram of pauses, and the longest one of the last one or two minutes. One thread observes, any reads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.histogram = Histogram(PAUSE_BOUNDS_S)
        self._clock = clock
        self._window_began_at = clock()
        self._longest_s = 0.0  # of the present window
        self._longest_before_s = 0.0  # of the window before

    def observe(self, seconds: float) -> None:
        """Count a pause."""
        self._turn()
        self.histogram.observe(seconds)
        self._longest_s = max(self._longest_s, seconds)

    @property
    def longest_s(self) -> float:
        """The longest pause of the present minute and the one before."""
        age = self._clock() - self._window_began_at
        if age >= 2 * WINDOW_S:
            return 0.0
        return self._longest_s if age >= WINDOW_S else max(self._longest_s, self._longest_before_s)

    def _turn(self) -> None:
        now = self._clock()
        age = now - self._window_began_at
        if age >= WINDOW_S:
            self._longest_before_s = self._longest_s if age < 2 * WINDOW_S else 0.0
            self._longest_s, self._window_began_at = 0.0, now
