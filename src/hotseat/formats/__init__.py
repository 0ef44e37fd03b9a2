"""Formats of answers by model family: which part of a text is reasoning, content, or a call of a tool.

Must not know: HTTP, requests, tokens.
"""

from hotseat.formats.families import OutputFormat, ToolFormat, detect_format
from hotseat.formats.parser import CallDelta, OutputParser, ParsedText, merge_calls

__all__ = ["CallDelta", "OutputFormat", "OutputParser", "ParsedText", "ToolFormat", "detect_format", "merge_calls"]
