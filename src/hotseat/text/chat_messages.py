"""The messages of a chat in the one shape that chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

from hotseat.errors import InvalidRequestError

__all__ = ["join_parts", "plain_messages", "plain_value", "second_attempts"]

_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")

Message = dict[str, object]


def plain_messages(messages: object) -> list[Message]:
    """Return a copy of ``messages`` whose values are plain data.

    - ``content`` may be a string, ``None``, or a list of ``{"type": "text", "text": …}`` parts. A message with neither
      content nor tool calls is an empty turn.
    - Keys whose value is ``None`` are dropped: templates handle a missing key better.
    - ``arguments`` of tool calls, JSON text in OpenAI's API, become objects. What is no JSON stays text: the model
      wrote it, and the client, who sends the history back with every turn, cannot mend it.

    Raises InvalidRequestError with a pointer such as ``messages[2].content[1]`` as ``param``.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise InvalidRequestError("messages must be a list with at least one message", param="messages")
    return [_message(message, f"messages[{at}]") for at, message in enumerate(messages)]


def join_parts(messages: list[Message], takes_parts: Callable[[str], bool]) -> list[Message]:
    """Return the messages with contents in parts joined by newlines, but for roles whose parts the template reads."""
    return [
        {**message, "content": "\n".join(str(part["text"]) for part in content)}
        if isinstance(content := message.get("content"), list) and not takes_parts(str(message["role"]))
        else message
        for message in messages
    ]


def second_attempts(messages: list[Message]) -> Iterator[list[Message]]:
    """Return further forms of the messages, to be tried when a template fails on the first.

    First with an empty text where a message that only calls tools has no content, then also with arguments that could
    not be read as an object of one text, for templates that go through the arguments.
    """
    filled = [message if "content" in message else {**message, "content": ""} for message in messages]
    if filled != messages:
        yield filled
    wrapped = [{**message, "tool_calls": _as_objects(message.get("tool_calls"))} for message in filled]
    wrapped = [message if message["tool_calls"] is not None else filled[at] for at, message in enumerate(wrapped)]
    if wrapped != filled:
        yield wrapped


def plain_value(value: object, pointer: str) -> object:
    """Return a copy of ``value`` made of JSON's types only: objects with methods are no business of a template.

    Raises InvalidRequestError with the pointer of what is something else.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, pointer)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {_key(key, pointer): plain_value(item, f"{pointer}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item, f"{pointer}[{at}]") for at, item in enumerate(value)]
    raise InvalidRequestError(f"{pointer} is a {type(value).__name__}, which is not a JSON value", param=pointer)


def _message(message: object, pointer: str) -> Message:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{pointer} must be an object with role and content", param=pointer)
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise InvalidRequestError(f"{pointer}.role must be a string", param=f"{pointer}.role")
    plain = {
        _key(key, pointer): plain_value(value, f"{pointer}.{key}")
        for key, value in message.items()
        if key != "content" and value is not None
    }
    content = _content(message.get("content"), f"{pointer}.content")
    if content is None and not plain.get("tool_calls"):
        content = ""
    if content is not None:
        plain["content"] = content
    if "tool_calls" in plain:
        _parse_arguments(plain["tool_calls"], f"{pointer}.tool_calls")
    reasoning = next((plain[key] for key in _REASONING_KEYS if key in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


def _content(content: object, pointer: str) -> str | list[object] | None:
    if content is None:
        return None
    if isinstance(content, str):
        return _text(content, pointer)
    if not isinstance(content, list | tuple):
        raise InvalidRequestError(f"{pointer} must be a string or a list of parts", param=pointer)
    return [_part(part, f"{pointer}[{at}]") for at, part in enumerate(content)]


def _part(part: object, pointer: str) -> object:
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise InvalidRequestError(f"{pointer} must be an object with a type", param=pointer)
    if part["type"] != "text":
        raise InvalidRequestError(
            f"{pointer} has type {part['type']!r}; this model reads text parts only", param=pointer
        )
    if not isinstance(part.get("text"), str):
        raise InvalidRequestError(f"{pointer}.text must be a string", param=f"{pointer}.text")
    return plain_value(part, pointer)


def _parse_arguments(calls: object, pointer: str) -> None:
    """Turn the arguments of tool calls from JSON text into objects, in place."""
    if not isinstance(calls, list):
        raise InvalidRequestError(f"{pointer} must be a list", param=pointer)
    for at, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
            continue
        try:
            arguments = json.loads(function["arguments"] or "{}")
        except (ValueError, RecursionError):
            continue
        function["arguments"] = plain_value(arguments, f"{pointer}[{at}].function.arguments")


def _as_objects(calls: object) -> list[object] | None:
    """Return tool calls whose arguments are objects, whatever they were; ``None`` when nothing is to be done."""
    if not isinstance(calls, list):
        return None
    copies: list[object] = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and not isinstance(function.get("arguments", {}), dict):
            call = {**call, "function": {**function, "arguments": {"arguments": function["arguments"]}}}
        copies.append(call)
    return copies


def _key(key: object, pointer: str) -> str:
    if not isinstance(key, str):
        raise InvalidRequestError(f"{pointer} has a key that is not a string", param=pointer)
    return _text(key, pointer)


def _text(text: str, pointer: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{pointer} contains a lone surrogate (\\u{ord(text[error.start]):04x}), which is not a character",
            param=pointer,
        ) from error
    return str(text)
