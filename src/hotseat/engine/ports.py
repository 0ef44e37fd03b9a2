"""Interfaces that the engine uses: clocks and event sinks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from hotseat.core.batch import RequestUpdate
from hotseat.core.events import StepRecord
from hotseat.core.request import Request

__all__ = ["Clock", "EventSink", "MonotonicClock", "VirtualClock"]


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


class EventSink(Protocol):
    """An observer, called on the thread that runs the steps; must be quick and must not keep an update.

    Every method has a default that does nothing: subclass and override what is of interest.

    For one accepted request: ``on_arrived``, any number of ``on_step``, exactly one ``on_finished``. A step that ends a
    request calls ``on_step`` first.
    """

    def on_arrived(self, request: Request, now: float) -> None:
        """Take note that ``request`` was accepted and waits."""
        return

    def on_rejected(self, request: Request, error: Exception, now: float) -> None:
        """Take note that ``request`` was refused and never entered the queue."""
        return

    def on_step(self, record: StepRecord, updates: Sequence[RequestUpdate]) -> None:
        """Take note of a step; ``updates`` hold the tokens that it gave."""
        return

    def on_finished(self, request: Request, update: RequestUpdate, now: float) -> None:
        """Take note that ``request`` ended with ``update.finish_reason``."""
        return
