"""Watchdog of the engine's progress: written by the engine thread, read by any."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from hotseat.engine.clock import Clock

__all__ = ["Health", "Watchdog"]

logger = logging.getLogger(__name__)

MAX_FAILURES_IN_A_ROW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """``alive``: requests are taken and make progress; if not, ``reason`` says why.

    ``stalled_for_s`` counts from the last progress while requests are outstanding, and is 0 otherwise.
    """

    alive: bool
    stalled_for_s: float = 0.0
    reason: str | None = None


class Watchdog:
    """Time of the last progress, and the last failures. Single attributes are written and read: no lock is needed."""

    def __init__(self, clock: Clock, stall_timeout_s: float) -> None:
        self._clock = clock
        self._stall_timeout_s = stall_timeout_s
        self._waiting_since: float | None = None  # the last progress while work is outstanding; None when idle
        self._num_failures = 0  # steps that failed since one succeeded
        self._last_failure = ""
        self._was_unhealthy = False

    def start_work(self) -> None:
        """Work is outstanding; begins to count unless it counts already."""
        if self._waiting_since is None:
            self._waiting_since = self._clock.now()

    def note_step(self, failure: str | None, *, has_progressed: bool, has_work: bool) -> None:
        """A step ended: ``failure`` says what went wrong; ``has_work`` tells whether another one follows."""
        if failure is not None:
            self._num_failures += 1
            self._last_failure = failure
        elif has_progressed:
            self._num_failures = 0
        if not has_work:
            self._waiting_since = None
        elif has_progressed:
            self._waiting_since = self._clock.now()

    def read(self) -> Health:
        """Judge, and log the reason when the engine becomes unhealthy; cheap enough for every probe."""
        since = self._waiting_since
        stalled_for_s = 0.0 if since is None else max(0.0, self._clock.now() - since)
        reason = None
        if stalled_for_s >= self._stall_timeout_s:
            reason = f"requests are outstanding and no step made progress for {stalled_for_s:.1f} s"
        elif self._num_failures >= MAX_FAILURES_IN_A_ROW:
            reason = f"the last {self._num_failures} steps failed: {self._last_failure}"
        if reason is not None and not self._was_unhealthy:
            logger.error("the engine is unhealthy: %s", reason)
        self._was_unhealthy = reason is not None
        return Health(alive=reason is None, stalled_for_s=stalled_for_s, reason=reason)
