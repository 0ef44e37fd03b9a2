"""The tools of a chat request: which there are, and which the model may or must call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hotseat.errors import InvalidRequestError
from hotseat.server.schema import ChatCompletionRequest

__all__ = ["ToolChoice", "tool_choice"]

MAX_TOOLS = 256
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """The tools of a request and the calls that it wants."""

    shown: Sequence[dict[str, Any]] = ()  # to the model
    callable: Sequence[dict[str, Any]] = ()  # those that it may call; none: no call is looked for
    is_forced: bool = False  # one of them must be called
    is_named: bool = False  # and the request says which
    is_single: bool = False  # at most one call

    @property
    def is_restricted(self) -> bool:
        """Tell whether calls that the model makes of its own accord must be held to something."""
        return len(self.callable) < len(self.shown) or any(tool["function"].get("strict") for tool in self.callable)


def tool_choice(body: ChatCompletionRequest) -> ToolChoice:
    """Return what ``body`` says of tools, checked.

    Raises:
        InvalidRequestError: tools or tool_choice are wrong; ``param`` names the field.
    """
    choice = body.tool_choice
    if body.tools is None:
        if choice not in (None, "none", "auto"):
            raise InvalidRequestError("`tool_choice` needs `tools`.", param="tool_choice")
        return ToolChoice()
    by_name = _check_tools(body.tools)
    is_single = body.parallel_tool_calls is False
    if choice == "none":
        return ToolChoice()
    if isinstance(choice, dict):
        if choice.get("type") == "allowed_tools":
            return _allowed_tools(choice, by_name, is_single=is_single)
        name = _name_in(choice)
        if choice.get("type") != "function" or name not in by_name:
            raise InvalidRequestError("`tool_choice` must name one of `tools` as a function.", param="tool_choice")
        return ToolChoice(shown=body.tools, callable=[by_name[name]], is_forced=True, is_named=True, is_single=True)
    return ToolChoice(shown=body.tools, callable=body.tools, is_forced=choice == "required", is_single=is_single)


def _allowed_tools(choice: dict[str, Any], by_name: dict[str, dict[str, Any]], *, is_single: bool) -> ToolChoice:
    """Return OpenAI's choice among some of the tools; the prompt shows all, so that it stays the same."""
    inner = choice.get("allowed_tools", choice)
    mode = inner.get("mode", "auto") if isinstance(inner, dict) else None
    listed = inner.get("tools") if isinstance(inner, dict) else None
    if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
        raise InvalidRequestError(
            '`tool_choice` of type "allowed_tools" needs the mode "auto" or "required" and a list of tools.',
            param="tool_choice",
        )
    names = [_name_in(one) for one in listed]
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise InvalidRequestError(
            f"`tool_choice` allows {str(unknown[0])[:60]!r}, which is not among `tools`.", param="tool_choice"
        )
    allowed = [by_name[name] for name in dict.fromkeys(names) if name is not None]
    return ToolChoice(shown=list(by_name.values()), callable=allowed, is_forced=mode == "required", is_single=is_single)


def _name_in(value: Any) -> str | None:
    function = value.get("function", value) if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _check_tools(tools: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    if not 0 < len(tools) <= MAX_TOOLS:
        raise InvalidRequestError(f"`tools` must be a list of 1 to {MAX_TOOLS}, or left out.", param="tools")
    by_name: dict[str, dict[str, Any]] = {}
    for number, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict):
            raise InvalidRequestError(f"tools[{number}] must have the type function and a function.", param="tools")
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidRequestError(f"tools[{number}] needs a name of letters, digits, _, . and -.", param="tools")
        if name in by_name:
            raise InvalidRequestError(f"`tools` has {name!r} twice.", param="tools")
        if not isinstance(function.get("parameters"), dict | None):
            raise InvalidRequestError(f"tools[{number}].function.parameters must be an object.", param="tools")
        if not isinstance(function.get("strict"), bool | None):
            raise InvalidRequestError(f"tools[{number}].function.strict must be true or false.", param="tools")
        by_name[name] = tool
    return by_name
