"""The open connections, and which of them makes room when there are too many."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Connection", "ConnectionTable"]


class Connection(Protocol):
    """A client's connection, as far as its end is concerned."""

    def drop(self) -> None:
        """End it without an answer."""
        ...

    def refuse_busy(self, num_open: int) -> None:
        """End it with the answer that all others are busy."""
        ...


class ConnectionTable:
    """Bounds the open connections by ``limit``.

    A connection is *waiting* until its request was received to the end, and again when the last answer was sent. When
    one comes beyond the limit, the one that has been waiting for the longest is dropped; when all are busy, the new one
    is refused.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._num_open = 0
        self._waiting: dict[Connection, None] = {}  # since when, in order

    def enter(self, connection: Connection) -> None:
        """Take in a new connection, or refuse it."""
        self._num_open += 1
        if self._num_open > self._limit:
            oldest = next(iter(self._waiting), None)
            if oldest is None:
                connection.refuse_busy(self._limit)
                return
            del self._waiting[oldest]
            oldest.drop()
        self._waiting[connection] = None

    def note_busy(self, connection: Connection) -> None:
        """A whole request was received."""
        self._waiting.pop(connection, None)

    def note_waiting(self, connection: Connection) -> None:
        """All requests were answered."""
        self._waiting.pop(connection, None)
        self._waiting[connection] = None

    def leave(self, connection: Connection) -> None:
        """The connection is closed."""
        self._waiting.pop(connection, None)
        self._num_open -= 1
