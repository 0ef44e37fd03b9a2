"""Readers of calls: what comes after the marker that announces them, piece by piece.

A reader is asked again and again with the text that is left, uses up some of it, and tells what it found. What it
tells does not depend on how the text is cut: it waits where more text could change the answer.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from hotseat.formats.values import SPACE, ValueEnd, as_json

__all__ = ["CallReader", "JsonReader", "NamedReader", "News", "Outcome", "Reading", "waits_for"]

MAX_NAME = 512  # characters within which a name must end

News = tuple[str | None, str]  # the name of a call when it begins, and more of its arguments


class Outcome(enum.Enum):
    """The state of a reader after it looked at the text."""

    MORE = "more"  # it waits for more text
    GO = "go"  # it has used up some and can be asked again
    END = "end"  # the calls are over; what is left is content


class Reading(NamedTuple):
    """One look at the text."""

    size: int  # characters that were used up
    outcome: Outcome
    news: Sequence[News] = ()
    ends_call: bool = False
    is_text: bool = False  # what was used up is content after all


MORE = Reading(0, Outcome.MORE)


class CallReader(Protocol):
    """Reads the calls that one marker announces."""

    def read(self, text: str) -> Reading:
        """Look at ``text``, which begins with what was left of the text before."""
        ...

    def finish(self, text: str) -> Sequence[News] | None:
        """Return the last news when the answer ends here; ``None`` when ``text`` belongs to no call."""
        ...


class JsonReader:
    """Objects with a name and arguments, with ``separators`` around them, until ``end``.

    The arguments are handed on as they were written; an object whose keys come in another order is read as a whole.
    """

    _HEAD = re.compile(
        r'\{\s*(?:"(?:tool_call_)?id"\s*:\s*"[^"\\]*"\s*,\s*)?(?:"type"\s*:\s*"function"\s*,\s*)?'
        r'"(?:tool_)?name"\s*:\s*"((?:[^"\\]|\\.)*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=[^\s"])'
    )

    def __init__(self, separators: str = SPACE, end: str = "") -> None:
        self._separators, self._end = separators, end
        self._state: Callable[[str], Reading] = self._between
        self._value_end = ValueEnd()

    def read(self, text: str) -> Reading:
        """Look at ``text``."""
        return self._state(text)

    def finish(self, text: str) -> Sequence[News] | None:
        """Return what is left of the arguments."""
        if self._state == self._argue:
            return [(None, text)]
        return None if self._state == self._begin else []

    def _between(self, text: str) -> Reading:
        left = text.lstrip(self._separators)
        used = len(text) - len(left)
        if self._end and left.startswith(self._end):
            return Reading(used + len(self._end), Outcome.END)
        if not left or (self._end and self._end.startswith(left)):
            return MORE
        if left[0] == "{":
            self._state, self._value_end = self._begin, ValueEnd()
            return Reading(used, Outcome.GO)
        return Reading(used, Outcome.END)

    def _begin(self, text: str) -> Reading:
        head = self._HEAD.match(text)
        if head is not None:
            self._state, self._value_end = self._argue, ValueEnd()
            return Reading(head.end(), Outcome.GO, [(_unquoted(head[1]), "")])
        size = self._value_end.scan(text)
        if size is None:
            return MORE
        found = _call_in(text[:size])
        self._state = self._between
        if found is None:
            return Reading(size, Outcome.GO if self._end else Outcome.END, is_text=True)
        return Reading(size, Outcome.GO, [found], ends_call=True)

    def _argue(self, text: str) -> Reading:
        size = self._value_end.feed(text)
        if size is None:
            return Reading(len(text), Outcome.MORE, [(None, text)])
        self._state, self._value_end = self._leave, ValueEnd()
        return Reading(size, Outcome.GO, [(None, text[:size])])

    def _leave(self, text: str) -> Reading:
        """Skip what follows the arguments in their object; other keys have no place in a call."""
        size = self._value_end.scan("{" + text)
        if size is None:
            return MORE
        self._state = self._between
        return Reading(size - 1, Outcome.GO, ends_call=True)


class NamedReader:
    """A name and then JSON: ``prefix`` NAME ``separator`` {…} ``tail``, repeated, until ``end``.

    Without a ``prefix`` there is one call and no end. ``name`` finds the name in what stands in its place.
    """

    def __init__(self, *, prefix: str, separator: str, tail: str, end: str, name: str = r"\s*(.*?)\s*") -> None:
        self._prefix, self._separator, self._tail, self._end = prefix, separator, tail.strip(), end
        self._name = re.compile(name, re.DOTALL)
        self._state: Callable[[str], Reading] = self._between
        self._value_end = ValueEnd()
        self._has_begun = False  # the arguments, after blanks

    def read(self, text: str) -> Reading:
        """Look at ``text``."""
        return self._state(text)

    def finish(self, text: str) -> Sequence[News] | None:
        """Return what is left of the arguments."""
        if self._state == self._argue:
            return [(None, text)]
        return [] if self._state == self._leave else None

    def _between(self, text: str) -> Reading:
        left = text.lstrip(SPACE)
        used = len(text) - len(left)
        if self._end and left.startswith(self._end):
            return Reading(used + len(self._end), Outcome.END)
        if not left.startswith(self._prefix):
            return MORE if waits_for(left, self._prefix, self._end) else Reading(used, Outcome.END)
        begin = used + len(self._prefix)
        at = text.find(self._separator, begin)
        if at < 0:
            return MORE if len(left) <= MAX_NAME else Reading(used, Outcome.END)
        name = self._name.fullmatch(text[begin:at])
        if name is None or not name[1]:
            return Reading(used, Outcome.END)
        self._state, self._value_end = self._argue, ValueEnd()
        self._has_begun = False
        return Reading(at + len(self._separator), Outcome.GO, [(name[1], "")])

    def _argue(self, text: str) -> Reading:
        if not self._has_begun:
            self._has_begun = bool(text.strip(SPACE))
            return Reading(len(text) - len(text.lstrip(SPACE)), Outcome.GO if self._has_begun else Outcome.MORE)
        size = self._value_end.feed(text)
        if size is None:
            return Reading(len(text), Outcome.MORE, [(None, text)])
        self._state = self._leave
        return Reading(size, Outcome.GO, [(None, text[:size])], ends_call=not self._tail)

    def _leave(self, text: str) -> Reading:
        left = text.lstrip(SPACE)
        used = len(text) - len(left)
        if self._tail and not left.startswith(self._tail) and waits_for(left, self._tail):
            return MORE
        self._state = self._between
        size = used + len(self._tail) if self._tail and left.startswith(self._tail) else 0
        return Reading(size, Outcome.GO if self._prefix else Outcome.END, ends_call=bool(self._tail))


def waits_for(text: str, *markers: str) -> bool:
    """Tell whether more text could make ``text`` begin with one of ``markers``."""
    return any(marker.startswith(text) and marker != text for marker in markers)


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
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    call: Any = value.get("function", value)
    name: Any = call.get("name", call.get("tool_name")) if isinstance(call, dict) else None
    if not isinstance(name, str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    return name, arguments if isinstance(arguments, str) else as_json(arguments)
