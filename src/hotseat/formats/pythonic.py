"""Calls in the notation of Python, ``[f(a=1, b="x"), g()]``, and in that of Gemma, ``call:f{a:1}``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from hotseat.formats.readers import MAX_NAME, MORE, News, Outcome, Reading, waits_for
from hotseat.formats.values import SPACE, Tools, as_json, raw_as_json

__all__ = ["GemmaReader", "PythonReader", "begins_python"]

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_BARE = re.compile(r"\[\s*[A-Za-z_][\w.-]*\s*\(")
_BARE_PART = re.compile(r"(\[\s*([A-Za-z_][\w.-]*\s*)?)?")
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_ANY_VALUE = {"type": ["string", "object", "array", "number", "integer", "boolean", "null"]}


def begins_python(text: str) -> bool | None:
    """Tell whether an answer begins with a list of calls; ``None``: more text will tell."""
    if _BARE.match(text):
        return True
    return None if len(text) < MAX_NAME and _BARE_PART.fullmatch(text) else False


class PythonReader:
    """Calls of functions, in brackets or not, until ``end``. Each argument is told when it ends."""

    def __init__(self, tools: Tools, end: str = "") -> None:
        self._tools, self._end = tools, end
        self._state: Callable[[str], Reading] = self._between
        self._names: list[str] = []  # of the parameters, for arguments without names
        self._num_arguments = 0
        self._end_of_argument = _ArgumentEnd()

    def read(self, text: str) -> Reading:
        """Look at ``text``."""
        return self._state(text)

    def finish(self, text: str) -> Sequence[News] | None:
        """Return nothing: an argument that was cut has no JSON yet."""
        return [] if self._state == self._argue else None

    def _between(self, text: str) -> Reading:
        left = text.lstrip(SPACE + "[],;")
        used = len(text) - len(left)
        if self._end and left.startswith(self._end):
            return Reading(used + len(self._end), Outcome.END)
        if not left or waits_for(left, self._end):
            return MORE
        name = _NAME.match(left)
        if name is None:
            return Reading(used, Outcome.END)
        rest = left[name.end() :].lstrip(SPACE)
        if not rest:
            return MORE if len(left) <= MAX_NAME else Reading(used, Outcome.END)
        if rest[0] != "(":
            return Reading(used, Outcome.END)
        self._state, self._num_arguments = self._argue, 0
        self._names = list(self._tools.get(name[0], {}).get("properties") or ())
        return Reading(len(text) - len(rest) + 1, Outcome.GO, [(name[0], "")])

    def _argue(self, text: str) -> Reading:
        at = self._end_of_argument.scan(text)
        if at is None:
            return MORE
        self._end_of_argument = _ArgumentEnd()
        news: list[News] = []
        argument = text[:at].strip()
        if argument:
            news.append((None, self._written(argument)))
            self._num_arguments += 1
        if text[at] == ",":
            return Reading(at + 1, Outcome.GO, news)
        news.append((None, "}" if self._num_arguments else "{}"))
        self._state = self._between
        return Reading(at + 1, Outcome.GO, news, ends_call=True)

    def _written(self, argument: str) -> str:
        named = re.match(r"([A-Za-z_][\w.-]*)\s*=(?!=)\s*", argument)
        number = self._num_arguments
        key = named[1] if named else (self._names[number] if number < len(self._names) else f"arg{number}")
        value = argument[named.end() :] if named else argument
        opening = ", " if number else "{"
        return f"{opening}{as_json(key)}: {_python_as_json(value)}"


def _python_as_json(text: str) -> str:
    """Return a literal as JSON: what is JSON already is kept, what is no literal becomes a string."""
    if text[:1] == '"':
        try:
            json.loads(text)
        except ValueError:
            pass
        else:
            return text
    found = raw_as_json(text, {"type": ["object", "array", "number", "integer", "boolean", "null"]})
    if text[:1] not in ("'", '"') or not found.startswith('"'):
        return found
    return found if json.loads(found) != text else as_json(text[1:-1])


class _ArgumentEnd:
    """Finds the first comma or closing parenthesis outside of strings and brackets."""

    def __init__(self) -> None:
        self._quote, self._expected, self._at = "", "", 0

    def scan(self, text: str) -> int | None:
        """Return where it is; ``text`` is given again from its beginning, with more at its end."""
        while self._at < len(text):
            char = text[self._at]
            if self._quote:
                if char == "\\":
                    self._at += 1
                elif char == self._quote:
                    self._quote = ""
            elif char in "'\"":
                self._quote = char
            elif char in _CLOSERS:
                self._expected += _CLOSERS[char]
            elif self._expected and char == self._expected[-1]:
                self._expected = self._expected[:-1]
            elif not self._expected and char in ",)":
                return self._at
            self._at += 1
        return None


class GemmaReader:
    """``call:`` NAME ``{`` KEY ``:`` VALUE, … ``}``, whose texts stand between two ``quote`` marks, until ``end``."""

    def __init__(self, quote: str, end: str) -> None:
        self._quote, self._end = quote, end
        self._state: Callable[[str], Reading] = self._between

    def read(self, text: str) -> Reading:
        """Look at ``text``."""
        return self._state(text)

    def finish(self, text: str) -> Sequence[News] | None:
        """Return nothing: arguments that were cut have no JSON yet."""
        return [] if self._state == self._argue else None

    def _between(self, text: str) -> Reading:
        left = text.lstrip(SPACE)
        used = len(text) - len(left)
        if left.startswith(self._end):
            return Reading(used + len(self._end), Outcome.END)
        if waits_for(left, self._end, "call:"):
            return MORE
        if not left.startswith("call:"):
            return Reading(used, Outcome.END)
        at = left.find("{")
        if at < 0:
            return MORE if len(left) <= MAX_NAME else Reading(used, Outcome.END)
        name = left[len("call:") : at].strip()
        if not _NAME.fullmatch(name):
            return Reading(used, Outcome.END)
        self._state = self._argue
        return Reading(used + at, Outcome.GO, [(name, "")])

    def _argue(self, text: str) -> Reading:
        values = _GemmaValues(text, self._quote)
        try:
            arguments = values.value()
        except IndexError:
            return MORE
        except RecursionError:
            arguments, values.at = as_json({}), len(text)
        self._state = self._between
        return Reading(values.at, Outcome.GO, [(None, arguments)], ends_call=True)


class _GemmaValues:
    """Reads a value at ``at`` and returns it as JSON; raises IndexError where the text ends within it."""

    def __init__(self, text: str, quote: str) -> None:
        self._text, self._quote = text, quote
        self.at = 0

    def value(self) -> str:
        self._skip()
        char = self._text[self.at]
        if char == "{":
            return "{" + ", ".join(self._items("}", is_object=True)) + "}"
        if char == "[":
            return "[" + ", ".join(self._items("]", is_object=False)) + "]"
        if self._text.startswith(self._quote, self.at):
            return as_json(self._quoted(self._quote))
        if self._quote.startswith(self._text[self.at :]):
            raise IndexError
        if char == '"':
            return as_json(self._quoted('"'))
        word = self._until(",]}")
        self.at += not word  # a bracket that opens nothing
        return raw_as_json(word, _ANY_VALUE)

    def _items(self, close: str, *, is_object: bool) -> list[str]:
        self.at += 1
        items: list[str] = []
        while True:
            self._skip()
            if self._text[self.at] == close:
                self.at += 1
                return items
            key = ""
            if is_object:
                quoted = next((mark for mark in (self._quote, '"') if self._text.startswith(mark, self.at)), None)
                key = self._quoted(quoted) if quoted else self._until(":").strip()
                self._skip()
                self.at += self._text[self.at] == ":"
            value = self.value()
            items.append(f"{as_json(key)}: {value}" if is_object else value)

    def _quoted(self, mark: str) -> str:
        begin = self.at + len(mark)
        end = self._text.find(mark, begin)
        if end < 0:
            raise IndexError
        self.at = end + len(mark)
        return self._text[begin:end]

    def _until(self, ends: str) -> str:
        begin = self.at
        while self._text[self.at] not in ends:
            self.at += 1
        return self._text[begin : self.at]

    def _skip(self) -> None:
        while self._text[self.at] in SPACE + ",":
            self.at += 1
