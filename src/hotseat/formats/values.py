"""JSON values within an answer: their ends, and values of other notations written as JSON."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["SPACE", "Tools", "ValueEnd", "as_json", "partial", "raw_as_json", "types_of"]

SPACE = " \t\r\n"

Tools = Mapping[str, Mapping[str, Any]]  # the schemas of the parameters by the tools' names


class ValueEnd:
    """Finds where a JSON value ends, piece by piece, without reading it."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._is_escaped = False
        self._has_begun = False
        self._num_scanned = 0

    def scan(self, text: str) -> int | None:
        """Do the same for a text that is given again from its beginning, with more at its end."""
        start = self._num_scanned
        size = self.feed(text[start:])
        self._num_scanned = len(text)
        return None if size is None else start + size

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
            elif not self._depth and self._has_begun and (char in SPACE or char == ","):
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


def partial(text: str, marker: str) -> int:
    """Return the length of the longest end of ``text`` that is a beginning of ``marker``."""
    for size in range(min(len(text), len(marker) - 1), 0, -1):
        if marker.startswith(text[-size:]):
            return size
    return 0


def as_json(value: Any) -> str:
    """Return ``value`` as JSON text; what JSON does not have becomes a string."""
    return json.dumps(value, ensure_ascii=False, default=str)


def raw_as_json(text: str, schema: Any) -> str:
    """Return the JSON of a value that was written without quotes; its schema tells what it may be.

    JSON is kept as it was written. A text that may be a string stays one, unless it spells another allowed type.
    """
    types = types_of(schema)
    if types == {"string"} or not types:
        return as_json(text)
    value = text.strip()
    spelled = {"True": "true", "False": "false", "None": "null"}.get(value, value)
    try:
        found: Any = json.loads(spelled)
    except (ValueError, RecursionError):
        found, spelled = _literal(value)
    is_wanted = "string" not in types or _type_of(found) in types
    return spelled if spelled and not (isinstance(found, str) and "string" in types) and is_wanted else as_json(text)


def types_of(schema: Any, depth: int = 4) -> set[str]:
    """Return the JSON types that ``schema`` allows; empty when it does not tell."""
    if not isinstance(schema, Mapping) or depth == 0:
        return set()
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, Sequence):
        return {one for one in kind if isinstance(one, str)}
    for name in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(name)
        if isinstance(branches, list):
            return set().union(*(types_of(branch, depth - 1) for branch in branches))
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if isinstance(values, list) and values:
        return {_type_of(value) for value in values}
    if "properties" in schema:
        return {"object"}
    return {"array"} if "items" in schema else set()


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {dict: "object", list: "array", str: "string", int: "integer", float: "number", type(None): "null"}
    return names.get(type(value), "string")


def _literal(text: str) -> tuple[Any, str]:
    """Return a value in Python's notation and its JSON; an empty text when it is none."""
    try:
        value = ast.literal_eval(text)
        return value, as_json(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None, ""
