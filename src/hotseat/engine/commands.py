"""Commands and aborts on their way to the engine thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import TypeAlias

from hotseat.core.request import FinishReason, RequestId
from hotseat.errors import EngineStoppedError

__all__ = ["Command", "CommandQueue"]

Command: TypeAlias = Callable[[], None]


class CommandQueue:
    """A queue of commands and a list of aborts; the engine thread sleeps here when it has nothing to do.

    ``send`` is refused while the queue is closed, and a lock makes sure that nothing is sent after ``close`` returned:
    a reader that takes what is left then has taken all. Aborts may always be added, from any thread, destructors and
    signal handlers included, because ``dict.setdefault`` and ``SimpleQueue.put`` take no Python lock.
    """

    def __init__(self, closed_because: str) -> None:
        self._commands: SimpleQueue[Command | None] = SimpleQueue()  # None only wakes
        self._aborts: dict[RequestId, FinishReason] = {}  # in order; the first reason stays
        self._lock = threading.Lock()
        self._closed_because: str | None = closed_because

    @property
    def closed_because(self) -> str | None:
        """The reason why commands are refused, or ``None``."""
        return self._closed_because

    @property
    def is_empty(self) -> bool:
        """Tell whether all that was sent has been taken."""
        return self._commands.empty() and not self._aborts

    def open(self) -> None:
        """Accept commands from now on."""
        with self._lock:
            self._closed_because = None

    def close(self, reason: str) -> None:
        """Refuse commands from now on; wakes the reader. The first reason stays."""
        with self._lock:
            self._closed_because = self._closed_because or reason
        self._commands.put(None)

    def send(self, command: Command) -> None:
        """Queue ``command``.

        Raises:
            EngineStoppedError: the queue is closed.
        """
        with self._lock:
            self.check_open()
            self._commands.put(command)

    def check_open(self) -> None:
        """Raise EngineStoppedError, with the reason, while the queue is closed."""
        if self._closed_because is not None:
            raise EngineStoppedError(self._closed_because)

    def send_always(self, command: Command) -> None:
        """Queue ``command`` behind those that were sent before, closed or not."""
        self._commands.put(command)

    def abort(self, request_id: RequestId, reason: FinishReason) -> None:
        """Ask for the end of a request."""
        self._aborts.setdefault(request_id, reason)
        self._commands.put(None)

    def is_aborted(self, request_id: RequestId) -> bool:
        """Tell whether an end was asked for and not yet taken."""
        return request_id in self._aborts

    def take_commands(self, *, wait_s: float | None = 0.0) -> Iterator[Command]:
        """Yield what is queued now, in order; when there is nothing, wait up to ``wait_s`` (``None``: for ever)."""
        try:
            first = self._commands.get(block=wait_s != 0.0, timeout=wait_s or None)
        except Empty:
            return
        if first is not None:
            yield first
        for _ in range(self._commands.qsize()):  # what arrives meanwhile waits for the next call
            command = self._commands.get()
            if command is not None:
                yield command

    def take_aborts(self) -> Iterator[tuple[RequestId, FinishReason]]:
        """Yield the ends asked for until now."""
        for request_id in list(self._aborts):  # one operation of the interpreter: no abort comes between
            yield request_id, self._aborts.pop(request_id)

    def put_back(self, request_id: RequestId, reason: FinishReason) -> None:
        """Keep an abort for later, without waking the reader."""
        self._aborts.setdefault(request_id, reason)
