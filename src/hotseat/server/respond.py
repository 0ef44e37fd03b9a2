"""The response to one generation request; it ends early when the client leaves or the request is aborted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hotseat.errors import HotseatError
from hotseat.generation import OutputDelta
from hotseat.server.errors import ApiError, as_api_error
from hotseat.server.metadata import ResponseMetadata
from hotseat.server.sse import SseWriter
from hotseat.server.state import InFlightRequest, RequestContext, ServerContext
from hotseat.server.writers import StreamWriter, WholeWriter

__all__ = ["GenerationResponse"]

logger = logging.getLogger(__name__)


class GenerationResponse(Response):
    """An ASGI response that generates while it is sent.

    ``writer`` decides its shape, and whether it is streamed. ``generate`` begins the generation when the response is
    called. A stream's headers go out with its first token, so that a request that is refused gets a true HTTP status,
    or with the first keep-alive comment.
    """

    def __init__(
        self,
        metadata: ResponseMetadata,
        writer: StreamWriter | WholeWriter,
        generate: Callable[[], AsyncGenerator[list[OutputDelta]]],
        *,
        context: ServerContext,
        request_context: RequestContext,
    ) -> None:
        super().__init__()
        self._metadata = metadata
        self._begin = generate
        self._context = context
        self._request_context = request_context
        self._writer = writer
        self._work: asyncio.Task[None] | None = None
        self._ended_by: list[ApiError | None] = []  # set from outside: an error, or None for an abort
        self._began_at = time.monotonic()
        self._first_at: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generate and send until the answer, the client or an abort ends it."""
        sse = SseWriter(send, self._context.config.sse_keep_alive_interval_s)
        in_flight = self._context.in_flight
        client_id = self._request_context.request_id if self._request_context.has_own_id else None
        entry = InFlightRequest(client_id=client_id, account=self._request_context.caller.account, end=self._end)
        in_flight.enter(self._metadata.id, entry)
        self._work = asyncio.create_task(self._generate(sse))
        left = asyncio.create_task(_until_disconnect(receive))
        try:
            await asyncio.wait((self._work, left), return_when=asyncio.FIRST_COMPLETED)
            if sse.is_complete:  # uvicorn calls the end of an answer a disconnect: let the work see its own end
                await asyncio.wait((self._work,))
            if self._ended_by:
                await _cancel(self._work)
                await self._finish_early(sse, self._ended_by[0])
            elif self._work.done():
                await self._conclude(sse, self._work.exception())
            else:
                self._sum_up("aborted, the client left")
        except BaseException as error:
            self._sum_up(f"failed: {error}")
            raise
        finally:
            in_flight.leave(self._metadata.id)
            await _cancel(self._work, left)

    def _end(self, error: ApiError | None) -> None:
        """End the answer from outside: with ``error``, or, when there is none, as aborted."""
        if self._work is not None and not self._ended_by:
            self._ended_by.append(error)
            self._work.cancel()

    async def _generate(self, sse: SseWriter) -> None:
        writer = self._writer
        batches = self._begin()
        try:
            if isinstance(writer, StreamWriter):
                await self._stream(writer, batches, sse)
            else:
                async for batch in batches:
                    self._note_first_token()
                    writer.add(batch)
                await sse.send_json(await _written(writer))
            assert not writer.counter.unfinished, "every choice ends with a reason"
            self._sum_up("completed")
        finally:
            await batches.aclose()

    async def _stream(self, writer: StreamWriter, batches: AsyncIterator[list[OutputDelta]], sse: SseWriter) -> None:
        keep_alive = asyncio.create_task(sse.keep_alive(writer.keep_alive))
        try:
            async for batch in batches:
                self._note_first_token()
                data = writer.write(batch)
                if data:
                    await sse.send_events(data, more=bool(writer.counter.unfinished))
        finally:
            await _cancel(keep_alive)

    async def _conclude(self, sse: SseWriter, error: BaseException | None) -> None:
        """Tell the client about ``error``: with a status when nothing was sent yet, else within the stream."""
        if error is None:
            return
        if not sse.has_begun:
            raise error
        if not isinstance(error, ApiError | HotseatError):
            logger.error("the stream of %s failed", self._metadata.id, exc_info=error)
        self._sum_up(f"failed: {error}")
        assert isinstance(self._writer, StreamWriter), "what was sent whole cannot fail"
        await sse.send_events(self._writer.write_error(as_api_error(error)), more=False)

    async def _finish_early(self, sse: SseWriter, error: ApiError | None) -> None:
        self._sum_up(f"ended: {error}" if error else "aborted on request")
        if sse.is_complete:
            return
        if error is not None and not sse.has_begun:
            raise error
        if not isinstance(self._writer, StreamWriter):
            await sse.send_json(await _written(self._writer))
        else:
            ending = self._writer.write_error(error) if error else self._writer.write_abort()
            await sse.send_events(ending, more=False)

    def _note_first_token(self) -> None:
        if self._first_at is None:
            self._first_at = time.monotonic()

    def _sum_up(self, outcome: str) -> None:
        """Note the outcome for the access log."""
        usage = self._writer.counter.usage()
        tokens = f"prompt={usage.prompt_tokens} cached={usage.cached_tokens} output={usage.completion_tokens}"
        first = "" if self._first_at is None else f" ttft={(self._first_at - self._began_at) * 1e3:.1f}ms"
        name = f"{self._metadata.id} " if self._request_context.has_own_id else ""  # else it is the request's id
        self._request_context.summary = f"{name}{outcome} {tokens}{first}"


async def _written(writer: WholeWriter) -> bytes:
    """Return the body; a large one is written beside the streams of others."""
    return await asyncio.to_thread(writer.write) if writer.is_large else writer.write()


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they are gone; what they raised is dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
