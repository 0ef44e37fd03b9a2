"""Requests of OpenAI's Responses API as chat requests."""

from __future__ import annotations

import logging
from typing import Any

from hotseat.errors import InvalidRequestError
from hotseat.server.responses_schema import ResponsesRequest
from hotseat.server.schema import ChatCompletionRequest
from hotseat.server.translate import chat_request

__all__ = ["CLIENT_NAMES", "chat_of_responses"]

_logger = logging.getLogger(__name__)

# Fields of chats under the names of this API.
CLIENT_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "text",
    "reasoning_effort": "reasoning",
}
_INSTEAD = {**CLIENT_NAMES, "logprobs": "include"}
_STATELESS = "answers are not kept here; send the whole conversation as input"
_REFUSED = {
    "previous_response_id": _STATELESS,
    "conversation": _STATELESS,
    "background": "answers are not kept here; wait for this one, or stream it",
    "prompt": "there are no stored prompts; send instructions and input",
    "context_management": "nothing is compacted here",
}
_PASSED = frozenset(
    {"max_tool_calls", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier"}
)
_LOGPROBS = "message.output_text.logprobs"
_INCLUDED = (
    *(_LOGPROBS, "reasoning.encrypted_content", "web_search_call.results", "web_search_call.action.sources"),
    *("file_search_call.results", "message.input_image.image_url", "code_interpreter_call.outputs"),
    "computer_call_output.output.image_url",
)


def chat_of_responses(body: ResponsesRequest) -> ChatCompletionRequest:
    """Return the chat request that asks for the same.

    Raises:
        InvalidRequestError: something in it is not supported, or contradicts itself; the message has its place.
    """
    _refuse(body)
    with_logprobs = _LOGPROBS in (body.include or ()) or bool(body.top_logprobs)
    tools = _tools(body)
    # The format is that of text, of which an answer that must be a call has none; instructor sends both.
    is_forced = tools["tool_choice"] not in (None, "auto", "none")
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": _messages(body),
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "logprobs": True if with_logprobs else None,
        "top_logprobs": body.top_logprobs if with_logprobs else None,
        "response_format": None if is_forced else _format(body),
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        "parallel_tool_calls": body.parallel_tool_calls,
        "stream": body.stream,
        "user": body.user,
        **tools,
    }
    for name in (*_PASSED, "stream_options"):  # they change nothing, and stream_options has other fields than in chats
        (body.model_extra or {}).pop(name, None)
    return chat_request(body, fields, _INSTEAD)


def _refuse(body: ResponsesRequest) -> None:
    for name, why in _REFUSED.items():
        if (body.model_extra or {}).get(name):
            raise InvalidRequestError(f"`{name}` cannot be honoured: {why}.", param=name)
    if body.truncation == "auto":
        raise InvalidRequestError(
            "`truncation` cannot be honoured: input is never cut; shorten it.", param="truncation"
        )
    for name in body.include or ():
        if name not in _INCLUDED:
            raise InvalidRequestError(f"`include` cannot be honoured: there is no {name[:100]!r}.", param="include")


def _messages(body: ResponsesRequest) -> list[dict[str, Any]]:
    """Return the input as the messages of a chat, with one system message at the head."""
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    conversation = _Conversation()
    if body.instructions:
        conversation.system.append(body.instructions)
    for at, item in enumerate(items):
        conversation.add(item, f"input[{at}]")
    text = "\n".join(conversation.system)
    messages = conversation.messages or [{"role": "user", "content": ""}]
    return [{"role": "system", "content": text}, *messages] if text else messages


