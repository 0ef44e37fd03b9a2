"""The parts of a format, and builders for the notations of calls that families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from hotseat.formats.pythonic import GemmaReader, PythonReader
from hotseat.formats.readers import CallReader, JsonReader, NamedReader
from hotseat.formats.tagged import TaggedReader, TagNotation
from hotseat.formats.trees import Node, gemma_call, json_call, named_call, python_call, tagged_call
from hotseat.formats.values import SPACE, Tools

__all__ = [
    "LIST",
    "OBJECT",
    "OutputFormat",
    "ReasoningFormat",
    "ToolFormat",
    "begins_json",
    "gemma_format",
    "json_format",
    "named_format",
    "python_format",
    "tagged_format",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """The way to write calls: ``begin`` ``before`` CALL (``join`` CALL)… ``after``.

    ``begin`` announces calls within text. ``begins`` tells whether an answer begins with a call, where nothing
    announces one. ``reader`` reads what follows ``begin``; ``call`` is the form of one call, by name and schema.
    """

    name: str
    marks: tuple[str, ...] = ()  # found all together in the chat templates of this format
    begin: str = ""
    begins: Callable[[str], bool | None] | None = None
    before: str = ""
    join: str = ""
    after: str = ""
    reader: Callable[[Tools], CallReader]
    call: Callable[[str, Node], Node]
    has_json_arguments: bool = True

    @property
    def markers(self) -> tuple[str, ...]:
        """Return the texts that must reach the parser, which may be special tokens."""
        return tuple(text for text in (self.begin, self.before, self.join, self.after) if text)


class ReasoningFormat(NamedTuple):
    """The markers around reasoning; ``hint`` is in the chat templates of this format, by default ``close``."""

    name: str
    open: str
    close: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFormat:
    """The parts of a model's answers, and what its chat template can show."""

    tools: ToolFormat
    reasoning: tuple[str, str] | None = None  # what opens and closes it
    is_harmony: bool = False  # messages in channels
    answer_open: str = ""  # what stands before an answer that is no call
    template_has_tools: bool = True  # False: the prompt must say in words which tools there are
    template_has_calls: bool = True  # False: past calls must be written as text
    template_has_results: bool = True  # False: past results must come as the user's words


LIST = SPACE + "[],"
_BARE_HEADS = ('{"name":"', '{"type":"function"')  # without their blanks
OBJECT = '{"name": {name}, "arguments": '


def begins_json(text: str) -> bool | None:
    squeezed = "".join(text[:256].split())
    if any(head.startswith(squeezed) for head in _BARE_HEADS):
        return None
    return squeezed.startswith(_BARE_HEADS)


def json_format(name: str, *marks: str, separators: str = LIST, end: str = "", **values: Any) -> ToolFormat:
    """Return a format of JSON objects, by default in a list."""
    head = values.pop("head", OBJECT)
    return ToolFormat(
        name=name,
        marks=marks,
        reader=lambda _: JsonReader(separators, end),
        call=partial(json_call, head, "}"),
        **{"before": "[", "join": ", ", "after": "]" + end, **values},
    )


def named_format(
    name: str, *marks: str, head: str, reader: Mapping[str, str], tail: str = "", **values: Any
) -> ToolFormat:
    """Return a format of names with JSON after them."""
    options = {"prefix": "", "tail": tail, "end": "", **reader}
    return ToolFormat(
        name=name, marks=marks, reader=lambda _: NamedReader(**options), call=partial(named_call, head, tail), **values
    )


def tagged_format(name: str, *marks: str, tags: TagNotation, **values: Any) -> ToolFormat:
    return ToolFormat(
        name=name,
        marks=marks,
        reader=lambda tools: TaggedReader(tags, tools),
        call=partial(tagged_call, tags),
        has_json_arguments=False,
        **{"after": tags.end, **values},
    )


def python_format(name: str, *marks: str, end: str = "", **values: Any) -> ToolFormat:
    return ToolFormat(
        name=name,
        marks=marks,
        reader=lambda tools: PythonReader(tools, end),
        call=python_call,
        has_json_arguments=False,
        **{"before": "[", "join": ", ", "after": "]" + end, **values},
    )


def gemma_format(name: str, begin: str, quote: str, end: str) -> ToolFormat:
    return ToolFormat(
        name=name,
        marks=(begin,),
        begin=begin,
        join=end + begin,
        after=end,
        reader=lambda _: GemmaReader(quote, end),
        call=partial(gemma_call, quote),
        has_json_arguments=False,
    )
