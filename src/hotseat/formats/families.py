"""The formats of model families, found by their chat templates."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OutputFormat", "ToolFormat", "detect_format"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """The way to write calls as JSON objects with a name and arguments.

    ``begin`` announces one or several calls, ``end`` closes them. Without ``begin`` an answer that starts with such an
    object is a call. ``separators`` may stand around the objects. ``call`` and ``call_end`` are what is written around
    the arguments when a call is forced; ``{name}`` is the name as JSON.
    """

    name: str  # vLLM's name of the parser
    begin: str = ""
    end: str = ""
    separators: str = " \t\r\n"
    call: str
    call_end: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFormat:
    """The parts of a model's answers."""

    tools: ToolFormat
    template_has_tools: bool = True  # False: the prompt must say in words which tools there are
    reasoning: tuple[str, str] | None = None  # what opens and closes it


_LIST = " \t\r\n[],"
_HERMES = ToolFormat(
    name="hermes",
    begin="<tool_call>",
    end="</tool_call>",
    call='<tool_call>\n{{"name": {name}, "arguments": ',
    call_end="}\n</tool_call>",
)
_MISTRAL = ToolFormat(
    name="mistral",
    begin="[TOOL_CALLS]",
    separators=_LIST,
    call='[TOOL_CALLS][{{"name": {name}, "arguments": ',
    call_end="}]",
)
_PHI4_MINI = ToolFormat(
    name="phi4_mini_json",
    begin="<|tool_call|>",
    end="<|/tool_call|>",
    separators=_LIST,
    call='<|tool_call|>[{{"name": {name}, "arguments": ',
    call_end="}]<|/tool_call|>",
)
_LLAMA3_JSON = ToolFormat(
    name="llama3_json", separators=" \t\r\n;", call='{{"name": {name}, "parameters": ', call_end="}"
)
# In this order: the first whose mark is in the template.
_BY_MARK = (
    ("[TOOL_CALLS]", _MISTRAL),
    ("<|tool_call|>", _PHI4_MINI),
    ("<tool_call>", _HERMES),
    ("<|python_tag|>", _LLAMA3_JSON),
    ('"parameters":', _LLAMA3_JSON),
)
_REASONING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))


def detect_format(template: str) -> OutputFormat:
    """Return the format of the answers of a model with this chat template.

    A template that knows no tools, or writes calls in a way that is not known here (``<function=…>``, ``[ARGS]``),
    gets JSON objects, of which the prompt has to tell.
    """
    reasoning = next((marks for marks in _REASONING if marks[1] in template), None)
    is_other = "<function=" in template or "[ARGS]" in template
    tools = None if is_other else next((tools for mark, tools in _BY_MARK if mark in template), None)
    return OutputFormat(tools=tools or _LLAMA3_JSON, template_has_tools=tools is not None, reasoning=reasoning)
