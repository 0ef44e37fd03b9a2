"""Forms of whole answers with calls in them, for a grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotseat.formats.notation import OutputFormat
from hotseat.formats.trees import Node, constant, sequence
from hotseat.formats.values import as_json

__all__ = ["calls_after_text", "either", "example_call", "forced_calls", "written_call"]

_ANY_OBJECT: Node = {"type": "object"}
MAX_CALLS = 16  # in one section of calls that a grammar holds to


def forced_calls(output_format: OutputFormat, tools: Sequence[dict[str, Any]], *, several: bool) -> Node:
    """Return the form of an answer that is nothing but calls of ``tools``, one or, with ``several``, more.

    Raises:
        ValueError: this notation has no form for the parameters of a tool.
    """
    return sequence(constant(output_format.tools.begin), _section(output_format, tools, several=several))


def calls_after_text(output_format: OutputFormat, tools: Sequence[dict[str, Any]], *, several: bool) -> Node:
    """Return the form of any text in which calls, once begun, hold to the schemas of the tools that are ``strict``.

    Raises:
        ValueError: this notation has no form for the parameters of a strict tool.
    """
    loose = [
        tool
        if tool["function"].get("strict")
        else {"function": {"name": tool["function"]["name"], "parameters": _loose(output_format, tool)}}
        for tool in tools
    ]
    section = _section(output_format, loose, several=several)
    begin = output_format.tools.begin
    if output_format.tools.begins is not None and not begin:  # the first character tells
        return {"type": "or", "elements": [section, {"type": "text_except", "first": "{["}]}
    call = sequence({"type": "text_until", "text": begin}, section)
    if not several:
        return {"type": "or", "elements": [call, {"type": "any_text"}]}
    return sequence({"type": "repeat", "element": call}, {"type": "any_text"})


def either(calls: Node, answer: Node, output_format: OutputFormat) -> Node:
    """Return the form of an answer that is calls or, after what a model of this format puts before it, ``answer``."""
    return {"type": "or", "elements": [calls, sequence(constant(output_format.answer_open), answer)]}


def example_call(output_format: OutputFormat) -> str:
    """Return the writing of a call for a prompt that has to explain it."""
    schema = {"type": "object", "properties": {"KEY": {"type": "string"}}, "required": ["KEY"]}
    written = output_format.tools
    call = _spelled(written.call("NAME", schema), '{"KEY": "VALUE"}' if written.has_json_arguments else '"VALUE"')
    return written.begin + written.before + call + written.after


def written_call(output_format: OutputFormat, name: str, arguments: str) -> str:
    """Return the text of a call that the model made, for a prompt; ``arguments`` are JSON."""
    written = output_format.tools
    if not written.has_json_arguments:  # a form of its own for each type of value: JSON is understood everywhere
        return f'{{"name": {as_json(name)}, "arguments": {arguments}}}'
    return written.begin + written.before + _spelled(written.call(name, _ANY_OBJECT), arguments) + written.after


def _section(output_format: OutputFormat, tools: Sequence[dict[str, Any]], *, several: bool) -> Node:
    written = output_format.tools
    calls: Node = {
        "type": "or",
        "elements": [
            written.call(tool["function"]["name"], tool["function"].get("parameters") or _ANY_OBJECT) for tool in tools
        ],
    }
    more = {"type": "repeat", "element": sequence(constant(written.join), calls), "max": MAX_CALLS - 1}
    return sequence(constant(written.before), calls, *([more] if several else []), constant(written.after))


def _loose(output_format: OutputFormat, tool: dict[str, Any]) -> Node:
    """Return a schema for the arguments of a tool that is not strict: any, where the notation can write any."""
    parameters = tool["function"].get("parameters") or _ANY_OBJECT
    return _ANY_OBJECT if output_format.tools.has_json_arguments else parameters


def _spelled(node: Node, value: str) -> str:
    """Return the text of a form with ``value`` in the place of its JSON."""
    if node["type"] == "const_string":
        return str(node["value"])
    if node["type"] == "sequence":
        return "".join(_spelled(one, value) for one in node["elements"])
    if node["type"] == "or":
        return _spelled(node["elements"][0], value)
    return "VALUE" + str(node["text"]) if node["type"] == "text_until" else value
