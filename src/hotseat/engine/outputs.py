"""News of a step on their way to the event loops, handed over in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from hotseat.core.batch import RequestUpdate
from hotseat.core.request import RequestId
from hotseat.engine.stream import RequestQueue

__all__ = ["OutputQueue"]

Call: TypeAlias = tuple[Callable[[Any], None], Any]


class OutputQueue:
    """Collect calls for event loops; ``flush`` wakes each loop once, however many requests have news."""

    def __init__(self, on_lost: Callable[[RequestId], None]) -> None:
        self._calls: dict[asyncio.AbstractEventLoop, list[Call]] = {}
        self._on_lost = on_lost  # told the id of a request whose event loop is closed

    def put_update(self, queue: RequestQueue, update: RequestUpdate) -> None:
        self._calls.setdefault(queue.loop, []).append((queue.put, update))

    def resolve(self, future: asyncio.Future[Any], value: object = None) -> None:
        self._calls.setdefault(future.get_loop(), []).append((_set_result, (future, value)))

    def refuse(self, future: asyncio.Future[Any], error: Exception) -> None:
        self._calls.setdefault(future.get_loop(), []).append((_set_exception, (future, error)))

    def flush(self) -> None:
        """Hand over all that was collected."""
        if not self._calls:
            return
        calls_by_loop, self._calls = self._calls, {}
        for loop, calls in calls_by_loop.items():
            try:
                loop.call_soon_threadsafe(_make_calls, calls)
            except RuntimeError:  # the loop is closed: its readers are gone
                for _, argument in calls:
                    if isinstance(argument, RequestUpdate):
                        self._on_lost(argument.request_id)


def _make_calls(calls: list[Call]) -> None:
    for call, argument in calls:
        call(argument)


def _set_result(outcome: tuple[asyncio.Future[Any], object]) -> None:
    future, value = outcome
    if not future.done():
        future.set_result(value)


def _set_exception(outcome: tuple[asyncio.Future[Any], Exception]) -> None:
    future, error = outcome
    if not future.done():
        future.set_exception(error)
