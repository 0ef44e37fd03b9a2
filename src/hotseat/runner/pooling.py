"""Pooling: one vector for a prompt, from the final hidden states of its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotseat.core.batch import Batch, StepOutput
from hotseat.core.request import RequestId
from hotseat.runner.seats import Float32Array

__all__ = ["Pooler"]


@dataclass(slots=True)
class _Sum:
    """The sum of a prompt's rows so far."""

    values: NDArray[np.float64] | None = None  # [hidden_size]
    count: int = 0

    def add(self, rows: Float32Array) -> None:
        """Add rows one after the other, so that the bits do not depend on how the prompt is cut into chunks."""
        # cumsum adds in order, which sum does not promise.
        head = [] if self.values is None else [self.values]
        self.values = np.cumsum([*head, *rows], axis=0, dtype=np.float64)[-1]
        self.count += len(rows)


class Pooler:
    """Put together the hidden states of the requests that want them; costs nothing while there are none."""

    def __init__(self) -> None:
        self._sums: dict[RequestId, _Sum | None] = {}  # None: the last row is all

    def pool(self, batch: Batch, hidden: Callable[[int, int], Float32Array], output: StepOutput) -> None:
        """Take the rows of ``batch``, which was computed, and put what is complete into ``output``.

        ``hidden(first, end)`` returns rows of the flat batch after the final norm, float32[end - first, hidden_size].
        """
        for request_id in batch.released_ids:
            self._sums.pop(request_id, None)
        for seating in batch.new_requests:
            if seating.pooling is not None:
                self._sums[seating.request_id] = _Sum() if seating.pooling == "mean" else None
        if not self._sums:
            return
        first = 0
        for chunk in batch.chunks:
            end = first + chunk.end - chunk.start
            if chunk.request_id in self._sums and chunk.request_id not in output.failed:
                total = self._sums[chunk.request_id]
                if total is not None:
                    total.add(hidden(first, end))
                if chunk.samples:
                    output.pooled[chunk.request_id] = _pooled(total, hidden(end - 1, end))
            first = end


def _pooled(total: _Sum | None, last: Float32Array) -> Float32Array:
    if total is None or total.values is None:
        return np.array(last[0])
    return (total.values / total.count).astype(np.float32)
