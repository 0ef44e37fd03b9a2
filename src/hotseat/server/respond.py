"""Answer one generation request: generate, write, and end early when the client leaves or somebody says so."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hotseat.errors import HotseatError
from hotseat.server.answer import Answer, NumberedDelta
from hotseat.server.chunks import ChunkWriter, error_event
from hotseat.server.errors import ApiError, as_api_error
from hotseat.server.merge import DeltaStream, merge
from hotseat.server.result import ResultWriter
from hotseat.server.state import Flight, RequestNote, ServerContext
from hotseat.server.wire import Wire

__all__ = ["GenerationResponse"]

logger = logging.getLogger(__name__)


class GenerationResponse(Response):
    """An ASGI response that generates while it is sent.

    ``open_streams`` begins the generations, one for each prompt, when the response is called. A stream's headers go out
    with its first token, so that a request that is refused gets a true HTTP status, or with the first keep-alive
    comment.
    """

    def __init__(
        self,
        answer: Answer,
        open_streams: Callable[[], list[DeltaStream]],
        *,
        context: ServerContext,
        note: RequestNote,
        stream: bool,
    ) -> None:
        super().__init__()
        self._answer = answer
        self._open_streams = open_streams
        self._context = context
        self._note = note
        tokenizer = context.services.tokenizer
        self._writer = ChunkWriter(answer, tokenizer) if stream else ResultWriter(answer, tokenizer)
        self._work: asyncio.Task[None] | None = None
        self._ended_by: list[ApiError | None] = []  # set from outside: an error, or None for an abort
        self._began_at = time.monotonic()
        self._first_at: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generate and send until the end, whoever brings it about."""
        wire = Wire(send, self._context.config.sse_keep_alive_interval_s)
        flights = self._context.flights
        client_id = self._note.request_id if self._note.has_own_id else None
        flight = Flight(
            request_ids=self._answer.request_ids, client_id=client_id, account=self._note.caller.account, end=self._end
        )
        flights.enter(self._answer.id, flight)
        self._work = asyncio.create_task(self._generate(wire))
        left = asyncio.create_task(_until_disconnect(receive))
        try:
            await asyncio.wait((self._work, left), return_when=asyncio.FIRST_COMPLETED)
            if wire.is_complete:  # uvicorn calls the end of an answer a disconnect: let the work see its own end
                await asyncio.wait((self._work,))
            if self._ended_by:
                await _cancel(self._work)
                await self._finish_early(wire, self._ended_by[0])
            elif self._work.done():
                await self._conclude(wire, self._work.exception())
            else:
                self._sum_up("aborted, the client left")
        except BaseException as error:
            self._sum_up(f"failed: {error}")
            raise
        finally:
            flights.leave(self._answer.id)
            await _cancel(self._work, left)

    def _end(self, error: ApiError | None) -> None:
        """End the answer from outside: with ``error``, or, when there is none, as aborted."""
        if self._work is not None and not self._ended_by:
            self._ended_by.append(error)
            self._work.cancel()

    async def _generate(self, wire: Wire) -> None:
        writer = self._writer
        batches = merge(self._open_streams())
        try:
            if isinstance(writer, ChunkWriter):
                await self._stream(writer, batches, wire)
            else:
                async for batch in batches:
                    self._note_first_token()
                    writer.add(batch)
                await wire.send_json(writer.write())
            assert not writer.tally.unfinished, "every choice ends with a reason"
            self._sum_up("completed")
        finally:
            await batches.aclose()

    async def _stream(self, writer: ChunkWriter, batches: AsyncIterator[list[NumberedDelta]], wire: Wire) -> None:
        keep_alive = asyncio.create_task(wire.keep_alive())
        try:
            async for batch in batches:
                self._note_first_token()
                data = writer.write(batch)
                if data:
                    await wire.send_events(data, more=bool(writer.tally.unfinished))
        finally:
            await _cancel(keep_alive)

    async def _conclude(self, wire: Wire, error: BaseException | None) -> None:
        """Tell the client about ``error``: with a status when nothing was sent yet, else within the stream."""
        if error is None:
            return
        if not wire.has_begun:
            raise error
        if not isinstance(error, ApiError | HotseatError):
            logger.error("the stream of %s failed", self._answer.id, exc_info=error)
        self._sum_up(f"failed: {error}")
        await wire.send_events(error_event(as_api_error(error)), more=False)

    async def _finish_early(self, wire: Wire, error: ApiError | None) -> None:
        self._sum_up(f"ended: {error}" if error else "aborted on request")
        if wire.is_complete:
            return
        if error is not None and not wire.has_begun:
            raise error
        if not isinstance(self._writer, ChunkWriter):
            await wire.send_json(self._writer.write())
        else:
            await wire.send_events(error_event(error) if error else self._writer.write_abort(), more=False)

    def _note_first_token(self) -> None:
        if self._first_at is None:
            self._first_at = time.monotonic()

    def _sum_up(self, outcome: str) -> None:
        """Write down for the access log how it went."""
        usage = self._writer.tally.usage()
        tokens = f"prompt={usage.prompt_tokens} cached={usage.cached_tokens} output={usage.completion_tokens}"
        first = "" if self._first_at is None else f" ttft={(self._first_at - self._began_at) * 1e3:.1f}ms"
        name = f"{self._answer.id} " if self._note.has_own_id else ""  # else it is the request's id
        self._note.summary = f"{name}{outcome} {tokens}{first}"


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they are gone; what they raised is dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
