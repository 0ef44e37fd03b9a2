"""The lock of the scheduler's state, and the questions that are answered under it without waiting for a step."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

__all__ = ["StateLock"]

T = TypeVar("T")


class StateLock:
    """Held by the engine thread while it changes the state: all the time, except while it computes or sleeps.

    No event loop ever waits for it. A question that finds it taken is queued, and whoever lets it go answers what is
    queued: before, and once more after, for a question that came in between. So a question waits for the scheduler's
    microseconds at most, and never for the computation of a step.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._questions: deque[Callable[[], None]] = deque()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._answer_queued()
        self._lock.release()
        self._answer_late()

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Let others ask during a block of the thread that holds the lock."""
        self.__exit__()
        try:
            yield
        finally:
            self._lock.acquire()

    async def ask(self, question: Callable[[], T]) -> T:
        """Return what ``question``, which only reads the state, returns or raises."""
        if self._lock.acquire(blocking=False):
            try:
                return question()
            finally:
                self._lock.release()
                self._answer_late()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._questions.append(partial(_answer, question, answer))
        self._answer_late()
        return await answer

    def _answer_queued(self) -> None:
        while self._questions:
            self._questions.popleft()()

    def _answer_late(self) -> None:
        while self._questions and self._lock.acquire(blocking=False):
            try:
                self._answer_queued()
            finally:
                self._lock.release()


def _answer(question: Callable[[], T], answer: asyncio.Future[T]) -> None:
    def resolve() -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    error: Exception | None = None
    try:
        result = question()
    except Exception as raised:
        error = raised
    with contextlib.suppress(RuntimeError):  # its loop is closed: nobody waits any more
        answer.get_loop().call_soon_threadsafe(resolve)
