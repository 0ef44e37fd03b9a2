"""Endpoint of OpenAI's Responses API, answered by the chats of the same model; nothing is kept between requests."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from hotseat.server.body import read_json
from hotseat.server.generate import answer_chat
from hotseat.server.logprobs import TokenNames
from hotseat.server.metadata import ResponseMetadata
from hotseat.server.responses_chat import CLIENT_NAMES, chat_of_responses
from hotseat.server.responses_schema import ResponsesRequest
from hotseat.server.responses_writers import ResponseStreamWriter, ResponseWriter
from hotseat.server.state import ServerContext, context_of
from hotseat.server.translate import speak_of
from hotseat.server.writers import StreamWriter, WholeWriter

__all__ = ["router"]

router = APIRouter()


@router.post("/v1/responses", tags=["OpenAI"])
async def create_response(request: Request) -> Response:
    """Answer the input, which holds the whole conversation."""
    context = context_of(request)
    body = await read_json(request, ResponsesRequest, context.config.max_request_bytes)
    echo = _echo(body, context)

    def writer(metadata: ResponseMetadata) -> StreamWriter | WholeWriter:
        kind = ResponseStreamWriter if body.stream else ResponseWriter
        return kind(metadata, echo, TokenNames(context.services.tokenizer))

    speak_of(request, body, CLIENT_NAMES)
    return await answer_chat(request, chat_of_responses(body), "resp_", writer)


def _echo(body: ResponsesRequest, context: ServerContext) -> dict[str, Any]:
    """Return the fields of the request that the response repeats, with the defaults of those that were not sent."""
    defaults = context.services.sampling_defaults
    further = body.model_extra or {}
    reasoning = body.reasoning.model_dump(exclude_none=True) if body.reasoning else {}
    text = body.text.model_dump(exclude_none=True) if body.text else {}
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "temperature": defaults.get("temperature", 1.0) if body.temperature is None else body.temperature,
        "top_p": defaults.get("top_p", 1.0) if body.top_p is None else body.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "text": {"format": {"type": "text"}, **text},
        "reasoning": {"effort": None, "summary": None, **reasoning},
        "tools": body.tools or [],
        "tool_choice": body.tool_choice or "auto",
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "truncation": "disabled",
        "metadata": body.metadata or {},
        "user": body.user,
        "store": False,
        "background": False,
        "previous_response_id": None,
        "service_tier": "default",
        "prompt_cache_key": further.get("prompt_cache_key"),
        "safety_identifier": further.get("safety_identifier"),
    }
