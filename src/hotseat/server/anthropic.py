"""Endpoints of Anthropic's Messages API, answered by the chats of the same model."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from hotseat.server.anthropic_chat import CLIENT_NAMES, chat_of_messages
from hotseat.server.anthropic_schema import CountTokensRequest, MessagesRequest
from hotseat.server.anthropic_writers import MessageStreamWriter, MessageWriter
from hotseat.server.body import read_json
from hotseat.server.generate import answer_chat, chat_tokens
from hotseat.server.state import context_of
from hotseat.server.translate import speak_of

__all__ = ["router"]

router = APIRouter()


@router.post("/v1/messages", tags=["Anthropic"])
async def create_message(request: Request) -> Response:
    """Answer the last message of a chat."""
    body = await read_json(request, MessagesRequest, context_of(request).config.max_request_bytes)
    speak_of(request, body, CLIENT_NAMES)
    make_writer = MessageStreamWriter if body.stream else MessageWriter
    return await answer_chat(request, chat_of_messages(body), "msg_", make_writer)


@router.post("/v1/messages/count_tokens", tags=["Anthropic"])
async def count_tokens(request: Request) -> Response:
    """Count the tokens of the prompt that a chat becomes."""
    context = context_of(request)
    body = await read_json(request, CountTokensRequest, context.config.max_request_bytes)
    speak_of(request, body, CLIENT_NAMES)
    token_ids = await chat_tokens(chat_of_messages(body), context)
    return JSONResponse({"input_tokens": len(token_ids)})
