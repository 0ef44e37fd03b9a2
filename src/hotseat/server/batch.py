"""Batches: lines of requests answered by the application itself, with no network in between."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec
from starlette.types import ASGIApp, Message

from hotseat.errors import ConfigError, EngineStoppedError

__all__ = ["BATCH_URLS", "BatchFiles", "BatchLine", "run_batch"]

BATCH_URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages")
RETRY_AFTER_S = 0.2  # when the queue was full


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A line of the input: a request, or the reason why it is none."""

    number: int  # from 1
    custom_id: str | None
    url: str = ""
    body: bytes = b""
    error: str = ""


@dataclass(slots=True)
class BatchFiles:
    """Input and output of a batch; lines that the output has answers to are not run again.

    Raises:
        ConfigError: a file cannot be read or written, or both are one.
    """

    input: Path
    output: Path
    num_lines: int = 0
    num_answered: int = 0  # by an earlier run
    _answered: set[str] = field(default_factory=set)
    _known_bad: set[int] = field(default_factory=set)  # numbers of lines without an id

    def __post_init__(self) -> None:
        if self.output.exists() and self.input.exists() and self.output.samefile(self.input):
            raise ConfigError(f"output_file is the input {str(self.input)!r} itself")
        try:
            with self.input.open("rb") as lines:
                self.num_lines = sum(1 for line in lines if line.strip())
            self._read_output()
        except OSError as error:
            raise ConfigError(f"{error.filename!r} cannot be used: {error.strerror}") from None

    def open_output(self) -> IO[bytes]:
        """Open the output for further lines."""
        return self.output.open("ab")

    def left(self) -> Iterator[BatchLine]:
        """Yield the lines that have no answer yet, in their order."""
        seen: set[str] = set()
        with self.input.open("rb") as lines:
            for number, text in enumerate(lines, start=1):
                if not text.strip():
                    continue
                line = _read_line(number, text)
                if line.custom_id in seen:
                    error = f"line {number} has the custom_id {line.custom_id!r} of an earlier one"
                    line = BatchLine(number, None, error=error)
                elif line.custom_id is not None:
                    seen.add(line.custom_id)
                if line.custom_id not in self._answered and line.number not in self._known_bad:
                    yield line

    def _read_output(self) -> None:
        """Note what the output has, and cut off a line that was not written to its end."""
        if not self.output.exists():
            return
        end = 0
        with self.output.open("rb") as lines:
            for text in lines:
                if not text.endswith(b"\n"):
                    break
                end += len(text)
                self._note(text)
        with self.output.open("r+b") as file:
            file.truncate(end)
        self.num_answered = len(self._answered) + len(self._known_bad)

    def _note(self, text: bytes) -> None:
        try:
            answer = msgspec.json.decode(text)
            custom_id, number = answer["custom_id"], answer.get("line")
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
            raise ConfigError(f"output_file {str(self.output)!r} exists and is not the output of a batch") from None
        if custom_id is not None:
            self._answered.add(str(custom_id))
        elif isinstance(number, int):
            self._known_bad.add(number)


async def run_batch(app: ASGIApp, files: BatchFiles, num_at_once: int, note: Callable[[bool], object]) -> int:
    """Answer the lines of ``files`` that have no answer yet, ``num_at_once`` of them at a time, as they finish.

    ``note`` is told of each line whether it was answered well. Returns how many were not.

    Raises:
        EngineStoppedError: the engine died; what was answered is in the output.
    """
    num_failed = 0
    with files.open_output() as output:

        def write(answer: dict[str, Any]) -> None:
            nonlocal num_failed
            output.write(msgspec.json.encode(answer) + b"\n")
            output.flush()  # what was answered stays answered, whatever comes
            num_failed += answer["error"] is not None
            note(answer["error"] is None)

        lines = files.left()

        async def work() -> None:
            for line in lines:  # shared: each worker takes the next one
                write(await _answer(app, line))

        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(num_at_once):
                    workers.create_task(work())
        except* EngineStoppedError as stopped:
            raise stopped.exceptions[0] from None
    return num_failed


async def _answer(app: ASGIApp, line: BatchLine) -> dict[str, Any]:
    """Return the line of the output that belongs to a line of the input, in the shape of OpenAI's batches."""
    answer: dict[str, Any] = {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": line.custom_id}
    if line.error:
        if line.custom_id is None:
            answer["line"] = line.number
        return answer | {"response": None, "error": {"code": "invalid_line", "message": line.error}}
    while True:
        exchange = _Exchange(line.url, line.body)
        await app(exchange.scope, exchange.receive, exchange.send)
        if exchange.status != 503 or exchange.headers.get(b"x-should-retry") != b"true":
            break
        await asyncio.sleep(RETRY_AFTER_S)
    body = msgspec.json.decode(bytes(exchange.body))
    if exchange.status == 503:  # what is left can be answered by another run
        raise EngineStoppedError(body["error"]["message"])
    request_id = exchange.headers.get(b"x-request-id", b"").decode()
    answer["response"] = {"status_code": exchange.status, "request_id": request_id, "body": body}
    answer["error"] = None
    if exchange.status != 200:
        answer["error"] = {"code": str(exchange.status), "message": body["error"]["message"]}
    return answer


class _Exchange:
    """One request at the interface of the application, whose client waits to the end."""

    def __init__(self, url: str, body: bytes) -> None:
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": url,
            "raw_path": url.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": None,
            "server": None,
        }
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = bytearray()
        self._parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        self._is_over = asyncio.Event()

    async def receive(self) -> Message:
        """Give the body, then wait until all was answered."""
        if self._parts:
            return self._parts.pop()
        await self._is_over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Collect the answer."""
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
            return
        self.body += message["body"]
        if not message.get("more_body", False):
            self._is_over.set()


def _read_line(number: int, text: bytes) -> BatchLine:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as cause:
        return BatchLine(number, None, error=f"line {number} is not valid JSON: {cause}")
    custom_id = value.get("custom_id") if isinstance(value, dict) else None
    if not isinstance(custom_id, str):
        return BatchLine(number, None, error=f"line {number} must be an object with a custom_id, which is a string")
    error, url, body = "", value.get("url"), value.get("body")
    if value.get("method", "POST") != "POST":
        error = f"the method must be POST, not {str(value['method'])[:20]!r}"
    elif url not in BATCH_URLS:
        error = f"the url must be one of {', '.join(BATCH_URLS)}, not {str(url)[:60]!r}"
    elif not isinstance(body, dict):
        error = "the body must be an object"
    elif body.get("stream"):
        error = "`stream` must not be true: answers are written when they are complete"
    if error:
        return BatchLine(number, custom_id, error=error)
    return BatchLine(number, custom_id, str(url), json.dumps(body).encode())
