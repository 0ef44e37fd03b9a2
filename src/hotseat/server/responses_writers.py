"""Answers in the shape of OpenAI's Responses API: a list of items, whole or as a stream of numbered events."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from hotseat.formats import CallDelta
from hotseat.generation import OutputDelta
from hotseat.server.errors import ApiError
from hotseat.server.logprobs import TokenNames
from hotseat.server.metadata import ResponseMetadata, UsageCounter
from hotseat.server.writers import StreamWriter, WholeWriter

__all__ = ["ResponseStreamWriter", "ResponseWriter"]

Event = dict[str, Any]

_encode = msgspec.json.Encoder().encode


class _Output:
    """The items of a response as they grow; each change is returned as events, which are not yet numbered."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._is_open = False

    def reason(self, text: str) -> list[Event]:
        """Add to the reasoning."""
        events = []
        if not self._is("reasoning"):
            content = [{"type": "reasoning_text", "text": ""}]
            item = {"id": _new_id("rs"), "type": "reasoning", "summary": [], "content": content}
            # To clients an item begins empty, here with what it will hold.
            events = self._begin({**item, "encrypted_content": None}, content=[])
        self.items[-1]["content"][0]["text"] += text
        return [*events, self._part_event("response.reasoning_text.delta", delta=text)]

    def write(self, text: str, logprobs: list[Any]) -> list[Event]:
        """Add to a message."""
        events = []
        if not self._is("message"):
            content = [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
            item = {"id": _new_id("msg"), "type": "message", "role": "assistant", "content": content}
            events = self._begin(item, content=[])
            part = {**content[0], "annotations": [], "logprobs": []}
            events.append(self._part_event("response.content_part.added", part=part))
        part = self.items[-1]["content"][0]
        part["text"] += text
        part["logprobs"] += logprobs
        return [*events, self._part_event("response.output_text.delta", delta=text, logprobs=logprobs)]

    def call(self, call: CallDelta) -> list[Event]:
        """Begin a call, or add to its arguments."""
        events = []
        if call.name is not None:
            item = {"id": _new_id("fc"), "type": "function_call", "call_id": _new_id("call"), "name": call.name}
            events = self._begin({**item, "arguments": ""})
        if not call.arguments:
            return events
        self.items[-1]["arguments"] += call.arguments
        return [*events, self._event("response.function_call_arguments.delta", delta=call.arguments)]

    def close(self, status: str) -> list[Event]:
        """End the item that is open, if any."""
        if not self._is_open:
            return []
        self._is_open = False
        item = self.items[-1]
        item["status"] = status
        events = []
        if item["type"] == "function_call":
            said = {"name": item["name"], "arguments": item["arguments"]}
            events = [self._event("response.function_call_arguments.done", **said)]
        elif item["type"] == "reasoning":
            events = [self._part_event("response.reasoning_text.done", text=item["content"][0]["text"])]
        else:
            part = item["content"][0]
            said = {"text": part["text"], "logprobs": part["logprobs"]}
            events = [self._part_event("response.output_text.done", **said)]
            events.append(self._part_event("response.content_part.done", part=part))
        return [*events, self._item_event("response.output_item.done", item)]

    def _is(self, kind: str) -> bool:
        return self._is_open and bool(self.items[-1]["type"] == kind)

    def _begin(self, item: dict[str, Any], **shown: Any) -> list[Event]:
        events = self.close("completed")
        self.items.append({**item, "status": "in_progress"})
        self._is_open = True
        return [*events, self._item_event("response.output_item.added", {**self.items[-1], **shown})]

    def _item_event(self, kind: str, item: dict[str, Any]) -> Event:
        return {"type": kind, "output_index": len(self.items) - 1, "item": item}

    def _event(self, kind: str, **values: Any) -> Event:
        return {"type": kind, "output_index": len(self.items) - 1, "item_id": self.items[-1]["id"], **values}

    def _part_event(self, kind: str, **values: Any) -> Event:
        return self._event(kind, content_index=0, **values)


class _Response:
    """A response as far as it has come; ``echo`` are the fields of the request that it repeats."""

    def __init__(self, metadata: ResponseMetadata, echo: Mapping[str, Any], names: TokenNames) -> None:
        self.counter = UsageCounter(metadata)
        self.status = "in_progress"
        self._metadata = metadata
        self._echo = echo
        self._names = names
        self._output = _Output()
        self._incomplete: str | None = None
        self._error: dict[str, Any] | None = None
        self._completed_at: int | None = None

    def add(self, delta: OutputDelta) -> list[Event]:
        """Take ``delta`` and return its events.

        Raises:
            ApiError: the answer failed.
        """
        self.counter.add(delta)
        events: list[Event] = []
        if delta.reasoning:
            events += self._output.reason(delta.reasoning)
        logprobs: list[Any] = []
        if self._metadata.logprobs is not None and delta.logprobs and not (delta.reasoning or delta.calls):
            logprobs = list(self._names.chat(delta.logprobs, self._metadata.logprobs))
        if delta.text or logprobs:
            events += self._output.write(delta.text, logprobs)
        for call in delta.calls or ():
            events += self._output.call(call)
        return events + (self._end(delta.finish_reason) if delta.finish_reason is not None else [])

    def end(self, status: str) -> list[Event]:
        """End the response and its open item."""
        self.counter.unfinished.clear()
        self.status = status
        is_complete = status == "completed"
        self._completed_at = int(time.time()) if is_complete else None
        events = [] if self._output.items or not is_complete else self._output.write("", [])
        return events + self._output.close("completed" if is_complete else "incomplete")

    def fail(self, error: ApiError) -> None:
        """End the response with an error."""
        self.status = "failed"
        self._error = {"code": "server_error", "message": error.message}

    def shaped(self) -> dict[str, Any]:
        """Return the response object."""
        return {
            "id": self._metadata.id,
            "object": "response",
            "created_at": self._metadata.created,
            "completed_at": self._completed_at,
            "status": self.status,
            "error": self._error,
            "incomplete_details": None if self._incomplete is None else {"reason": self._incomplete},
            "model": self._metadata.model,
            "output": self._output.items,
            "usage": None if self.status == "in_progress" else self._usage(),
            **self._echo,
        }

    def _end(self, reason: str) -> list[Event]:
        if reason == "length":
            self._incomplete = "max_output_tokens"
        return self.end({"length": "incomplete", "abort": "cancelled"}.get(reason, "completed"))

    def _usage(self) -> dict[str, Any]:
        usage = self.counter.usage()
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }


