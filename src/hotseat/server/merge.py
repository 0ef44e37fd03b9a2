"""Read the generations of several prompts as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from hotseat.generation import OutputDelta
from hotseat.server.answer import NumberedDelta

__all__ = ["DeltaStream", "merge"]

DeltaStream = AsyncIterator[list[OutputDelta]]


async def merge(streams: Sequence[DeltaStream]) -> AsyncGenerator[list[NumberedDelta]]:
    """Yield what arrives, numbered by prompt; what came in one step of the engine comes as one batch.

    Closing the iterator closes all streams, and so does the failure of one, which is raised.
    """
    if len(streams) == 1:
        try:
            async for deltas in streams[0]:
                yield [NumberedDelta(0, delta) for delta in deltas]
        finally:
            await _close(streams[0])
        return
    funnel = _Funnel(streams)
    try:
        while batch := await funnel.take():
            yield batch
    finally:
        await funnel.close()


class _Funnel:
    """One task reads each stream; what they bring meets in one list."""

    def __init__(self, streams: Sequence[DeltaStream]) -> None:
        self._arrived = asyncio.Event()
        self._pending: list[NumberedDelta] = []
        self._streams = streams
        self._failure: BaseException | None = None
        self._tasks = {asyncio.create_task(self._pump(number, stream)) for number, stream in enumerate(streams)}
        for task in self._tasks:
            task.add_done_callback(self._on_done)
        self._num_open = len(streams)

    async def take(self) -> list[NumberedDelta]:
        """Return what has arrived, waiting for something; empty when all streams have ended."""
        while not self._pending and self._num_open and self._failure is None:
            self._arrived.clear()
            await self._arrived.wait()
        if self._failure is not None:
            raise self._failure
        batch, self._pending = self._pending, []
        return batch

    async def close(self) -> None:
        """End all streams."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stream in self._streams:
            await _close(stream)

    async def _pump(self, number: int, stream: DeltaStream) -> None:
        async for deltas in stream:
            self._pending += [NumberedDelta(number, delta) for delta in deltas]
            self._arrived.set()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._num_open -= 1
        self._arrived.set()
        if not task.cancelled() and task.exception() is not None and self._failure is None:
            self._failure = task.exception()


async def _close(stream: DeltaStream) -> None:
    aclose = getattr(stream, "aclose", None)
    if aclose is not None:
        await aclose()
