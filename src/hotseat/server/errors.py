"""Say every failure in the API's shape: one function maps our exceptions to HTTP, one writes the body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from hotseat.errors import EngineStoppedError, HotseatError, InvalidRequestError, QueueFullError

__all__ = [
    "ANTHROPIC_PATH",
    "ApiError",
    "as_api_error",
    "error_response",
    "handle_error",
    "path_of",
    "validation_error",
]

RETRY_AFTER_S = 1
MAX_SHOWN_ERRORS = 10
MAX_SHOWN_CHARACTERS = 300

_UNION_MEMBERS = frozenset({"str", "int", "float", "bool", "list", "dict", "text", "ids", "texts", "lists"})
_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "TimeoutError",
    413: "RequestTooLargeError",
    431: "RequestTooLargeError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
    504: "TimeoutError",
}
ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}


@dataclass(eq=False)
class ApiError(Exception):
    """A failure as a client sees it.

    ``retry`` says whether the same request can succeed later; the OpenAI clients obey it.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None  # instead of the status
    retry: bool = False

    def __post_init__(self) -> None:
        super().__init__(self.message)

    def renamed(self, names: Mapping[str, str]) -> ApiError:
        """Return the error with fields by their ``names``, where they stand in backticks or begin the message."""
        message = self.message
        for name, own in names.items():
            message = re.sub(rf"(`|^){name}(?!\w)", rf"\g<1>{own}", message)
        return replace(self, message=message, param=names.get(self.param or "", self.param))

    def body(self, path: str = "") -> bytes:
        """Return the JSON object that the clients of the API at ``path`` understand: OpenAI's, or Anthropic's."""
        if path.startswith(ANTHROPIC_PATH):
            return self._anthropic_body()
        kind = _TYPES.get(self.status, "BadRequestError" if self.status < 500 else "InternalServerError")
        code = self.status if self.code is None else self.code
        error = {"message": self.message, "type": kind, "param": self.param, "code": code}
        return msgspec.json.encode({"error": error})

    def _anthropic_body(self) -> bytes:
        kind = _ANTHROPIC_TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
        if self.status == HTTPStatus.SERVICE_UNAVAILABLE and not self.retry:
            kind = "api_error"
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": self.message}})

    def headers(self) -> dict[str, str]:
        """Return what tells clients whether and when to try again."""
        headers = {"x-should-retry": "true" if self.retry else "false"}
        if self.retry:
            headers["retry-after"] = str(RETRY_AFTER_S)
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["www-authenticate"] = "Bearer"
        return headers


def as_api_error(error: BaseException) -> ApiError:
    """Map any exception to what the client is told; only messages written for users get through."""
    match error:
        case ApiError():
            return error
        case RequestValidationError():
            return _parameter_error(error)
        case InvalidRequestError():
            return ApiError(400, str(error), error.param)
        case QueueFullError():
            return ApiError(503, f"The server is overloaded: {error}", retry=True)
        case EngineStoppedError():
            return ApiError(503, str(error) or "The engine is stopped.")
        case HTTPException():
            return ApiError(error.status_code, _http_message(error))
        case HotseatError():
            return ApiError(500, str(error))
        case _:
            return ApiError(500, "The server failed while it handled this request; its log has the details.")


def error_response(error: ApiError, path: str) -> Response:
    """Return ``error`` as the HTTP response to a request for ``path``."""
    return Response(error.body(path), error.status, error.headers(), "application/json")


def path_of(scope: Scope) -> str:
    """Return the path below the root at which the application is mounted."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


async def handle_error(request: Request, error: Exception) -> Response:
    """Answer a request whose handler raised ``error`` before a response began."""
    names = request.scope["hotseat.request_context"].field_names
    response = error_response(as_api_error(error).renamed(names), path_of(request.scope))
    if isinstance(error, HTTPException) and error.headers:
        response.headers.update(error.headers)
    return response


def _parameter_error(error: RequestValidationError) -> ApiError:
    """Say which query parameter or part of the path is wrong."""
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return ApiError(400, f"{name}: {first['msg']}{_shown(first.get('input'))}", name)


def validation_error(error: ValidationError) -> ApiError:
    """Say which fields of a body are wrong, at most ten of them, inputs cut short."""
    # A union reports once for each of its members; the first of each field is enough.
    seen: dict[str, str] = {}
    for item in error.errors(include_url=False, include_context=False):
        path = _field_path(item["loc"])
        if path not in seen:
            seen[path] = f"{path}: {item['msg']}{_shown(item.get('input'))}" if path else item["msg"]
    messages = list(seen.values())
    text = "; ".join(messages[:MAX_SHOWN_ERRORS])
    if len(messages) > MAX_SHOWN_ERRORS:
        text += f"; and {len(messages) - MAX_SHOWN_ERRORS} more"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"]
    return ApiError(400, text, str(first[0]) if first else None)


def _field_path(location: tuple[int | str, ...]) -> str:
    """Return ``messages.0.content``; pydantic's names of union members are no part of it."""
    parts = [str(part) for part in location if isinstance(part, int) or part.isidentifier()]
    return ".".join(part for i, part in enumerate(parts) if i == 0 or part not in _UNION_MEMBERS)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, list | dict):
        return ""
    text = repr(value)
    return f" (got {text[:60]}…)" if len(text) > 60 else f" (got {text})"


def _http_message(error: HTTPException) -> str:
    if error.status_code == HTTPStatus.NOT_FOUND:
        return "There is no such path; the API is described at /openapi.json."
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return "This path does not take this method."
    return str(error.detail)[:MAX_SHOWN_CHARACTERS]
