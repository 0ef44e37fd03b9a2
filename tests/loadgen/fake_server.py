"""A server that speaks just enough of OpenAI's API, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass
class FakeServer:
    """``behaviour`` maps the index of a completion request to ``ok``, ``error``, ``hang_up``, ``stream_error``."""

    behaviour: dict[int, str] = field(default_factory=dict)
    sends_usage: bool = True
    hangs_up_after: int | None = None  # close an idle connection after so many answers
    bodies: list[dict[str, Any]] = field(default_factory=list)
    num_connections: int = 0
    active: int = 0
    peak: int = 0
    url: str = ""
    # With gather > 1 nothing is answered until so many requests wait at once.
    gather: int = 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeServer]:
        self._gathered = asyncio.Event()
        self._handlers: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for handler in self._handlers:
                handler.cancel()
            await asyncio.gather(*self._handlers, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        answered = 0
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                while self.hangs_up_after is None or answered < self.hangs_up_after:
                    if not await self._answer(reader, writer):
                        break
                    answered += 1
        finally:
            self._handlers.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        if method == "GET":
            known = {"/v1/models": {"data": [{"id": "fake"}]}, "/version": {"version": "7"}}
            _write_json(writer, 200 if path in known else 404, known.get(path, {}))
            return True
        length = int(next(line for line in head.splitlines() if line.startswith("Content-Length")).split(":")[1])
        index = len(self.bodies)
        self.bodies.append({"path": path} | json.loads(await reader.readexactly(length)))
        self.active += 1
        self.peak = max(self.peak, self.active)
        if self.active >= self.gather:
            self._gathered.set()
        await self._gathered.wait()
        try:
            return await self._complete(writer, self.bodies[index], self.behaviour.get(index, "ok"))
        finally:
            self.active -= 1

    async def _complete(self, writer: asyncio.StreamWriter, body: dict[str, Any], behaviour: str) -> bool:
        if behaviour == "error":
            _write_json(writer, 503, {"error": {"message": "the queue is full"}})
            return True
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in self._events(body, behaviour):
            data = f"data: {json.dumps(event) if event else '[DONE]'}\n\n".encode()
            # Cut each event in two, so that the client must put the pieces together again.
            for piece in (data[:9], data[9:]):
                writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                await writer.drain()
        if behaviour == "hang_up":
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _events(self, body: dict[str, Any], behaviour: str) -> list[dict[str, Any] | None]:
        """One chunk per token, after an opening chunk without any text."""
        chat = body["path"].startswith("/v1/chat")
        count = body["max_tokens"]
        opening = {"delta": {"role": "assistant", "content": ""}} if chat else {"text": ""}
        events: list[dict[str, Any] | None] = [{"choices": [opening | {"finish_reason": None}]}]
        for number in range(count):
            choice = {"delta": {"content": "x"}} if chat else {"text": "x"}
            events.append({"choices": [choice | {"finish_reason": "length" if number == count - 1 else None}]})
        if behaviour == "hang_up":
            return events[:2]
        if behaviour == "stream_error":
            return [*events[:2], {"error": {"message": "it broke"}}, None]
        if self.sends_usage:
            details = {"cached_tokens": 3}
            usage = {"prompt_tokens": 11, "completion_tokens": count, "prompt_tokens_details": details}
            events.append({"choices": [], "usage": usage})
        return [*events, None]


def _write_json(writer: asyncio.StreamWriter, status: int, value: object) -> None:
    body = json.dumps(value).encode()
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
