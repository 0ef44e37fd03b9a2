"""The parts of an answer, as parsers tell them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

__all__ = ["AnswerParser", "CallDelta", "ParsedText", "PartsWriter", "merge_calls"]


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


class AnswerParser(Protocol):
    """Splits one answer, while it comes, into reasoning, content and calls."""

    @property
    def is_reasoning(self) -> bool:
        """Tell whether the reasoning goes on, as far as is known."""
        ...

    @property
    def is_done(self) -> bool:
        """Tell whether no more is wanted: the last call that was asked for is complete."""
        ...

    def feed(self, text: str) -> ParsedText:
        """Return what ``text``, and what was held back before it, turned out to be."""
        ...

    def finish(self) -> ParsedText:
        """Return what is left at the end of the answer."""
        ...


class PartsWriter:
    """Gathers parts until they are taken."""

    def __init__(self) -> None:
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[CallDelta] = []

    def reasoning(self, text: str) -> None:
        """Add reasoning."""
        self._reasoning.append(text)

    def content(self, text: str) -> None:
        """Add content."""
        self._content.append(text)

    def call(self, delta: CallDelta) -> None:
        """Add news of a call."""
        self._calls.append(delta)

    def take(self) -> ParsedText:
        """Return what was gathered, once."""
        parts = ParsedText("".join(self._reasoning), "".join(self._content), merge_calls(self._calls))
        self._reasoning, self._content, self._calls = [], [], []
        return parts


def merge_calls(calls: Iterable[CallDelta]) -> list[CallDelta]:
    """Return one delta for each call."""
    merged: dict[int, CallDelta] = {}
    for call in calls:
        before = merged.get(call.number)
        merged[call.number] = call if before is None else before._replace(arguments=before.arguments + call.arguments)
    return list(merged.values())
