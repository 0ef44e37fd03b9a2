"""Lists by seat, in flat arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ragged"]


class Ragged:
    """Lists of token ids (and values) by seat: entries of seat s are ``[offsets[s], offsets[s + 1])``.

    Hardly any request has such a list, so the arrays are rebuilt when one that has sits down or leaves, and
    ``version`` grows: whoever keeps pointers compares it first.
    """

    __slots__ = ("_entries", "ids", "offsets", "values", "version")

    def __init__(self, max_num_seqs: int) -> None:
        self._entries: dict[int, tuple[Sequence[int], Sequence[float]]] = {}
        self.offsets: NDArray[np.int32] = np.zeros(max_num_seqs + 1, np.int32)
        self.ids: NDArray[np.int32] = np.zeros(0, np.int32)
        self.values: NDArray[np.float32] = np.zeros(0, np.float32)
        self.version = 0

    def set(self, seat: int, ids: Sequence[int], values: Sequence[float] = ()) -> None:
        """Replace the list of ``seat``; ``values`` are parallel to ``ids`` or absent."""
        assert not values or len(values) == len(ids), "a value for each id"
        if not ids and seat not in self._entries:
            return
        if ids:
            self._entries[seat] = (ids, values)
        else:
            del self._entries[seat]
        self._rebuild()

    def of(self, seat: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return ids and values of ``seat``; values are zeros where none were given."""
        begin, end = self.offsets[seat], self.offsets[seat + 1]
        return self.ids[begin:end], self.values[begin:end]

    def _rebuild(self) -> None:
        lengths = np.zeros(len(self.offsets) - 1, np.int32)
        ids: list[int] = []
        values: list[float] = []
        for seat in sorted(self._entries):
            seat_ids, seat_values = self._entries[seat]
            lengths[seat] = len(seat_ids)
            ids.extend(seat_ids)
            values.extend(seat_values or [0.0] * len(seat_ids))
        np.cumsum(lengths, out=self.offsets[1:])
        self.ids = np.array(ids, np.int32)
        self.values = np.array(values, np.float32)
        self.version += 1
