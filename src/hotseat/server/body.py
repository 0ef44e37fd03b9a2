"""JSON bodies of requests, checked for type, size, depth and shape."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from pydantic import ValidationError

from hotseat.server.errors import ApiError, validation_error
from hotseat.server.schema import JsonBody

__all__ = ["check_content_type", "num_values", "read_json", "too_large"]

MAX_DEPTH = 64
MAX_VALUES = 131_072  # building the objects of more would stop all streams for long
MAX_INLINE_BYTES = 64 * 1024  # larger bodies are parsed in a thread, beside the streams of others

Body = TypeVar("Body", bound=JsonBody)


async def read_json(request: Request, model: type[Body], max_bytes: int) -> Body:
    """Return the request's body as ``model``.

    Raises:
        ApiError: 400 when it is no JSON or has the wrong shape, 413 when it is too large.
    """
    check_content_type(request)
    data = await _read(request, max_bytes)
    if len(data) <= MAX_INLINE_BYTES:
        return _parse(data, model)
    return await asyncio.to_thread(_parse, data, model)


def too_large(max_bytes: int) -> ApiError:
    """Return the error for a body above the limit."""
    return ApiError(413, f"The body is larger than {max_bytes} bytes.")


def check_content_type(request: Request) -> None:
    """Raise ApiError 400 unless the body is declared as JSON."""
    # Also what keeps foreign web pages out: a browser asks before it sends this type across origins.
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(400, f"The content type must be application/json, not {kind[:60]!r}.")


async def _read(request: Request, max_bytes: int) -> bytes:
    parts = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise too_large(max_bytes)
        parts.append(part)
    return b"".join(parts)


def _parse(data: bytes, model: type[Body]) -> Body:
    value = _decode(data)
    if not isinstance(value, dict):
        raise ApiError(400, "The body must be a JSON object.")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise validation_error(error) from None


def num_values(data: bytes, limit: int) -> int:
    """Return about how many values and names a JSON text has; once it is more than ``limit``, it counts no further."""
    count = begin = 0
    while count <= limit:
        quote = data.find(b'"', begin)
        between = data[begin : quote if quote >= 0 else len(data)]
        count += sum(map(between.count, (b",", b":", b"[", b"{")))
        if quote < 0:
            break
        begin = _end_of_string(data, quote + 1)
    return count


def _end_of_string(data: bytes, begin: int) -> int:
    """Return where the string ends whose text begins at ``begin``."""
    while (quote := data.find(b'"', begin)) >= 0:
        backslash = quote
        while backslash > begin and data[backslash - 1] == ord("\\"):
            backslash -= 1
        if (quote - backslash) % 2 == 0:
            return quote + 1
        begin = quote + 1
    return len(data)


def _decode(data: bytes) -> Any:
    # Counted roughly first: the commas of a long text are no values.
    if sum(map(data.count, (b",", b":", b"[", b"{"))) > MAX_VALUES and num_values(data, MAX_VALUES) > MAX_VALUES:
        raise ApiError(413, f"The body has more than {MAX_VALUES} values, names and lists counted as well.")
    try:
        value = msgspec.json.decode(data)
    except RecursionError:
        raise _too_deep() from None
    except msgspec.MsgspecError as error:
        # Covers NaN and Infinity, bytes that are no UTF-8, and lone surrogates.
        raise ApiError(400, f"The body is not valid JSON: {error}") from None
    except ValueError as error:  # an integer of thousands of digits
        raise ApiError(400, f"The body is not valid JSON: {error}") from None
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ApiError:
    return ApiError(400, f"The body is nested more than {MAX_DEPTH} deep.")
