"""Formats of answers by model family: which part of a text is reasoning, content, or a call of a tool.

Must not know: HTTP, requests, tokens.
"""

from hotseat.formats.detection import choose_format, make_parser, reasoning_parser_names, tool_parser_names
from hotseat.formats.forcing import calls_after_text, either, example_call, forced_calls, written_call
from hotseat.formats.notation import OutputFormat, ToolFormat
from hotseat.formats.parser import OutputParser
from hotseat.formats.parts import AnswerParser, CallDelta, ParsedText, merge_calls

__all__ = [
    "AnswerParser",
    "CallDelta",
    "OutputFormat",
    "OutputParser",
    "ParsedText",
    "ToolFormat",
    "calls_after_text",
    "choose_format",
    "either",
    "example_call",
    "forced_calls",
    "make_parser",
    "merge_calls",
    "reasoning_parser_names",
    "tool_parser_names",
    "written_call",
]