class ResponseWriter(WholeWriter):
    """Collect a response."""

    def __init__(self, metadata: ResponseMetadata, echo: Mapping[str, Any], names: TokenNames) -> None:
        self._response = _Response(metadata, echo, names)
        self.counter = self._response.counter

    def add(self, batch: list[OutputDelta]) -> None:
        """Take what one step brought."""
        for delta in batch:
            self._response.add(delta)

    def write(self) -> bytes:
        """Return the response; one that has not ended was cancelled."""
        if self._response.status == "in_progress":
            self._response.end("cancelled")
        return _encode(self._response.shaped())


class ResponseStreamWriter(StreamWriter):
    """Turn deltas into events, numbered from 0, whose last one has the whole response."""

    def __init__(self, metadata: ResponseMetadata, echo: Mapping[str, Any], names: TokenNames) -> None:
        self._response = _Response(metadata, echo, names)
        self.counter = self._response.counter
        self._num_events = 0

    def write(self, batch: list[OutputDelta]) -> bytes:
        """Return the events for what one step brought."""
        data = [] if self._num_events else self._start()
        for delta in batch:
            data += [self._event(event) for event in self._response.add(delta)]
            if delta.finish_reason is not None:
                data.append(self._last())
        return b"".join(data)

    def write_abort(self) -> bytes:
        """Return the end of a response that was cancelled."""
        data = [] if self._num_events else self._start()
        data += [self._event(event) for event in self._response.end("cancelled")]
        return b"".join([*data, self._last()])

    def write_error(self, error: ApiError) -> bytes:
        """Return an event with the error, and the response that failed."""
        data = [] if self._num_events else self._start()
        code = error.code or str(error.status)
        data.append(self._event({"type": "error", "code": code, "message": error.message, "param": error.param}))
        self._response.fail(error)
        return b"".join([*data, self._last()])

    def _start(self) -> list[bytes]:
        response = self._response.shaped()
        return [self._event({"type": f"response.{name}", "response": response}) for name in ("created", "in_progress")]

    def _last(self) -> bytes:
        name = {"completed": "completed", "failed": "failed"}.get(self._response.status, "incomplete")
        return self._event({"type": f"response.{name}", "response": self._response.shaped()})

    def _event(self, values: Event) -> bytes:
        number = self._num_events
        self._num_events += 1
        return b"event: %b\ndata: %b\n\n" % (values["type"].encode(), _encode({**values, "sequence_number": number}))


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:24]}"
