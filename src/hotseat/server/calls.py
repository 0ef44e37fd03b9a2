"""Tools and reasoning in chats: what a request asks for, and the shapes of calls in its answer."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from hotseat.core.request import SamplingParams, StructuredOutputsParams
from hotseat.errors import InvalidRequestError
from hotseat.formats import CallDelta, OutputFormat, OutputParser, detect_format
from hotseat.generation import OutputDelta
from hotseat.server.schema import ChatCompletionRequest

__all__ = ["ChatForm", "chat_form", "parsed_deltas", "parsed_message"]

MAX_TOOLS = 256
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")

detect = lru_cache(maxsize=8)(detect_format)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatForm:
    """The tools and the reasoning of a chat request."""

    output_format: OutputFormat
    tools: Sequence[dict[str, Any]] = ()  # to be shown to the model; none: no call is looked for
    forced: tuple[str, ...] = ()  # names, of which one must be called
    has_named_tool: bool = False

    @property
    def is_parsed(self) -> bool:
        """Tell whether answers are split."""
        return bool(self.tools) or self.output_format.reasoning is not None

    def messages(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages; where the template shows no tools, a system message tells of them."""
        if not self.tools or self.output_format.template_has_tools:
            return messages
        listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in self.tools)
        text = (
            "You may call one of these functions. To call one, answer with nothing but a JSON object "
            f'{{"name": function name, "parameters": object of arguments}}.\n{listed}'
        )
        if messages and messages[0].get("role") == "system" and isinstance(messages[0].get("content"), str):
            return [{**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
        return [{"role": "system", "content": text}, *messages]

    def constrained(self, params: SamplingParams) -> SamplingParams:
        """Return ``params`` that hold the answer to a call, where one is forced."""
        if self.tools and self.output_format.tools.begin and params.skip_special_tokens:  # markers may be such tokens
            params = replace(params, skip_special_tokens=False)
        if not self.forced:
            return params
        if params.structured_outputs is not None:
            raise InvalidRequestError("A forced call and another form exclude each other.", param="tool_choice")
        written = self.output_format.tools
        tags = [
            {
                "type": "tag",
                "begin": written.call.format(name=json.dumps(tool["function"]["name"])),
                "content": {
                    "type": "json_schema",
                    "json_schema": tool["function"].get("parameters") or {"type": "object"},
                },
                "end": written.call_end,
            }
            for tool in self.tools
            if tool["function"]["name"] in self.forced
        ]
        tree = {"format": {"type": "or", "elements": tags}}
        return replace(
            params, structured_outputs=StructuredOutputsParams.from_values({"structural_tag": tree}, "tools")
        )

    def parser(self, prompt: str, params: SamplingParams) -> Callable[[], OutputParser] | None:
        """Return what makes the parsers of the answers to ``prompt``, as it was rendered."""
        if not self.is_parsed:
            return None
        reasoning = self.output_format.reasoning
        # A form binds from the first token on, so there is no reasoning before it.
        is_free = params.structured_outputs is None
        in_reasoning = reasoning is not None and is_free and prompt.rstrip().endswith(reasoning[0])
        return lambda: OutputParser(self.output_format, has_tools=bool(self.tools), in_reasoning=in_reasoning)


def chat_form(body: ChatCompletionRequest, template: str) -> ChatForm:
    """Return what ``body`` asks for, checked.

    Raises:
        InvalidRequestError: tools or tool_choice are wrong; ``param`` names the field.
    """
    output_format = detect(template)
    if body.include_reasoning is False and output_format.reasoning and (body.logprobs or body.return_token_ids):
        raise InvalidRequestError(
            "`include_reasoning` false hides reasoning, which `logprobs` and `return_token_ids` would spell.",
            param="include_reasoning",
        )
    if body.tools is None:
        if body.tool_choice not in (None, "none", "auto"):
            raise InvalidRequestError("`tool_choice` needs `tools`.", param="tool_choice")
        return ChatForm(output_format=output_format)
    names = _check_tools(body.tools)
    choice = body.tool_choice
    if choice == "none":
        return ChatForm(output_format=output_format)
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if choice.get("type") != "function" or name not in names:
            raise InvalidRequestError("`tool_choice` must name one of `tools` as a function.", param="tool_choice")
        return ChatForm(output_format=output_format, tools=body.tools, forced=(name,), has_named_tool=True)
    forced = tuple(names) if choice == "required" else ()
    return ChatForm(output_format=output_format, tools=body.tools, forced=forced)


def _check_tools(tools: list[dict[str, Any]]) -> list[str]:
    if not 0 < len(tools) <= MAX_TOOLS:
        raise InvalidRequestError(f"`tools` must be a list of 1 to {MAX_TOOLS}, or left out.", param="tools")
    names: list[str] = []
    for number, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict):
            raise InvalidRequestError(f"tools[{number}] must have the type function and a function.", param="tools")
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidRequestError(f"tools[{number}] needs a name of letters, digits, _, . and -.", param="tools")
        if name in names:
            raise InvalidRequestError(f"`tools` has {name!r} twice.", param="tools")
        if not isinstance(function.get("parameters"), dict | None):
            raise InvalidRequestError(f"tools[{number}].function.parameters must be an object.", param="tools")
        names.append(name)
    return names


def parsed_message(
    text: str, reasoning: Sequence[str], calls: Sequence[CallDelta], *, shows_reasoning: bool
) -> dict[str, Any]:
    """Return the fields of a message that was parsed; the content of nothing but calls is null."""
    message: dict[str, Any] = {"content": text or None if calls or reasoning else text}
    if shows_reasoning:
        message["reasoning"] = message["reasoning_content"] = "".join(reasoning) or None
    if calls:
        shaped: list[dict[str, Any]] = []
        for call in calls:
            if call.name is not None:
                shaped.append({"id": _new_id(), "type": "function", "function": {"name": call.name, "arguments": ""}})
            shaped[call.number]["function"]["arguments"] += call.arguments
        message["tool_calls"] = shaped
    return message


def parsed_deltas(delta: OutputDelta, *, shows_reasoning: bool) -> list[dict[str, Any]]:
    """Return the ``delta`` objects of a chunk each; id and name of a call come once, with the first of it."""
    parts: list[dict[str, Any]] = []
    if delta.reasoning and shows_reasoning:
        parts.append({"reasoning": delta.reasoning, "reasoning_content": delta.reasoning})
    if delta.text:
        parts.append({"content": delta.text})
    for call in delta.calls or ():
        shaped: dict[str, Any] = {"index": call.number, "function": {"arguments": call.arguments}}
        if call.name is not None:
            shaped |= {"id": _new_id(), "type": "function"}
            shaped["function"] = {"name": call.name, "arguments": call.arguments}
        parts.append({"tool_calls": [shaped]})
    return parts


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
