"""Queues of updates between the engine thread and the coroutines that read them.

    engine thread                             event loop
    step → OutputQueue ── call_soon_threadsafe ──> RequestQueue.put ──> UpdateStream ──> consumer
                          (once per step)          (merges while
                                                    there is no reader)

An update belongs to its queue once it was put there: the engine and the sinks are done with it, so that a later one
may be merged into it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from hotseat.core.batch import RequestUpdate
from hotseat.core.request import RequestId

__all__ = ["RequestQueue", "UpdateStream", "merge_update"]


def merge_update(into: RequestUpdate, later: RequestUpdate) -> None:
    """Append what ``later`` brings to ``into``, an unread update of the same request."""
    into.new_token_ids.extend(later.new_token_ids)
    if later.logprobs is not None:
        into.logprobs = [*(into.logprobs or ()), *later.logprobs]
    if later.prompt_logprobs is not None:
        into.prompt_logprobs = [*(into.prompt_logprobs or ()), *later.prompt_logprobs]
    if later.pooled is not None:
        into.pooled = later.pooled
    into.finish_reason = later.finish_reason
    into.stop_token_id = later.stop_token_id
    into.error = later.error
    into.num_cached_tokens = later.num_cached_tokens
    into.num_draft_tokens, into.num_accepted_tokens = later.num_draft_tokens, later.num_accepted_tokens


class RequestQueue:
    """Updates of some requests that wait for their one reader. Touched by its event loop's thread only."""

    __slots__ = ("_pending", "_waiter", "loop", "open_ids")

    def __init__(self, request_ids: Iterable[RequestId], loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.open_ids = set(request_ids)  # those whose end was not put here yet
        self._pending: dict[RequestId, RequestUpdate] = {}
        self._waiter: asyncio.Future[None] | None = None

    def put(self, update: RequestUpdate) -> None:
        """Take over ``update``; wakes the reader."""
        request_id = update.request_id
        if request_id not in self.open_ids:
            return  # the reader has left
        if update.finish_reason is not None:
            self.open_ids.discard(request_id)
        earlier = self._pending.get(request_id)
        if earlier is None:
            self._pending[request_id] = update
        else:
            merge_update(earlier, update)
        if self._waiter is not None:
            waiter, self._waiter = self._waiter, None
            if not waiter.done():
                waiter.set_result(None)

    async def take(self) -> list[RequestUpdate]:
        """Return what is there, at most one update per request, else wait; empty when all ended and were read."""
        while not self._pending and self.open_ids:
            assert self._waiter is None, "a queue has one reader"
            self._waiter = self.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        updates = list(self._pending.values())
        self._pending.clear()
        return updates

    def close(self) -> list[RequestId]:
        """Let nothing in any more; return the requests that had not ended."""
        left = list(self.open_ids)
        self.open_ids.clear()
        self._pending.clear()
        return left


class UpdateStream:
    """Iterate over the news of several requests, a list per engine step; ends when all of them have.

    A slow reader finds several steps merged into one list, with one update per request. Leaving early (``aclose``,
    cancellation, or dropping the stream) aborts the requests that have not ended.
    """

    __slots__ = ("_abort", "_queue")

    def __init__(self, queue: RequestQueue, abort: Callable[[RequestId], None]) -> None:
        self._queue = queue
        self._abort = abort

    def __aiter__(self) -> UpdateStream:
        return self

    async def __anext__(self) -> list[RequestUpdate]:
        try:
            updates = await self._queue.take()
        except asyncio.CancelledError:
            self.close()
            raise
        if not updates:
            raise StopAsyncIteration
        return updates

    def close(self) -> None:
        """Abort what has not ended; idempotent."""
        for request_id in self._queue.close():
            self._abort(request_id)

    async def aclose(self) -> None:
        """Abort what has not ended; idempotent."""
        self.close()

    def __del__(self) -> None:
        self.close()
