"""A small HTTP/1.1 client for streams: keep-alive connections, one parser, no copies.

It shares two cores with the server that it measures, so it does as little as possible for a chunk.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools

__all__ = ["HttpClient", "Response"]

READ_SIZE = 65536


class Response(NamedTuple):
    """A finished answer; ``body`` is empty when its pieces went to ``on_body``."""

    status: int
    body: bytes


class _Receiver:
    """Callbacks of the parser for one response."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.pieces: list[bytes] = []
        self.complete = False
        self.keep_alive = False
        self.started = False
        self.ends_with_connection = True  # neither a length nor chunks: the answer ends when the server hangs up

    def on_message_begin(self) -> None:
        self.started = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self.ends_with_connection = False

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        self.complete = True
        self.keep_alive = self.parser.should_keep_alive()

    def take(self) -> bytes:
        body = b"".join(self.pieces)
        self.pieces.clear()
        return body


class HttpClient:
    """Send requests to one server, over as many connections as there are requests at a time."""

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or "127.0.0.1"
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._authorization = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._netloc = parts.netloc.rpartition("@")[2]
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.num_connections = 0  # opened so far

    async def get(self, path: str) -> Response:
        """Fetch ``path``."""
        return await self._exchange(self._head("GET", path, {}), None)

    async def post(self, path: str, body: bytes, on_body: Callable[[bytes, float], None]) -> Response:
        """Send JSON; hand pieces of a 200 answer to ``on_body`` with the instant at which they came.

        An answer of another status is collected and returned.

        Raises:
            ConnectionError: the server hung up before the end of its answer, or does not speak HTTP.
        """
        head = self._head("POST", path, {"Content-Type": "application/json", "Content-Length": str(len(body))})
        return await self._exchange(head + body, on_body)

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()

    def _head(self, method: str, path: str, headers: Mapping[str, str]) -> bytes:
        fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return (
            f"{method} {self._prefix}{path} HTTP/1.1\r\nHost: {self._netloc}\r\nAccept: */*\r\n"
            f"{self._authorization}{fields}\r\n"
        ).encode()

    async def _exchange(self, message: bytes, on_body: Callable[[bytes, float], None] | None) -> Response:
        """Use an idle connection if there is one; when the server had closed it meanwhile, open another."""
        while True:
            reused = bool(self._idle)
            reader, writer = self._idle.pop() if reused else await self._connect()
            receiver = _Receiver()
            keep = False
            try:
                writer.write(message)
                await _receive(reader, receiver, on_body)
                keep = receiver.keep_alive
                return Response(receiver.parser.get_status_code(), receiver.take())
            except ConnectionError:
                if not reused or receiver.started:
                    raise
            finally:
                if keep:
                    self._idle.append((reader, writer))
                else:
                    writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.num_connections += 1
        return await asyncio.open_connection(self._host, self._port, ssl=self._tls)


async def _receive(
    reader: asyncio.StreamReader, receiver: _Receiver, on_body: Callable[[bytes, float], None] | None
) -> None:
    while not receiver.complete:
        data = await reader.read(READ_SIZE)
        now = time.perf_counter()
        if not data and receiver.started and receiver.ends_with_connection:
            return
        if not data:
            raise ConnectionError("the server hung up before the end of its answer")
        try:
            receiver.parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise ConnectionError(f"the answer is not HTTP: {error}") from None
        if on_body and receiver.pieces and receiver.parser.get_status_code() == 200:
            on_body(receiver.take(), now)
