"""Uvicorn's HTTP protocol with bounds: bytes of a header, time for a request, and clients that leave."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from hotseat.server.connections import ConnectionTable
from hotseat.server.errors import ApiError

__all__ = ["HttpProtocol"]

MAX_REQUESTS_AHEAD = 16  # that are read while an earlier one is answered
MAX_HEADER_BYTES = 64 * 1024  # request line and header fields


class HttpProtocol(HttpToolsProtocol):
    """Bound what a client may send before it is known, and end the requests of a lost connection.

    A header of more than MAX_HEADER_BYTES is answered with 431, bytes that are no HTTP with 400, and a request that is
    not complete ``receive_timeout_s`` after the connection was made (or after its first byte, for later ones) with 408.
    ``connections`` bounds how many there are. Uvicorn bounds none of these.

    Uvicorn tells the last request of a lost connection alone that its client has left, and once a request was sent
    ahead (pipelining) it reads no further, so that it does not see the end of the connection. The request being
    answered would run on without a reader.
    """

    def __init__(
        self, *args: Any, connections: ConnectionTable, receive_timeout_s: float = 60.0, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._connections = connections
        self._receive_timeout_s = receive_timeout_s
        self._receive_timer: asyncio.TimerHandle | None = None
        self._unanswered: tuple[RequestResponseCycle, ...] = ()
        self._is_in_header = True
        self._num_header_bytes = 0
        self._num_complete = 0  # requests that were read to their end

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to count the time of the first request."""
        super().connection_made(transport)
        self._start_timer()
        self._connections.enter(self)

    def data_received(self, data: bytes) -> None:
        """Read on, unless the header becomes too large."""
        was_in_header, num_complete = self._is_in_header, self._num_complete
        super().data_received(data)
        # Bytes that ended an earlier request are no header, however many they are.
        is_header = was_in_header and self._is_in_header and num_complete == self._num_complete
        if is_header and not self.transport.is_closing():
            self._num_header_bytes += len(data)
            if self._num_header_bytes > MAX_HEADER_BYTES:
                self._refuse(_header_too_large())

    def on_message_begin(self) -> None:
        """Begin to count the time of a request that follows another one."""
        super().on_message_begin()
        self._is_in_header = True
        self._start_timer()

    def on_headers_complete(self) -> None:
        """Start the request, keep hold of it, and keep reading."""
        self._is_in_header, self._num_header_bytes = False, 0
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if self.transport.is_closing() or size > MAX_HEADER_BYTES:
            self._refuse(_header_too_large())
            return
        super().on_headers_complete()
        if self.cycle is None or self.cycle in self._unanswered:
            return  # no request of HTTP began
        if self.scope["http_version"] == "1.0":  # knows no chunks: the end of the connection ends the body
            self.cycle.chunked_encoding = False
            self.cycle.expected_content_length = _AnyLength()  # type: ignore[assignment]
        self._unanswered = (*(cycle for cycle in self._unanswered if not cycle.response_complete), self.cycle)
        if len(self.pipeline) <= MAX_REQUESTS_AHEAD:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body, unless its header was refused."""
        if self.cycle is not None and not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End the count of the request's time."""
        self._stop_timer()
        self._connections.note_busy(self)
        self._num_complete += 1
        self._is_in_header, self._num_header_bytes = True, 0
        if self.cycle is not None and not self.transport.is_closing():
            super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the requests whose answers have no reader any more."""
        self._stop_timer()
        self._connections.leave(self)
        super().connection_lost(exc)
        for cycle in self._unanswered:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._unanswered = ()

    def on_response_complete(self) -> None:
        """Go on with the next request that was sent ahead, or wait for one."""
        super().on_response_complete()
        if not self.pipeline and not self.transport.is_closing():
            self._connections.note_waiting(self)

    def drop(self) -> None:
        """End a connection that others need more."""
        self.transport.close()

    def refuse_busy(self, num_open: int) -> None:
        """Say that all connections are busy, and close this one."""
        self._refuse(ApiError(503, f"All {num_open} connections (max_connections) are busy.", retry=True))

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP in the shape of the API's errors."""
        self._refuse(ApiError(400, msg))

    def _start_timer(self) -> None:
        if self._receive_timer is None and self._receive_timeout_s > 0:
            self._receive_timer = self.loop.call_later(self._receive_timeout_s, self._time_out)

    def _stop_timer(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    def _time_out(self) -> None:
        self._receive_timer = None
        if not self.transport.is_closing():
            limit = f"{self._receive_timeout_s:g} s (receive_timeout_s)"
            self._refuse(ApiError(408, f"The request was not complete after {limit}."))

    def _refuse(self, error: ApiError) -> None:
        """Answer with ``error``, unless an answer has begun, and close the connection."""
        if self.transport.is_closing():
            return
        if all(cycle.response_complete or not cycle.response_started for cycle in self._unanswered):
            body = error.body()
            phrase = HTTPStatus(error.status).phrase
            head = (
                f"HTTP/1.1 {error.status} {phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


class _AnyLength:
    """The length of a body that ends with its connection: no number of bytes sent exceeds or misses it."""

    def __lt__(self, sent: int) -> bool:
        return False

    def __sub__(self, sent: int) -> _AnyLength:
        return self

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def _header_too_large() -> ApiError:
    return ApiError(431, f"The header of a request may have {MAX_HEADER_BYTES} bytes.")
