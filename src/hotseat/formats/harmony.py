"""Answers in channels, as gpt-oss writes them: each message has a header that tells for whom it is."""

from __future__ import annotations

import re

from hotseat.formats.parts import CallDelta, ParsedText, PartsWriter
from hotseat.formats.values import ValueEnd, partial

__all__ = ["HARMONY_END", "HarmonyParser"]

_START, _MESSAGE = "<|start|>", "<|message|>"
HARMONY_END = ("<|end|>", "<|call|>", "<|return|>", _START)
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.-]+)")
MAX_HEADER = 512  # characters


class HarmonyParser:
    """Splits an answer by its channels: analysis is reasoning, a message to a function is a call, all else is content.

    ``header`` is what the prompt has written of the first header.
    """

    def __init__(self, *, has_tools: bool, header: str = "", max_calls: int | None = None) -> None:
        self._max_calls = max_calls
        self._has_tools = has_tools
        self._buffer = header
        self._kind: str | None = None  # of the message; None: in a header
        self._value_end = ValueEnd()
        self._writer = PartsWriter()
        self._num_calls = 0
        self._is_first = True

    @property
    def is_reasoning(self) -> bool:
        """Tell whether the reasoning goes on, as far as is known."""
        return self._kind == "analysis"

    @property
    def is_done(self) -> bool:
        """Tell whether no more is wanted: the last call that was asked for is complete."""
        return self._max_calls is not None and self._num_calls - (self._kind == "call") >= self._max_calls

    def feed(self, text: str) -> ParsedText:
        """Return what ``text``, and what was held back before it, turned out to be."""
        self._buffer += text
        while (
            self._buffer and not self.is_done and (self._read_header() if self._kind is None else self._read_message())
        ):
            pass
        return self._writer.take()

    def finish(self) -> ParsedText:
        """Return what is left at the end of the answer."""
        buffer, self._buffer = self._buffer, ""
        if self._kind is not None or self.is_done:
            self._write(buffer)
        elif self._is_first or not buffer.lstrip().startswith(("<|", "assistant")):
            self._writer.content(buffer)
        return self._writer.take()

    def _read_header(self) -> bool:
        at = self._buffer.find(_MESSAGE)
        if at < 0:
            text = self._buffer.lstrip()
            if self._looks_like_header(text) and len(text) <= MAX_HEADER:
                return False
            self._kind = "final"  # a text without any header
            return True
        header, self._buffer = self._buffer[:at], self._buffer[at + len(_MESSAGE) :]
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        self._is_first = False
        if recipient is not None and self._has_tools:
            self._kind, self._value_end = "call", ValueEnd()
            self._writer.call(CallDelta(self._num_calls, recipient[1], ""))
            self._num_calls += 1
        else:
            self._kind = "analysis" if channel is not None and channel[1] == "analysis" else "final"
        return True

    def _looks_like_header(self, text: str) -> bool:
        return any(
            text.startswith(begin) or begin.startswith(text) for begin in ("<|", "assistant", "to=", "commentary")
        )

    def _read_message(self) -> bool:
        if self._kind == "call":
            size = self._value_end.feed(self._buffer)
            self._write(self._buffer[:size])
            self._buffer = "" if size is None else self._buffer[size:]
            self._kind = "call" if size is None else "after a call"
            return size is not None
        found = [(at, end) for end in HARMONY_END if (at := self._buffer.find(end)) >= 0]
        if found:
            at, end = min(found)
            self._write(self._buffer[:at])
            self._kind = None
            self._buffer = self._buffer[at + len(end) :]
            return True
        cut = len(self._buffer) - max(partial(self._buffer, end) for end in HARMONY_END)
        self._write(self._buffer[:cut])
        self._buffer = self._buffer[cut:]
        return False

    def _write(self, text: str) -> None:
        if self._kind == "analysis":
            self._writer.reasoning(text)
        elif self._kind == "call":
            self._writer.call(CallDelta(self._num_calls - 1, None, text))
        elif self._kind != "after a call":
            self._writer.content(text)
