"""Requests of other APIs as chat requests; the names in errors stay those of the client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request
from pydantic import ValidationError

from hotseat.errors import InvalidRequestError
from hotseat.server.errors import validation_error
from hotseat.server.schema import ChatCompletionRequest, JsonBody
from hotseat.server.state import request_context_of

__all__ = ["chat_request", "speak_of"]

# Fields of chats that ask for more than one answer, or for parts that the answers of other APIs have no place for.
_NO_PLACE = (
    *("n", "echo", "logprobs", "prompt_logprobs", "return_token_ids", "return_tokens_as_token_ids", "stream_options"),
    *("include_reasoning", "add_generation_prompt", "continue_final_message", "documents", "add_special_tokens"),
)


def chat_request(body: JsonBody, fields: dict[str, Any], instead: Mapping[str, str]) -> ChatCompletionRequest:
    """Return the chat request with ``fields``, and with those that ``body`` has beyond its API, such as ``top_k``.

    ``instead`` maps fields of chats that the API has under other names to these.

    Raises:
        InvalidRequestError: a field cannot be honoured; ``param`` names it.
        ApiError: a value has the wrong type.
    """
    further = {name: value for name, value in (body.model_extra or {}).items() if value is not None}
    for name in further:
        if name in instead:
            raise InvalidRequestError(f"`{name}` is not known here; send `{instead[name]}`.", param=name)
        if (name in fields and name != "chat_template_kwargs") or (
            name in _NO_PLACE and further[name] not in (False, 1)
        ):
            raise InvalidRequestError(f"`{name}` cannot be honoured: this API does not have it.", param=name)
    kwargs = further.pop("chat_template_kwargs", {})
    if isinstance(kwargs, dict):
        kwargs = {**(fields.get("chat_template_kwargs") or {}), **kwargs}
    values = {**further, **{name: value for name, value in fields.items() if value is not None}}
    try:
        return ChatCompletionRequest.model_validate({**values, "chat_template_kwargs": kwargs})
    except ValidationError as error:
        raise validation_error(error) from None


def speak_of(request: Request, body: JsonBody, names: Mapping[str, str]) -> None:
    """Let errors of this request name a field of chats by its name in ``names``, unless ``body`` itself has it."""
    sent = {*type(body).model_fields, *(body.model_extra or {})}
    request_context_of(request).field_names = {name: own for name, own in names.items() if name not in sent}
