"""Server-sent events of the two completion endpoints, read without building what is not measured."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hotseat.loadgen.measure import RequestResult

__all__ = ["ChunkReader", "EventSplitter"]


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[object] | None = None


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    def carries_output(self) -> bool:
        if self.text or self.finish_reason:
            return True
        delta = self.delta
        return delta is not None and bool(
            delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls
        )


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


_decode = msgspec.json.Decoder(_Chunk).decode


class EventSplitter:
    """Cut a byte stream into the data of its events, wherever the pieces were cut on their way."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


class ChunkReader:
    """Write what a stream says into a ``RequestResult``."""

    def __init__(self, result: RequestResult) -> None:
        self.result = result
        self.done = False
        self._split = EventSplitter().feed

    def feed(self, piece: bytes, now: float) -> None:
        """Take bytes that arrived at ``now``."""
        for data in self._split(piece):
            if data == b"[DONE]":
                self.done = True
            else:
                self._event(data, now)

    def _event(self, data: bytes, now: float) -> None:
        result = self.result
        try:
            chunk = _decode(data)
        except msgspec.MsgspecError as error:
            result.error = f"an event is not a completion chunk: {error}"
            return
        if chunk.error:
            message = chunk.error.get("message") if isinstance(chunk.error, dict) else chunk.error
            result.error = f"error in the stream: {str(message)[:200]}"
        for choice in chunk.choices:
            if choice.carries_output():
                result.chunk_times.append(now)
                result.finish_reason = choice.finish_reason or result.finish_reason
        if chunk.usage and chunk.usage.completion_tokens:
            usage = chunk.usage
            result.counted_by_server = True
            result.num_prompt_tokens, result.num_output_tokens = usage.prompt_tokens, usage.completion_tokens
            details = usage.prompt_tokens_details
            result.num_cached_tokens = (details.cached_tokens or 0) if details else 0

    def finish(self) -> None:
        """Judge a stream that has ended; when the server sent no usage, its chunks are the count."""
        result = self.result
        if result.error is None and not result.chunk_times:
            result.error = "the stream ended without any text"
        elif result.error is None and not self.done and result.finish_reason is None:
            result.error = "the stream ended before its end"
        if not result.counted_by_server:
            result.num_output_tokens = len(result.chunk_times)
