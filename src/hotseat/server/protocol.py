"""Uvicorn's HTTP protocol, for clients that leave after they have sent requests ahead."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

__all__ = ["HttpProtocol"]

MAX_REQUESTS_AHEAD = 16  # that are read while an earlier one is answered


class HttpProtocol(HttpToolsProtocol):
    """Tell every unanswered request of a lost connection that its client has left.

    Uvicorn tells the last one alone, and once a request was sent ahead (pipelining) it reads no further, so that it
    does not see the end of the connection. The request being answered would run on, for nobody.
    """

    _unanswered: tuple[RequestResponseCycle, ...] = ()

    def on_headers_complete(self) -> None:
        """Keep hold of the request that begins, and keep reading."""
        super().on_headers_complete()
        if self.cycle is None or self.cycle in self._unanswered:
            return  # no request of HTTP began
        self._unanswered = (*(cycle for cycle in self._unanswered if not cycle.response_complete), self.cycle)
        if len(self.pipeline) <= MAX_REQUESTS_AHEAD:
            self.flow.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the requests whose answers nobody will read."""
        super().connection_lost(exc)
        for cycle in self._unanswered:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._unanswered = ()
