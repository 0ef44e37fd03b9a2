"""Answers in the shape of Anthropic's Messages API: a message of content blocks, whole or as a stream of events."""

from __future__ import annotations

import json
import uuid
from typing import Any

import msgspec

from hotseat.formats import CallDelta
from hotseat.generation import OutputDelta
from hotseat.server.errors import ANTHROPIC_PATH, ApiError
from hotseat.server.metadata import ResponseMetadata, UsageCounter
from hotseat.server.sse import KEEP_ALIVE
from hotseat.server.writers import StreamWriter, WholeWriter

__all__ = ["MessageStreamWriter", "MessageWriter"]

_encode = msgspec.json.Encoder().encode
_PING = {"type": "ping"}


def _event(values: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (values["type"].encode(), _encode(values))


class _Content:
    """The blocks of a message as they grow; each change is returned as events."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []
        self.has_calls = False
        self._is_open = False
        self._arguments: list[str] = []  # of the call that is open

    def feed(self, delta: OutputDelta) -> list[dict[str, Any]]:
        """Add what ``delta`` brings."""
        events: list[dict[str, Any]] = []
        if delta.reasoning:
            events += self._text("thinking", delta.reasoning, {"signature": ""})
        if delta.text:
            events += self._text("text", delta.text, {})
        for call in delta.calls or ():
            events += self._call(call)
        return events

    def close(self) -> list[dict[str, Any]]:
        """End the block that is open, if any."""
        if not self._is_open:
            return []
        self._is_open = False
        block = self.blocks[-1]
        if block["type"] == "tool_use":
            block["input"] = _arguments("".join(self._arguments))
            self._arguments.clear()
        return [{"type": "content_block_stop", "index": len(self.blocks) - 1}]

    def _text(self, kind: str, text: str, further: dict[str, Any]) -> list[dict[str, Any]]:
        """Add to a block of text or of thinking, whose type is also the name of what it holds."""
        events = []
        if not self._is_open or self.blocks[-1]["type"] != kind:
            events = self._begin({"type": kind, kind: "", **further})
        self.blocks[-1][kind] += text
        return [*events, self._delta({"type": f"{kind}_delta", kind: text})]

    def _call(self, call: CallDelta) -> list[dict[str, Any]]:
        events = []
        if call.name is not None:
            self.has_calls = True
            call_id = f"toolu_{uuid.uuid4().hex[:24]}"
            events = self._begin({"type": "tool_use", "id": call_id, "name": call.name, "input": {}})
        if not call.arguments:
            return events
        self._arguments.append(call.arguments)
        return [*events, self._delta({"type": "input_json_delta", "partial_json": call.arguments})]

    def _begin(self, block: dict[str, Any]) -> list[dict[str, Any]]:
        events = self.close()
        self.blocks.append(dict(block))
        self._is_open = True
        return [*events, {"type": "content_block_start", "index": len(self.blocks) - 1, "content_block": block}]

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}


class _Message:
    """A message as far as it has come: its content, reasons and usage."""

    def __init__(self, metadata: ResponseMetadata) -> None:
        self.counter = UsageCounter(metadata)
        self.content = _Content()
        self._metadata = metadata
        self._stop_reason: str | None = None  # none: aborted
        self._stop_sequence: str | None = None

    def add(self, delta: OutputDelta) -> list[dict[str, Any]]:
        """Take ``delta`` and return its events.

        Raises:
            ApiError: the answer failed.
        """
        self.counter.add(delta)
        events = self.content.feed(delta)
        if delta.finish_reason is not None:
            self._end(delta)
        return events

    def shaped(self) -> dict[str, Any]:
        """Return the message."""
        return {
            "id": self._metadata.id,
            "type": "message",
            "role": "assistant",
            "model": self._metadata.model,
            "content": self.content.blocks,
            **self.ending(),
            "usage": self.usage(),
        }

    def ending(self) -> dict[str, Any]:
        """Return why the message ended."""
        return {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}

    def usage(self) -> dict[str, Any]:
        """Return the usage; tokens that came from the cache are no part of ``input_tokens``."""
        usage = self.counter.usage()
        thought = usage.reasoning_tokens
        return {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": None if thought is None else {"thinking_tokens": thought},
        }

    def _end(self, delta: OutputDelta) -> None:
        if delta.finish_reason == "length":
            self._stop_reason = "max_tokens"
        elif delta.finish_reason == "abort":
            self._stop_reason = None
        elif isinstance(delta.stop_reason, str):
            self._stop_reason, self._stop_sequence = "stop_sequence", delta.stop_reason
        else:
            self._stop_reason = "tool_use" if self.content.has_calls else "end_turn"


class MessageWriter(WholeWriter):
    """Collect a message."""

    def __init__(self, metadata: ResponseMetadata) -> None:
        self._message = _Message(metadata)
        self.counter = self._message.counter

    def add(self, batch: list[OutputDelta]) -> None:
        """Take what one step brought."""
        for delta in batch:
            self._message.add(delta)

    def write(self) -> bytes:
        """Return the message; one that has not ended has no ``stop_reason``."""
        self._message.content.close()
        return _encode(self._message.shaped())


class MessageStreamWriter(StreamWriter):
    """Turn deltas into events: the message's start, its blocks one after the other, its end."""

    def __init__(self, metadata: ResponseMetadata) -> None:
        self._message = _Message(metadata)
        self.counter = self._message.counter
        self._has_begun = False

    def write(self, batch: list[OutputDelta]) -> bytes:
        """Return the events for what one step brought."""
        events: list[dict[str, Any]] = []
        for delta in batch:
            grown = self._message.add(delta)
            if not self._has_begun:
                events += self._start()
            events += grown
            if delta.finish_reason is not None:
                events += self._ending()
        return b"".join(map(_event, events))

    def write_abort(self) -> bytes:
        """Return the end of a message that was aborted."""
        events = [] if self._has_begun else self._start()
        self.counter.unfinished.clear()
        return b"".join(map(_event, [*events, *self._ending()]))

    def write_error(self, error: ApiError) -> bytes:
        """Return an event with the error; nothing follows it."""
        return b"event: error\ndata: %b\n\n" % error.body(ANTHROPIC_PATH)

    def keep_alive(self) -> bytes:
        """Return a ping, or a comment before the message has begun."""
        return _event(_PING) if self._has_begun else KEEP_ALIVE

    def _start(self) -> list[dict[str, Any]]:
        self._has_begun = True
        message = {**self._message.shaped(), "content": [], "stop_reason": None, "stop_sequence": None}
        return [{"type": "message_start", "message": message}, _PING]

    def _ending(self) -> list[dict[str, Any]]:
        end = {"type": "message_delta", "delta": self._message.ending(), "usage": self._message.usage()}
        return [*self._message.content.close(), end, {"type": "message_stop"}]


def _arguments(text: str) -> Any:
    """Return the arguments of a call; those that ``max_tokens`` cut are no JSON, and become an empty object."""
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
