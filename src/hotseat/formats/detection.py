"""Choice of a model's format by its chat template, checked by a call that is rendered and parsed back."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hotseat.errors import ConfigError, HotseatError
from hotseat.formats.families import (
    GENERIC,
    HARMONY,
    REASONING_ALIASES,
    REASONING_FORMATS,
    TOOL_ALIASES,
    TOOL_FORMATS,
)
from hotseat.formats.harmony import HarmonyParser
from hotseat.formats.notation import OutputFormat, ToolFormat
from hotseat.formats.parser import OutputParser
from hotseat.formats.parts import AnswerParser

__all__ = ["choose_format", "make_parser", "reasoning_parser_names", "tool_parser_names"]

# Renders messages with tools; raises a HotseatError where the template does not take them.
Render = Callable[[list[dict[str, Any]], list[dict[str, Any]]], str]

_NAME, _MARK, _RESULT = "probe_tool", "Wq7 asks", "Zk3 result"
_ARGUMENTS = {"place": 'Kö "l"\n', "days": 2}
_SCHEMA = {
    "type": "object",
    "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["place", "days"],
}
_TOOLS = [{"type": "function", "function": {"name": _NAME, "description": "Probe", "parameters": _SCHEMA}}]
_CALL = {"id": "abcdef123", "type": "function", "function": {"name": _NAME, "arguments": _ARGUMENTS}}
_USER = {"role": "user", "content": _MARK}
_CALLING = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_ANSWERED = {"role": "tool", "tool_call_id": "abcdef123", "name": _NAME, "content": _RESULT}


def tool_parser_names() -> list[str]:
    """Return the names that ``tool_call_parser`` takes."""
    return sorted({one.name for one in TOOL_FORMATS} | set(TOOL_ALIASES))


def reasoning_parser_names() -> list[str]:
    """Return the names that ``reasoning_parser`` takes."""
    return sorted({one.name for one in REASONING_FORMATS} | set(REASONING_ALIASES))


def choose_format(
    template: str, render: Render | None = None, *, tool_parser: str | None = None, reasoning_parser: str | None = None
) -> OutputFormat:
    """Return the format of the answers of a model with this chat template.

    The first format whose marks are in the template and that reads back a call which the template wrote is taken; one
    that only has the marks is taken when the template writes no calls at all. Otherwise calls are JSON objects, of
    which the prompt has to tell. ``tool_parser`` and ``reasoning_parser`` choose by name instead.

    Raises:
        ConfigError: no parser has such a name.
    """
    reasoning = _reasoning(template, reasoning_parser)
    plain = render or (lambda messages, tools: "")
    has_tools = _NAME in _rendered(plain, [_USER])
    calling = _after_user(_rendered(plain, [_USER, _CALLING]))
    marked = [one for one in TOOL_FORMATS if one.marks and all(mark in template for mark in one.marks)]
    if tool_parser is not None:
        tools = _named(tool_parser, marked)
    else:
        read = (one for one in marked if reads_back(one, calling))
        # A template that writes no calls tells nothing against the marks; without a probe they must do.
        by_marks = marked[0] if marked and _NAME not in calling else GENERIC
        tools = next(read, by_marks)
        has_tools = (has_tools and (tools is not GENERIC or reads_back(GENERIC, calling))) or (
            render is None and bool(marked)
        )
    found = OutputFormat(
        tools=tools,
        reasoning=reasoning,
        is_harmony=tools is HARMONY,
        answer_open="<|channel|>final<|message|>" if tools is HARMONY else "",
        template_has_tools=has_tools,
    )
    if render is None:
        return found
    results = _rendered(plain, [_USER, _CALLING, _ANSWERED])
    return replace(
        found,
        template_has_calls=_NAME in calling,
        template_has_results=_NAME in calling and _RESULT in _after_user(results),
    )


def make_parser(
    output_format: OutputFormat,
    *,
    tools: Sequence[dict[str, Any]],
    prompt: str = "",
    in_reasoning: bool = False,
    max_calls: int | None = None,
) -> AnswerParser:
    """Return a parser of one answer to ``prompt``; ``tools`` are those of the request, or none."""
    if output_format.is_harmony:
        return HarmonyParser(has_tools=bool(tools), header=_open_header(prompt), max_calls=max_calls)
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    return OutputParser(output_format, tools=schemas if tools else None, in_reasoning=in_reasoning, max_calls=max_calls)


def reads_back(tools: ToolFormat, calling: str) -> bool:
    """Tell whether a format finds the probe's call, unchanged, in what the template wrote."""
    starts = [0]
    if tools.begins is not None and not tools.begin:
        starts = [at for at in range(len(calling)) if calling[at] in "{[" and tools.begins(calling[at:])][:1]
    return any(_parses(tools, calling[start:]) for start in starts)


def _parses(tools: ToolFormat, text: str) -> bool:
    found = OutputFormat(tools=tools, is_harmony=tools is HARMONY)
    parser = make_parser(found, tools=_TOOLS, prompt="")
    calls = [*parser.feed(text).calls, *parser.finish().calls]
    try:
        arguments = [json.loads("".join(call.arguments for call in calls))]
    except ValueError:
        return False
    return [call.name for call in calls if call.name] == [_NAME] and arguments == [_ARGUMENTS]


def _named(name: str, marked: Sequence[ToolFormat]) -> ToolFormat:
    name = TOOL_ALIASES.get(name, name)
    found = [one for one in (*marked, *TOOL_FORMATS) if one.name == name]
    if not found:
        raise ConfigError(f"tool_call_parser must be one of {', '.join(tool_parser_names())}, not {name!r}")
    return found[0]


def _reasoning(template: str, name: str | None) -> tuple[str, str] | None:
    if name is not None:
        proper = REASONING_ALIASES.get(name, name)
        for one in REASONING_FORMATS:
            if one.name == proper:
                return one.open, one.close
        raise ConfigError(f"reasoning_parser must be one of {', '.join(reasoning_parser_names())}, not {name!r}")
    return next(((one.open, one.close) for one in REASONING_FORMATS if (one.hint or one.close) in template), None)


def _rendered(render: Render, messages: list[dict[str, Any]]) -> str:
    try:
        return str(render(messages, _TOOLS))
    except HotseatError:
        return ""


def _after_user(text: str) -> str:
    return text.rpartition(_MARK)[2] if _MARK in text else ""


def _open_header(prompt: str) -> str:
    """Return what the prompt has written of the answer's first header."""
    tail = prompt.rpartition("<|start|>assistant")[2] if "<|start|>assistant" in prompt else ""
    head, message, _ = tail.partition("<|message|>")
    return head + message
