"""The lag of the event loop: how much later than due a timer is called, whatever holds the loop or the interpreter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["LagMonitor"]

PERIOD_S = 0.025  # what holds the loop for longer is always seen


class LagMonitor:
    """Tell ``observe`` the seconds of lag, forty times a second."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(PERIOD_S, self._beat)

    def stop(self) -> None:
        """Observe no more; idempotent."""
        self._timer.cancel()

    def _beat(self) -> None:
        now = self._loop.time()
        self._observe(max(0.0, now - self._timer.when()))
        self._timer = self._loop.call_at(now + PERIOD_S, self._beat)
