"""An index of the policy's order: how many waiting requests are ahead of one, without looking at all of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TypeAlias

from hotseat.core.policy import Key

__all__ = ["OrderIndex"]

CHUNK_LEN = 512

_Place: TypeAlias = tuple[Key, int]  # key and serial


class OrderIndex:
    """The places of waiting requests in ascending order, cut into chunks of at most ``2 * CHUNK_LEN``.

    ``add``, ``remove`` and ``num_before`` find the chunk and the place in it by bisection. Moving the rest of a chunk
    is one ``memmove``, and ``num_before`` adds up the lengths of the chunks ahead: 200 at 100,000 requests.
    """

    def __init__(self) -> None:
        self._chunks: list[list[_Place]] = []
        self._lasts: list[_Place] = []  # of each chunk

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def add(self, key: Key, serial: int) -> None:
        """Insert a place that is not in the index."""
        if not self._chunks:
            self._chunks.append([])
            self._lasts.append((key, serial))
        index = min(bisect_left(self._lasts, (key, serial)), len(self._chunks) - 1)
        chunk = self._chunks[index]
        insort(chunk, (key, serial))
        if len(chunk) > 2 * CHUNK_LEN:
            self._chunks.insert(index + 1, chunk[CHUNK_LEN:])
            self._lasts.insert(index + 1, chunk[-1])
            del chunk[CHUNK_LEN:]
        self._lasts[index] = chunk[-1]

    def remove(self, key: Key, serial: int) -> None:
        """Delete a place that is in the index."""
        index = bisect_left(self._lasts, (key, serial))
        chunk = self._chunks[index]
        at = bisect_left(chunk, (key, serial))
        assert chunk[at] == (key, serial), f"the place of request {serial} is not in the index"
        del chunk[at]
        if chunk:
            self._lasts[index] = chunk[-1]
        else:
            del self._chunks[index], self._lasts[index]

    def num_before(self, key: Key, serial: int) -> int:
        """Return how many places are ahead of this one, which need not be in the index."""
        index = bisect_left(self._lasts, (key, serial))
        num_ahead = sum(map(len, self._chunks[:index]))
        return num_ahead + bisect_left(self._chunks[index], (key, serial)) if index < len(self._chunks) else num_ahead
