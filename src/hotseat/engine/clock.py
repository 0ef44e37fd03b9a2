"""Clocks of the engine."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "MonotonicClock", "VirtualClock"]


class Clock(Protocol):
    """A source of seconds since some fixed instant; never goes back."""

    def now(self) -> float: ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()


class VirtualClock:
    """A clock that stands still until it is told to move; the simulator's runner advances it."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now = start_s

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        assert seconds >= 0, "time does not go back"
        self._now += seconds

    def advance_to(self, instant: float) -> None:
        """Move to ``instant``; an instant in the past changes nothing."""
        self._now = max(self._now, instant)
