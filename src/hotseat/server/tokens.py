"""Endpoints between text and token ids."""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from hotseat.errors import InvalidRequestError
from hotseat.server.body import read_json
from hotseat.server.generate import chat_prompt, check_model
from hotseat.server.logprobs import TokenNames
from hotseat.server.pieces import encode_list
from hotseat.server.schema import DetokenizeRequest, TokenizeRequest
from hotseat.server.state import context_of

__all__ = ["router"]

INLINE_TOKENS = 4096  # more are written in a thread

router = APIRouter()


@router.post("/tokenize", tags=["Tokens"])
@router.post("/v1/tokenize", tags=["Tokens"], include_in_schema=False)
async def tokenize(request: Request) -> Response:
    """Turn a prompt, or the messages of a chat, into token ids; texts that no context could hold are refused."""
    context = context_of(request)
    body = await read_json(request, TokenizeRequest, context.config.max_request_bytes)
    check_model(body.model, context)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("Send either `prompt` or `messages`.", param="prompt")
    tokenizer = context.services.tokenizer
    if body.prompt is None:
        text, adds_special = await chat_prompt(body, context), bool(body.add_special_tokens)
    else:
        text, adds_special = body.prompt, body.add_special_tokens is not False
    token_ids = await context.services.generator.tokenize(text, add_special_tokens=adds_special)
    names = TokenNames(tokenizer)

    def write() -> bytes:
        answer = {
            "count": len(token_ids),
            "max_model_len": context.services.model.max_model_len,
            "tokens": encode_list(token_ids),
            "token_strs": encode_list(map(names.name, token_ids)) if body.return_token_strs else None,
        }
        return msgspec.json.encode(answer)

    data = write() if len(token_ids) <= INLINE_TOKENS else await asyncio.to_thread(write)
    return Response(data, media_type="application/json")


@router.get("/tokenizer_info", tags=["Tokens"])
async def tokenizer_info(request: Request) -> Response:
    """Tell the tokenizer's special tokens and the chat template, by the names of tokenizer_config.json."""
    services = context_of(request).services
    tokenizer, template = services.tokenizer, services.chat_template
    names = {name: tokenizer.special_tokens.get(name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    return JSONResponse(
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **names,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "vocab_size": tokenizer.vocab_size,
            "model_max_length": services.model.max_model_len,
            "chat_template": template.source if template else None,
        }
    )


@router.post("/detokenize", tags=["Tokens"])
@router.post("/v1/detokenize", tags=["Tokens"], include_in_schema=False)
async def detokenize(request: Request) -> Response:
    """Turn token ids into text, special tokens included."""
    context = context_of(request)
    body = await read_json(request, DetokenizeRequest, context.config.max_request_bytes)
    check_model(body.model, context)
    tokenizer = context.services.tokenizer
    largest = max(body.tokens, default=0)
    if largest >= tokenizer.vocab_size:
        raise InvalidRequestError(
            f"Token id {largest} is outside of the vocabulary of {tokenizer.vocab_size}.", param="tokens"
        )
    text = await asyncio.to_thread(tokenizer.decode, body.tokens, skip_special_tokens=False)
    return Response(msgspec.json.encode({"prompt": text}), media_type="application/json")
