"""Writer of server-sent events and JSON bodies; keeps the order of parts when two tasks send."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.types import Send

__all__ = ["SseWriter"]

KEEP_ALIVE = b": keep-alive\n\n"
_SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class SseWriter:
    """The sending half of an exchange: a stream of events or one JSON body.

    While a stream is silent for ``keep_alive_interval_s`` (0 is never), ``keep_alive`` sends a comment or a ping, so
    that no proxy takes it for dead.
    """

    def __init__(self, send: Send, keep_alive_interval_s: float) -> None:
        self.has_begun = False
        self.is_complete = False
        self._send = send
        self._lock = asyncio.Lock()
        self._keep_alive_interval_s = keep_alive_interval_s
        self._last_sent_at = time.monotonic()

    async def send_events(self, data: bytes, *, more: bool) -> None:
        """Send a part of a stream; ``more`` false ends it."""
        async with self._lock:
            if self.is_complete:
                return
            if not self.has_begun:
                self.has_begun = True
                await self._send({"type": "http.response.start", "status": 200, "headers": _SSE_HEADERS})
            self._last_sent_at = time.monotonic()
            self.is_complete = not more
            await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def send_json(self, body: bytes) -> None:
        """Send a whole response."""
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        async with self._lock:
            self.has_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            self.is_complete = True
            await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def keep_alive(self, sign_of_life: Callable[[], bytes]) -> None:
        """Watch a stream until cancelled."""
        while self._keep_alive_interval_s > 0 and not self.is_complete:
            silent_s = time.monotonic() - self._last_sent_at
            if silent_s >= self._keep_alive_interval_s:
                await self.send_events(sign_of_life(), more=True)
            else:
                await asyncio.sleep(self._keep_alive_interval_s - silent_s)
