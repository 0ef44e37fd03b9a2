"""Requests of Anthropic's Messages API as chat requests."""

from __future__ import annotations

import json
from typing import Any

from hotseat.errors import InvalidRequestError
from hotseat.server.anthropic_schema import AnthropicMessage, AnthropicTool, CountTokensRequest, MessagesRequest
from hotseat.server.schema import ChatCompletionRequest
from hotseat.server.translate import chat_request

__all__ = ["CLIENT_NAMES", "chat_of_messages"]

# Fields of chats under Anthropic's names.
CLIENT_NAMES = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "response_format": "output_config",
    "reasoning_effort": "output_config",
    "user": "metadata",
}
_INSTEAD = {**CLIENT_NAMES, "parallel_tool_calls": "tool_choice"}
_REFUSED = {
    "container": "there are no containers",
    "mcp_servers": "the server calls no others; call the tools from the client",
}
# A line of Claude Code's system prompt that changes with every request: it would keep the prefix cache from any hit.
_BILLING = "x-anthropic-billing-header:"
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_of_messages(body: CountTokensRequest) -> ChatCompletionRequest:
    """Return the chat request that asks for the same.

    Raises:
        InvalidRequestError: something in it is not supported, or contradicts itself; the message has its place.
    """
    for name, why in _REFUSED.items():
        if (body.model_extra or {}).get(name):
            raise InvalidRequestError(f"`{name}` cannot be honoured: {why}.", param=name)
    messages = _messages(body)
    # As Anthropic has it, an assistant's message at the end is the beginning of the answer.
    is_begun = messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": messages,
        "continue_final_message": is_begun or None,
        "add_generation_prompt": False if is_begun else None,
        "chat_template_kwargs": _thinking(body),
        **_tools(body),
        **_output(body),
    }
    if isinstance(body, MessagesRequest):
        # A limit above what the context has left is clipped: agents ask for the most that they could use.
        fields |= {"max_completion_tokens": body.max_tokens, "stream": body.stream, "stop": body.stop_sequences}
        fields |= {"temperature": body.temperature, "top_p": body.top_p, "top_k": body.top_k}
        fields["user"] = body.metadata.user_id if body.metadata else None
    return chat_request(body, fields, _INSTEAD)


def _messages(body: CountTokensRequest) -> list[dict[str, Any]]:
    system = [_texts(body.system, "system")] if body.system is not None else []
    messages: list[dict[str, Any]] = []
    for at, message in enumerate(body.messages):
        pointer = f"messages[{at}]"
        if message.role == "system":
            system.append(_texts(message.content, f"{pointer}.content"))
        elif isinstance(message.content, str):
            messages.append({"role": message.role, "content": message.content})
        elif message.role == "user":
            messages += _user_messages(message, pointer)
        else:
            messages.append(_assistant_message(message, pointer))
    text = "\n".join(part for part in system if part)
    if not messages:
        raise InvalidRequestError("`messages` needs one of a user.", param="messages")
    return [{"role": "system", "content": text}, *messages] if text else messages


def _texts(content: str | list[dict[str, Any]], pointer: str) -> str:
    """Return the text of a system prompt, less the line that is for Anthropic's bills."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    texts = [_text(block, f"{pointer}[{at}]") for at, block in enumerate(blocks)]
    lines = [line for text in texts for line in text.split("\n") if not line.startswith(_BILLING)]
    return "\n".join(lines)


def _text(block: dict[str, Any], pointer: str) -> str:
    kind = block.get("type")
    if kind != "text":
        raise InvalidRequestError(f"{pointer}: the type {str(kind)[:60]!r} is not supported here.", param="messages")
    return _string(block, "text", pointer)


def _string(block: dict[str, Any], name: str, pointer: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise InvalidRequestError(f"{pointer}.{name} must be a string.", param="messages")
    return value


def _user_messages(message: AnthropicMessage, pointer: str) -> list[dict[str, Any]]:
    """Return the results of tools, each a message, then what the user says beside them."""
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for at, block in enumerate(message.content):
        assert isinstance(block, dict), "a content in one string is no list"
        place = f"{pointer}.content[{at}]"
        if block.get("type") == "tool_result":
            content = block.get("content") or ""
            text = content if isinstance(content, str) else _result_text(content, f"{place}.content")
            call_id = _string(block, "tool_use_id", place)
            results.append({"role": "tool", "tool_call_id": call_id, "content": text})
        else:
            parts.append({"type": "text", "text": _text(block, place)})
    if not parts and results:
        return results
    return [*results, {"role": "user", "content": parts[0]["text"] if len(parts) == 1 else parts}]


def _result_text(content: Any, pointer: str) -> str:
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise InvalidRequestError(f"{pointer} must be a string or a list of blocks.", param="messages")
    return "\n".join(_text(block, f"{pointer}[{at}]") for at, block in enumerate(content))


def _assistant_message(message: AnthropicMessage, pointer: str) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for at, block in enumerate(message.content):
        assert isinstance(block, dict), "a content in one string is no list"
        place = f"{pointer}.content[{at}]"
        match block.get("type"):
            case "thinking":
                thoughts.append(_string(block, "thinking", place))
            case "redacted_thinking":
                pass  # sealed for another model
            case "tool_use":
                calls.append(_call(block, place))
            case _:
                texts.append(_text(block, place))
    # Texts of one answer are parts of one text, cut where calls stood between them.
    shaped: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        shaped["reasoning_content"] = "".join(thoughts)
    if calls:
        shaped |= {"tool_calls": calls, "content": shaped["content"] or None}
    return shaped


def _call(block: dict[str, Any], pointer: str) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise InvalidRequestError(f"{pointer}.input must be an object.", param="messages")
    function = {"name": _string(block, "name", pointer), "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": _string(block, "id", pointer), "type": "function", "function": function}


def _tools(body: CountTokensRequest) -> dict[str, Any]:
    choice = body.tool_choice
    fields: dict[str, Any] = {"tools": [_tool(tool, at) for at, tool in enumerate(body.tools or ())] or None}
    if choice is None:
        return fields
    if choice.type == "tool":
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    else:
        fields["tool_choice"] = _CHOICES[choice.type]
    if choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    return fields


def _tool(tool: AnthropicTool, at: int) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise InvalidRequestError(
            f"tools[{at}]: the type {tool.type[:60]!r} is a tool of Anthropic's servers and is not there.",
            param="tools",
        )
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "strict": tool.strict}
    function["parameters"] = tool.input_schema or {"type": "object"}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def _thinking(body: CountTokensRequest) -> dict[str, Any]:
    """Return what the template is told: as at Anthropic, a model thinks only where it is asked to."""
    thinking = body.thinking
    return {"enable_thinking": thinking is not None and thinking.type != "disabled"}


def _output(body: CountTokensRequest) -> dict[str, Any]:
    config = body.output_config
    if config is None:
        return {}
    fields: dict[str, Any] = {"reasoning_effort": config.effort}
    if config.format is not None:
        if config.format.get("type") != "json_schema" or not isinstance(config.format.get("schema"), dict):
            raise InvalidRequestError(
                "`output_config.format` must have the type json_schema and a schema.", param="output_config"
            )
        fields["response_format"] = {"type": "json_schema", "json_schema": {"schema": config.format["schema"]}}
    return fields
