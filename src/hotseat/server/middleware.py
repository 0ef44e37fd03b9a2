"""Middleware around all endpoints: request ids, keys, size, access log, and the handling of unexpected exceptions.

Plain ASGI, so that a streamed chunk passes through one function call.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotseat.server.auth import Caller
from hotseat.server.body import too_large
from hotseat.server.errors import ApiError, as_api_error, error_response, path_of
from hotseat.server.hosts import AllowedHosts, is_loopback
from hotseat.server.state import RequestContext, ServerContext

__all__ = ["RequestMiddleware"]

_logger = logging.getLogger(__name__)

_CLIENT_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_OPEN_PATHS = frozenset({"/", "/chat", "/docs", "/health", "/ready", "/version"})
_QUIET_PATHS = frozenset({"/", "/chat", "/health", "/ready", "/version", "/metrics", "/load", "/v1/steps"})


class RequestMiddleware:
    """Pass a request on, or refuse it: host names, keys, transfer encoding, size."""

    def __init__(self, app: ASGIApp, *, context: ServerContext) -> None:
        self._app = app
        self._context = context
        is_local = is_loopback(context.config.host)
        self._hosts = AllowedHosts(context.config.allowed_hosts, is_open=bool(context.api_keys) or not is_local)
        # Without keys all are one caller, and a machine's own users may do what its admin may.
        self._keyless = Caller(is_admin=is_local)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        try:
            refusal = self._refusal(scope, exchange)
            if refusal is not None:
                await error_response(refusal, exchange.path)(scope, receive, exchange.send)
            else:
                await self._app(scope, receive, exchange.send)
        except ClientDisconnect:
            exchange.request_context.summary = exchange.request_context.summary or "the client left"
        except Exception as error:
            _logger.exception("%s %s failed", scope["method"], scope["path"])
            if not exchange.status:
                await error_response(as_api_error(error), exchange.path)(scope, receive, exchange.send)
        finally:
            if not self._context.config.disable_access_log:
                exchange.log()

    def _refusal(self, scope: Scope, exchange: _Exchange) -> ApiError | None:
        headers = exchange.headers
        if (name := self._hosts.refused(scope["headers"])) is not None:
            return ApiError(403, f"This server is not called {name!r}; --allowed-hosts can allow the name.")
        origin = self._hosts.refused_origin(scope["headers"], self._context.config.allowed_origins)
        if origin is not None:
            return ApiError(403, f"Pages of {origin} may not ask this server; --allowed-origins can allow them.")
        if not self._context.api_keys:
            exchange.request_context.caller = self._keyless
        elif not self._is_open(exchange.path):
            caller = self._context.api_keys.caller(headers)
            if caller is None:
                message = "A valid API key is needed: send it as `Authorization: Bearer KEY`."
                return ApiError(401, message, code="invalid_api_key")
            exchange.request_context.caller = caller
        coding = headers.get(b"transfer-encoding", b"chunked").strip().lower()
        if coding != b"chunked":
            return ApiError(501, f"The transfer encoding {coding.decode('latin-1')[:100]!r} is not supported.")
        length = headers.get(b"content-length", b"")
        limit = self._context.config.max_request_bytes
        if length.isdigit() and int(length[:20]) > limit:
            return too_large(limit)
        return None

    def _is_open(self, path: str) -> bool:
        if path == "/metrics":
            return not self._context.config.protect_metrics
        return path in _OPEN_PATHS or path.startswith("/static/")


class _Exchange:
    """One HTTP exchange: the request's headers and context, and the sending of its response."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        client_id = self.headers.get(b"x-request-id", b"")
        has_own_id = _CLIENT_ID.fullmatch(client_id) is not None
        self.request_context = RequestContext(client_id.decode() if has_own_id else uuid.uuid4().hex, has_own_id)
        self.status = 0
        scope["hotseat.request_context"] = self.request_context
        self.path = path_of(scope)
        self._method = scope["method"]
        self._send = send
        self._began_at = time.monotonic()

    async def send(self, message: Message) -> None:
        """Pass ``message`` on; every response gets the request's id."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers: list[Any] = list(message.get("headers", ()))
            message["headers"] = [*headers, (b"x-request-id", self.request_context.request_id.encode())]
        await self._send(message)

    def log(self) -> None:
        """Write the line that every request ends with; polled paths only when they failed."""
        path = self.path
        if self.status and self.status < 400 and (path in _QUIET_PATHS or path.startswith("/static/")):
            return
        took_ms = (time.monotonic() - self._began_at) * 1e3
        # The path comes from the client: repr keeps line breaks and control characters out of the log.
        text = "%s %s %s %.1f ms %s%s"
        request_context = self.request_context
        summary = f" {request_context.summary}" if request_context.summary else ""
        _logger.info(
            text, self._method, repr(path[:200])[1:-1], self.status or "-", took_ms, request_context.request_id, summary
        )
