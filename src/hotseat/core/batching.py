"""How batches form: continuously, or as servers did it before, for comparison."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice

from hotseat.core.config import SchedulerConfig
from hotseat.core.request import Request, RequestId

__all__ = ["Gate", "gate_for"]


class Gate:
    """Decide when new requests may take seats.

    Continuous batching has a gate that is always open. Static and dynamic batching let in a batch: when nobody runs and
    ``batch_size`` requests wait (dynamic: or the oldest waited for ``max_delay_s``), the first ones in the policy's
    order become its members, and nobody else sits down until the last of them has ended.
    """

    def __init__(self, batch_size: int | None = None, max_delay_s: float = math.inf) -> None:
        self._batch_size = batch_size
        self._max_delay_s = max_delay_s
        self.members: dict[RequestId, Request] = {}  # of the present batch, who have not sat down
        self.is_flushing = False  # nobody else will come: an incomplete batch starts at once

    @property
    def is_continuous(self) -> bool:
        return self._batch_size is None

    @property
    def is_open(self) -> bool:
        return self._batch_size is None or bool(self.members)

    def is_due(self, now: float, num_queued: int, oldest_at: float | None) -> bool:
        """Tell whether it is time for the next batch, when the last one has ended.

        ``num_queued`` requests never ran, the oldest of which arrived at ``oldest_at``.
        """
        if self._batch_size is None or not num_queued:
            return False
        is_late = oldest_at is not None and now >= self.opens_at(oldest_at)
        return num_queued >= self._batch_size or is_late or self.is_flushing

    def let_in(self, first: Iterable[Request]) -> None:
        """Form a batch of the ``first`` in the order, as many as it holds."""
        self.members = {request.id: request for request in islice(first, self._batch_size)}

    def opens_at(self, oldest_at: float) -> float:
        """Return when a request that arrived at ``oldest_at`` need not wait for more to come."""
        return oldest_at + self._max_delay_s


def gate_for(config: SchedulerConfig) -> Gate:
    """Return the gate of the configured batching mode."""
    if config.batching == "continuous":
        return Gate()
    batch_size = config.batch_size or config.max_num_seqs
    return Gate(batch_size, math.inf if config.batching == "static" else config.max_delay_ms / 1000)
