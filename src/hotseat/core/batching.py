"""How batches form: continuously, or as servers did it before, for comparison."""

from __future__ import annotations

import math

from hotseat.core.config import SchedulerConfig

__all__ = ["Gate", "gate_for"]


class Gate:
    """Decide when new requests may take seats.

    Continuous batching has a gate that is always open. Static and dynamic batching open it when nobody runs and
    ``batch_size`` requests wait (dynamic: or the oldest waited for ``max_delay_s``), let that many in, and close it
    until the last of them has ended.
    """

    def __init__(self, batch_size: int | None = None, max_delay_s: float = math.inf) -> None:
        self._batch_size = batch_size
        self._max_delay_s = max_delay_s
        self._room = 0  # how many of the present batch have not sat down
        self.is_flushing = False  # nobody else will come: an incomplete batch starts at once

    @property
    def is_continuous(self) -> bool:
        return self._batch_size is None

    @property
    def is_open(self) -> bool:
        return self._batch_size is None or self._room > 0

    def look(self, now: float, num_running: int, num_waiting: int, oldest_at: float | None) -> None:
        """Open when it is time; ``oldest_at`` is the arrival of the oldest request that never ran."""
        if self._batch_size is None or num_running or not num_waiting:
            return
        is_full = num_waiting >= self._batch_size
        is_late = oldest_at is not None and now >= self.opens_at(oldest_at)
        if is_full or is_late or self.is_flushing:
            self._room = min(self._batch_size, num_waiting)

    def opens_at(self, oldest_at: float) -> float:
        """Return when a request that arrived at ``oldest_at`` need not wait for more to come."""
        return oldest_at + self._max_delay_s

    def let_in(self) -> None:
        """Count one that sat down for the first time."""
        if self._batch_size is not None:
            self._room -= 1


def gate_for(config: SchedulerConfig) -> Gate:
    """Return the gate of the configured batching mode."""
    if config.batching == "continuous":
        return Gate()
    batch_size = config.batch_size or config.max_num_seqs
    return Gate(batch_size, math.inf if config.batching == "static" else config.max_delay_ms / 1000)
