"""Calls with a tag around each argument, as in ``<function=f><parameter=k>value</parameter></function>``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hotseat.formats.readers import MAX_NAME, MORE, News, Outcome, Reading, waits_for
from hotseat.formats.values import SPACE, Tools, as_json, raw_as_json, types_of

__all__ = ["TagNotation", "TaggedReader"]


@lru_cache(maxsize=64)
def _blanks_any(marker: str) -> re.Pattern[str]:
    """Return an expression for ``marker`` with any blanks, or none, where it has a line's end."""
    return re.compile(r"\s*".join(map(re.escape, marker.split("\n"))))


@dataclass(frozen=True, slots=True, kw_only=True)
class TagNotation:
    """The tags of a call.

    ``call`` NAME ``name_end`` (``key`` KEY ``key_end`` VALUE ``value_end``)… ``call_end``, and ``end`` after all calls.
    An empty ``call_end`` means that ``end`` closes the call, as it closes the calls in all other notations.
    """

    call: str
    name_end: str
    key: str
    key_end: str
    value_end: str
    call_end: str
    end: str
    blank: str = ""  # what is written on each side of a value, and does not belong to it
    # Where texts and other values are told apart by the tag: the end of the key for other values.
    other_key_end: str = ""


class TaggedReader:
    """Reads calls in ``notation``. An argument is told when its tag is closed, with the type that its schema names."""

    def __init__(self, notation: TagNotation, tools: Tools) -> None:
        self._tags = notation
        self._tools = tools
        self._state: Callable[[str], Reading] = self._between
        self._properties: Mapping[str, Any] = {}
        self._key = ""
        self._is_text: bool | None = None  # whether the tag says that the value is one; None: it does not say
        self._num_arguments = 0

    def read(self, text: str) -> Reading:
        """Look at ``text``."""
        return self._state(text)

    def finish(self, text: str) -> Sequence[News] | None:
        """Return what there is of a value that was cut, if it is text."""
        if self._state == self._between:
            return None
        if self._state != self._value or not self._holds_text():
            return []
        value = text.removeprefix(self._tags.blank)
        return [(None, self._written(as_json(value)[:-1]))]

    def _between(self, text: str) -> Reading:
        tags = self._tags
        left = text.lstrip(SPACE)
        used = len(text) - len(left)
        if left.startswith(tags.end):
            return Reading(used + len(tags.end), Outcome.END)
        if not left.startswith(tags.call):
            return MORE if waits_for(left, tags.call, tags.end) else Reading(used, Outcome.END)
        if not left:
            return MORE
        rest = left[len(tags.call) :]
        ends = [at for marker in self._name_ends() if (at := rest.find(marker)) >= 0]
        if not ends or (not tags.name_end and waits_for(rest[min(ends) :].lstrip(SPACE), tags.key, tags.end)):
            return MORE if len(rest) <= MAX_NAME else Reading(used, Outcome.END)
        name = rest[: min(ends)].strip()
        if not name or (not tags.name_end and any(char in name for char in '{}[]"<')):
            return Reading(used, Outcome.END)
        self._properties = self._tools.get(name, {}).get("properties") or {}
        self._num_arguments = 0
        self._state = self._inside
        return Reading(used + len(tags.call) + min(ends) + len(tags.name_end), Outcome.GO, [(name, "")])

    def _name_ends(self) -> Sequence[str]:
        return (self._tags.name_end,) if self._tags.name_end else ("\n", self._tags.key, self._tags.end)

    def _inside(self, text: str) -> Reading:
        tags = self._tags
        left = text.lstrip(SPACE)
        used = len(text) - len(left)
        close = tags.call_end or tags.end
        if left.startswith(close):
            self._state = self._between
            size = used + len(tags.call_end)  # the end of all is read between the calls
            return Reading(size, Outcome.GO, [(None, "}" if self._num_arguments else "{}")], ends_call=True)
        if waits_for(left, close, tags.key):
            return MORE
        if not left.startswith(tags.key):  # broken: what follows is skipped until something is known again
            found = [at for marker in (close, tags.key) if (at := left.find(marker)) >= 0]
            return Reading(used + min(found), Outcome.GO) if found else MORE
        rest = left[len(tags.key) :]
        key_ends = [
            (match.start(), match.end(), marker)
            for marker in (tags.key_end, tags.other_key_end)
            if marker and (match := _blanks_any(marker).search(rest))
        ]
        if not key_ends:
            return MORE
        start, end, marker = min(key_ends)
        self._key = rest[:start].strip()
        self._is_text = marker == tags.key_end if tags.other_key_end else None
        self._state = self._value
        return Reading(used + len(tags.key) + end, Outcome.GO)

    def _value(self, text: str) -> Reading:
        tags = self._tags
        after = re.escape(tags.call_end or tags.end) + "|" + re.escape(tags.key)
        # The same tag may stand in a text: the value ends where one is followed by what follows a value.
        end = re.search(rf"{re.escape(tags.value_end)}(?=\s*(?:{after}))", text)
        if end is None:
            return MORE
        value = text[: end.start()]
        if tags.blank:
            value = value.removeprefix(tags.blank).removesuffix(tags.blank)
        written = as_json(value) if self._holds_text() else raw_as_json(value, self._schema())
        self._state = self._inside
        told = self._written(written)
        self._num_arguments += 1
        return Reading(end.end(), Outcome.GO, [(None, told)])

    def _written(self, value: str) -> str:
        return f"{', ' if self._num_arguments else '{'}{as_json(self._key)}: {value}"

    def _schema(self) -> Any:
        if self._is_text is False:
            return {"type": ["object", "array", "number", "integer", "boolean", "null"]}
        return self._properties.get(self._key)

    def _holds_text(self) -> bool:
        return bool(self._is_text) or types_of(self._schema()) in (set(), {"string"})
