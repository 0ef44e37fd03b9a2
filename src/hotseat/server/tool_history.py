"""Tools, past calls and their results as plain text, for chat templates that have no place for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hotseat.formats import OutputFormat, example_call, written_call

__all__ = ["with_history", "with_tools"]

Messages = list[dict[str, Any]]


def with_tools(messages: Messages, tools: Sequence[dict[str, Any]], output_format: OutputFormat) -> Messages:
    """Return ``messages`` with a system message that tells of ``tools`` and of how to call them."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = (
        f"You may call these functions. To call one, answer with nothing but\n{example_call(output_format)}\n"
        f"where NAME is the function's name and each KEY an argument of it.\n{listed}"
    )
    if messages and messages[0].get("role") in ("system", "developer"):
        before = _text(messages[0].get("content"))
        return [{**messages[0], "content": f"{before}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def with_history(messages: Messages, output_format: OutputFormat) -> Messages:
    """Return ``messages`` in which the assistant's calls and the tools' results are text where they have to be."""
    if all(message.get("role") != "tool" and not message.get("tool_calls") for message in messages):
        return messages
    names: dict[str, str] = {}
    shaped: Messages = []
    for message in messages:
        calls = message.get("tool_calls")
        calls = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
        for call in calls:
            function = call.get("function")
            if isinstance(function, dict):
                names[str(call.get("id"))] = str(function.get("name"))
        if message.get("role") == "assistant" and calls and not output_format.template_has_calls:
            shaped.append(_calls_as_text(message, calls, output_format))
        elif message.get("role") == "tool" and not output_format.template_has_results:
            name = message.get("name") or names.get(str(message.get("tool_call_id")), "the function")
            _append_user(shaped, f"Result of {name}:\n{_text(message.get('content'))}", is_result=True)
        elif message.get("role") == "user" and shaped and shaped[-1].pop("is_result", False):
            _append_user(shaped, _text(message.get("content")), is_result=False)
        else:
            shaped.append(message)
    for message in shaped:
        message.pop("is_result", None)
    return shaped


def _append_user(messages: Messages, text: str, *, is_result: bool) -> None:
    """Add a message of the user, or go on with the last one: some templates want the roles to take turns."""
    if messages and messages[-1].get("role") == "user" and (not is_result or messages[-1].get("is_result")):
        messages[-1] = {**messages[-1], "content": f"{messages[-1]['content']}\n\n{text}"}
    else:
        messages.append({"role": "user", "content": text})
    if is_result:
        messages[-1]["is_result"] = True


def _calls_as_text(message: dict[str, Any], calls: list[dict[str, Any]], output_format: OutputFormat) -> dict[str, Any]:
    texts = [_text(message.get("content"))]
    for call in calls:
        function = call.get("function")
        if isinstance(function, dict):
            arguments = function.get("arguments", "{}")
            written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            texts.append(written_call(output_format, str(function.get("name")), written or "{}"))
    others = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**others, "content": "\n".join(text for text in texts if text)}


def _text(content: Any) -> str:
    if isinstance(content, list):
        parts = [part.get("text", "") if isinstance(part, dict) else str(part) for part in content]
        return "\n".join(str(part) for part in parts)
    return content if isinstance(content, str) else ""