class _Conversation:
    """Messages gathered from items; what an assistant thought, said and called in one turn is one message."""

    def __init__(self) -> None:
        self.system: list[str] = []
        self.messages: list[dict[str, Any]] = []
        self._turn: dict[str, Any] | None = None  # the assistant's message that still grows

    def add(self, item: dict[str, Any], pointer: str) -> None:
        """Take the next item.

        Raises:
            InvalidRequestError: it is of a kind that is not supported, or incomplete.
        """
        kind = item.get("type") or ("message" if "role" in item else None)
        match kind:
            case "message":
                self._add_message(item, pointer)
            case "function_call":
                self._add_call(item, pointer)
            case "function_call_output":
                self._turn = None
                output = _text(item.get("output"), f"{pointer}.output")
                call_id = _string(item, "call_id", pointer)
                self.messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
            case "reasoning":
                thought = _text(item.get("content") or item.get("summary") or "", f"{pointer}.content")
                self._assistant(("content", "tool_calls"))["reasoning_content"] = thought
            case "item_reference":
                raise InvalidRequestError(f"{pointer}: {_STATELESS}.", param="input")
            case _:
                raise InvalidRequestError(
                    f"{pointer}: the type {str(kind)[:60]!r} is not supported here.", param="input"
                )

    def _add_message(self, item: dict[str, Any], pointer: str) -> None:
        text = _text(item.get("content"), f"{pointer}.content")
        match item.get("role"):
            case "system" | "developer":
                self.system.append(text)
            case "assistant":
                self._assistant(("content", "tool_calls"))["content"] = text
            case "user":
                self._turn = None
                self.messages.append({"role": "user", "content": text})
            case role:
                raise InvalidRequestError(f"{pointer}.role: {str(role)[:60]!r} is no role.", param="input")

    def _add_call(self, item: dict[str, Any], pointer: str) -> None:
        function = {name: _string(item, name, pointer) for name in ("name", "arguments")}
        call = {"id": _string(item, "call_id", pointer), "type": "function", "function": function}
        self._assistant(()).setdefault("tool_calls", []).append(call)

    def _assistant(self, ended_by: tuple[str, ...]) -> dict[str, Any]:
        """Return the assistant's message that grows; a new one, if that has one of the keys already."""
        if self._turn is None or any(key in self._turn for key in ended_by):
            self._turn = {"role": "assistant"}
            self.messages.append(self._turn)
        return self._turn


def _text(content: Any, pointer: str) -> str:
    """Return a content's text; its parts, of whatever kind of text, are joined by line breaks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise InvalidRequestError(f"{pointer} must be a string or a list of parts.", param="input")
    texts = []
    for at, part in enumerate(content):
        kind = part.get("type")
        if kind not in ("input_text", "output_text", "text", "reasoning_text", "summary_text"):
            raise InvalidRequestError(
                f"{pointer}[{at}]: the type {str(kind)[:60]!r} is not supported here.", param="input"
            )
        texts.append(_string(part, "text", f"{pointer}[{at}]"))
    return "\n".join(texts)


def _string(values: dict[str, Any], name: str, pointer: str) -> str:
    value = values.get(name)
    if not isinstance(value, str):
        raise InvalidRequestError(f"{pointer}.{name} must be a string.", param="input")
    return value


def _format(body: ResponsesRequest) -> dict[str, Any] | None:
    """Return the form of the answer; this API has name and schema beside the type, chats have them within."""
    form = body.text.format if body.text else None
    if form is None or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {name: form[name] for name in form if name != "type"}}


def _tools(body: ResponsesRequest) -> dict[str, Any]:
    tools: list[dict[str, Any]] = []
    for tool in body.tools or ():
        if tool.get("type") == "function":
            tools.append({"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}})
        else:  # agents offer all that OpenAI has, and get along without
            _logger.info("a tool of the type %.60r is left out: it is not there", tool.get("type"))
    choice = body.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "function":
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    elif isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        names = [one.get("name") for one in choice.get("tools") or () if isinstance(one, dict)]
        tools = [tool for tool in tools if tool["function"].get("name") in names]
        choice = choice.get("mode") or "auto"
    if not tools and choice == "auto":
        choice = None
    return {"tools": tools or None, "tool_choice": choice}
