"""Splitting of an answer, while it comes, into reasoning, content and calls.

What is told does not depend on how the text is cut into pieces: text is held back only while it may be the beginning
of a marker. Arguments are handed on as the model wrote them, byte for byte; where they end is found by the rules of
JSON, so a marker within a string is a part of the string.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from hotseat.formats.families import OutputFormat

__all__ = ["CallDelta", "OutputParser", "ParsedText", "merge_calls"]

_HEAD = re.compile(r'\{\s*"name"\s*:\s*"((?:[^"\\]|\\.)*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=[^\s"])')
_BARE_HEADS = ('{"name":"', '{"type":"function"')  # without their blanks
_SPACE = " \t\r\n"


class CallDelta(NamedTuple):
    """News of one call: its name when it begins, then parts of its arguments, which are JSON text."""

    number: int  # of the call within its answer, from 0
    name: str | None
    arguments: str


class ParsedText(NamedTuple):
    """The kind of a piece of text."""

    reasoning: str
    content: str
    calls: list[CallDelta]


class _State(enum.Enum):
    START = "start"  # nothing but blanks so far, or since the reasoning ended
    REASONING = "reasoning"
    CONTENT = "content"
    CALLS = "calls"  # between the objects
    HEAD = "head"  # in an object, before its arguments
    ARGUMENTS = "arguments"
    TAIL = "tail"  # in an object, after its arguments


class OutputParser:
    """Splits one answer. ``in_reasoning``: the prompt has opened it already."""

    def __init__(self, output_format: OutputFormat, *, has_tools: bool, in_reasoning: bool = False) -> None:
        self._tools = output_format.tools if has_tools else None
        self._open, self._close = output_format.reasoning or ("", "")
        self._state = _State.REASONING if in_reasoning else _State.START
        self._buffer = ""
        self._held = ""  # what announced the calls; content again if none comes
        self._value_end = _ValueEnd()
        self._skips_newlines = in_reasoning
        self._num_calls = 0
        self._out: tuple[list[str], list[str], list[CallDelta]] = ([], [], [])
        self._steps: dict[_State, Callable[[], bool]] = {
            _State.START: self._start,
            _State.REASONING: self._reason,
            _State.CONTENT: self._write,
            _State.CALLS: self._look_for_call,
            _State.HEAD: self._begin_call,
            _State.ARGUMENTS: self._argue,
            _State.TAIL: self._end_call,
        }

    @property
    def is_reasoning(self) -> bool:
        """Tell whether the reasoning goes on, as far as is known."""
        return self._state is _State.REASONING

    def feed(self, text: str) -> ParsedText:
        """Return what ``text``, and what was held back before it, turned out to be."""
        self._buffer += text
        while self._buffer and self._steps[self._state]():
            pass
        return self._taken()

    def finish(self) -> ParsedText:
        """Return what is left at the end of the answer."""
        buffer, state = self._buffer, self._state
        self._buffer = ""
        if state is _State.REASONING:
            self._out[0].append(buffer)
        elif state is _State.ARGUMENTS:
            self._add_call(None, buffer)
        elif state in (_State.START, _State.CONTENT) and (buffer.strip() or not self._num_calls):
            self._out[1].append(buffer)
        elif state is _State.HEAD or (state is _State.CALLS and self._held):
            self._out[1].append(self._held + buffer)
        return self._taken()

    def _taken(self) -> ParsedText:
        reasoning, content, calls = self._out
        self._out = ([], [], [])
        return ParsedText("".join(reasoning), "".join(content), merge_calls(calls))

    def _go(self, state: _State, buffer: str) -> bool:
        self._state, self._buffer = state, buffer
        return True

    # One for each state: use up some of the buffer and return True, or wait for more text

    def _start(self) -> bool:
        text = self._buffer.lstrip(_SPACE)
        if self._open:
            if text.startswith(self._open):
                self._skips_newlines = True
                return self._go(_State.REASONING, text[len(self._open) :])
            if self._open.startswith(text):
                return False
        if self._skips_newlines:  # after the reasoning
            if not text:
                return False
            self._buffer = text
        if self._tools is not None and not self._tools.begin:
            squeezed = "".join(text.split())
            if any(head.startswith(squeezed) for head in _BARE_HEADS):
                return False
            if squeezed.startswith(_BARE_HEADS):
                return self._go(_State.HEAD, text)
        return self._go(_State.CONTENT, self._buffer)

    def _reason(self) -> bool:
        if self._skips_newlines:
            self._buffer = self._buffer.lstrip("\n")
            self._skips_newlines = not self._buffer
        at = self._buffer.find(self._close)
        if at >= 0:
            self._out[0].append(self._buffer[:at])
            self._open, self._skips_newlines = "", True
            return self._go(_State.START, self._buffer[at + len(self._close) :])
        cut = len(self._buffer) - _partial(self._buffer, self._close)
        self._out[0].append(self._buffer[:cut])
        self._buffer = self._buffer[cut:]
        return False

    def _write(self) -> bool:
        if self._tools is None or not self._tools.begin:
            self._out[1].append(self._buffer)
            self._buffer = ""
            return False
        begin = self._tools.begin
        at = self._buffer.find(begin)
        cut = at if at >= 0 else len(self._buffer) - _partial(self._buffer, begin)
        text = self._buffer[:cut].rstrip(_SPACE)  # blanks before a call are no content
        self._out[1].append(text)
        if at >= 0:
            self._held = self._buffer[len(text) : at + len(begin)]
            return self._go(_State.CALLS, self._buffer[at + len(begin) :])
        self._buffer = self._buffer[len(text) :]
        return False

    def _look_for_call(self) -> bool:
        assert self._tools is not None, "calls need tools"
        text, end = self._buffer.lstrip(self._tools.separators), self._tools.end
        if end and text.startswith(end):
            if self._held:  # a pair of markers with nothing between them
                self._out[1].append(self._held + self._buffer[: len(self._buffer) - len(text) + len(end)])
                self._held = ""
            return self._go(_State.CONTENT, text[len(end) :])
        if not text or (end and end.startswith(text)):
            return False
        if text[0] == "{":
            self._held += self._buffer[: len(self._buffer) - len(text)] if self._held else ""
            return self._go(_State.HEAD, text)
        held, self._held = self._held, ""
        self._out[1].append(held + self._buffer[: len(self._buffer) - len(text)] if held else "")
        return self._go(_State.CONTENT, text)

    def _begin_call(self) -> bool:
        head = _HEAD.match(self._buffer)
        if head is not None:
            self._held = ""
            self._num_calls += 1
            self._add_call(_unquoted(head[1]), "")
            self._value_end = _ValueEnd()
            return self._go(_State.ARGUMENTS, self._buffer[head.end() :])
        size = _ValueEnd().feed(self._buffer)
        if size is None:
            return False
        found = _call_in(self._buffer[:size])
        if found is None:
            held, self._held = self._held, ""
            self._out[1].append(held + self._buffer[:size])
            return self._go(_State.CALLS if self._tools and self._tools.begin else _State.CONTENT, self._buffer[size:])
        self._held = ""
        self._num_calls += 1
        self._add_call(*found)
        return self._go(_State.CALLS, self._buffer[size:])

    def _argue(self) -> bool:
        size = self._value_end.feed(self._buffer)
        self._add_call(None, self._buffer[:size])
        if size is None:
            self._buffer = ""
            return False
        return self._go(_State.TAIL, self._buffer[size:])

    def _end_call(self) -> bool:
        """Skip what follows the arguments in their object; other keys have no place in a call."""
        inside = "{" + self._buffer
        size = _ValueEnd().feed(inside)
        if size is None:
            return False
        return self._go(_State.CALLS, inside[size:])

    def _add_call(self, name: str | None, arguments: str) -> None:
        self._out[2].append(CallDelta(self._num_calls - 1, name, arguments))


class _ValueEnd:
    """Finds where a JSON value ends, piece by piece, without reading it."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._is_escaped = False
        self._has_begun = False

    def feed(self, text: str) -> int | None:
        """Return how much of ``text`` belongs to the value, once its end is in it."""
        for at, char in enumerate(text):
            if self._in_string:
                if self._ends_string(char) and not self._depth:
                    return at + 1
            elif char == '"':
                self._in_string = self._has_begun = True
            elif char in "{[":
                self._depth += 1
                self._has_begun = True
            elif char in "}]":
                if not self._depth:
                    return at  # a number or a word ended before it
                self._depth -= 1
                if not self._depth:
                    return at + 1
            elif not self._depth and self._has_begun and (char in _SPACE or char == ","):
                return at
            else:
                self._has_begun = True
        return None

    def _ends_string(self, char: str) -> bool:
        """Take a character within a string."""
        if self._is_escaped:
            self._is_escaped = False
        elif char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._in_string = False
            return True
        return False


def _partial(text: str, marker: str) -> int:
    """Return the length of the longest end of ``text`` that is a beginning of ``marker``."""
    for size in range(min(len(text), len(marker) - 1), 0, -1):
        if marker.startswith(text[-size:]):
            return size
    return 0


def _unquoted(inner: str) -> str:
    try:
        name: str = json.loads(f'"{inner}"')
    except ValueError:
        return inner
    return name


def _call_in(text: str) -> tuple[str, str] | None:
    """Return name and arguments of a call whose keys come in another order, or whose arguments are a string."""
    try:
        value: Any = json.loads(text)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    call: Any = value.get("function", value)
    name: Any = call.get("name") if isinstance(call, dict) else None
    if not isinstance(name, str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    return name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def merge_calls(calls: Iterable[CallDelta]) -> list[CallDelta]:
    """Return one delta for each call."""
    merged: dict[int, CallDelta] = {}
    for call in calls:
        before = merged.get(call.number)
        merged[call.number] = call if before is None else before._replace(arguments=before.arguments + call.arguments)
    return list(merged.values())
