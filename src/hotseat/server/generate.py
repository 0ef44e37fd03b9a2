"""Endpoints that generate: text completions and chat completions."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any, TypeAlias

from fastapi import APIRouter, Request
from starlette.responses import Response

from hotseat.core.request import SamplingParams
from hotseat.errors import InvalidRequestError
from hotseat.formats import AnswerParser
from hotseat.generation import PromptRequest
from hotseat.server.auth import Caller
from hotseat.server.body import read_json
from hotseat.server.calls import ChatForm, chat_form
from hotseat.server.chunks import ChunkWriter
from hotseat.server.errors import ApiError
from hotseat.server.metadata import ResponseMetadata
from hotseat.server.respond import GenerationResponse
from hotseat.server.result import ResultWriter
from hotseat.server.sampling import chat_sampling, completion_sampling
from hotseat.server.schema import (
    MAX_PROMPTS,
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    TokenizeRequest,
)
from hotseat.server.services import ServerServices
from hotseat.server.state import ServerContext, context_of, request_context_of
from hotseat.server.unsupported import refuse_unsupported
from hotseat.server.writers import StreamWriter, WholeWriter

__all__ = ["answer_chat", "answer_prompts", "chat_prompt", "chat_tokens", "check_model", "router"]

MakeWriter: TypeAlias = Callable[[ResponseMetadata], StreamWriter | WholeWriter]

MAX_CHOICES = 4096
MAX_STOPS = 16_384  # looked for in all sequences of a request
MAX_NAMES = 20  # of models that an error lists
MAX_NAME_LENGTH = 64  # of a user; longer names are known by their digests

router = APIRouter()


@router.post("/v1/completions", tags=["OpenAI"])
async def create_completion(request: Request) -> Response:
    """Continue one or more prompts."""
    context = context_of(request)
    body = await read_json(request, CompletionRequest, context.config.max_request_bytes)
    return await answer_prompts(request, body, "cmpl-", partial(_openai_writer, request, body))


async def answer_prompts(
    request: Request,
    body: CompletionRequest,
    id_prefix: str,
    make_writer: MakeWriter,
    *,
    pooling: str | None = None,
) -> Response:
    """Return the response to one or more prompts; ``pooling`` asks for their hidden states as well.

    Raises:
        ApiError: there is no such model.
        InvalidRequestError: a field cannot be honoured.
    """
    context = context_of(request)
    _check(body, context)
    params = completion_sampling(body, context.services.sampling_defaults)
    prompts = _prompts(body)
    metadata = _metadata(body, context, id_prefix, prompts, params)
    return _respond(request, body, metadata, make_writer(metadata), prompts, params, pooling=pooling)


@router.post("/v1/chat/completions", tags=["OpenAI"])
async def create_chat_completion(request: Request) -> Response:
    """Answer the last message of a chat."""
    context = context_of(request)
    body = await read_json(request, ChatCompletionRequest, context.config.max_request_bytes)
    return await answer_chat(request, body, "chatcmpl-", partial(_openai_writer, request, body))


async def answer_chat(
    request: Request,
    body: ChatCompletionRequest,
    id_prefix: str,
    make_writer: MakeWriter,
) -> Response:
    """Return the response to a chat of any API; ``make_writer`` gives it that API's shape.

    Raises:
        ApiError: there is no such model.
        InvalidRequestError: a field cannot be honoured, or the model's template does not take the chat.
    """
    context = context_of(request)
    _check(body, context)
    services = context.services
    form = chat_form(body, services.output_format)
    params = chat_sampling(body, services.sampling_defaults)
    prompt = await chat_prompt(body, context, form)
    params = form.constrained(params, prompt, shows_special=services.has_special_markers)
    metadata = replace(
        _metadata(body, context, id_prefix, [prompt], params),
        is_parsed=form.is_parsed,
        shows_reasoning=body.include_reasoning is not False,
        has_named_tool=form.has_named_tool,
    )
    return _respond(request, body, metadata, make_writer(metadata), [prompt], params, form.parser(prompt))


def _openai_writer(request: Request, body: GenerationRequest, metadata: ResponseMetadata) -> StreamWriter | WholeWriter:
    tokenizer = context_of(request).services.tokenizer
    return ChunkWriter(metadata, tokenizer) if body.stream else ResultWriter(metadata, tokenizer)


def check_model(name: str | None, context: ServerContext) -> str:
    """Return the name under which to answer a request for ``name``; none means the served model.

    Raises:
        ApiError: 404, there is no such model.
    """
    served = context.services.model.served_names
    if not name:
        return served[0]
    if name not in served:
        names = ", ".join(f"`{one}`" for one in served[:MAX_NAMES])
        raise ApiError(404, f"The model `{name[:200]}` does not exist; this server has {names}.", "model")
    return name


async def chat_prompt(
    body: ChatCompletionRequest | TokenizeRequest, context: ServerContext, form: ChatForm | None = None
) -> str:
    """Render the messages by the model's chat template, off the event loop.

    Raises:
        InvalidRequestError: the template does not take them.
    """
    template = context.services.chat_template
    if template is None:
        raise InvalidRequestError("This model has no chat template; use /v1/completions.", param="messages")
    options: dict[str, Any] = dict(body.chat_template_kwargs or {})
    for name in ("add_generation_prompt", "continue_final_message", "documents", "messages", "tools"):
        if name in options:
            raise InvalidRequestError(f"Send `{name}` as a field of its own.", param="chat_template_kwargs")
    if isinstance(body, ChatCompletionRequest):
        if body.reasoning_effort is not None:
            options["reasoning_effort"] = body.reasoning_effort
            if body.reasoning_effort == "none":
                options.setdefault("enable_thinking", False)
        if body.documents is not None:
            options["documents"] = body.documents
    options["add_generation_prompt"] = body.add_generation_prompt is not False
    options["continue_final_message"] = bool(body.continue_final_message)

    def render() -> str:
        messages = [message.model_dump(exclude_unset=True) for message in body.messages or ()]
        if form is not None:
            messages = form.messages(messages)
            if form.tools:
                options["tools"] = form.tools
        return template.render(messages, **options)

    return await asyncio.to_thread(render)


async def chat_tokens(body: ChatCompletionRequest, context: ServerContext) -> list[int]:
    """Return the token ids of the prompt that a chat becomes, tools included.

    Raises:
        ApiError: there is no such model.
        InvalidRequestError: a field cannot be honoured, or the model's template does not take the chat.
    """
    _check(body, context)
    prompt = await chat_prompt(body, context, chat_form(body, context.services.output_format))
    return await context.services.generator.tokenize(prompt, add_special_tokens=bool(body.add_special_tokens))


def _check(body: GenerationRequest, context: ServerContext) -> None:
    """Refuse what contradicts itself or this server."""
    check_model(body.model, context)
    refuse_unsupported(body)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError("`stream_options` needs `stream` to be true.", param="stream_options")
    if body.priority and not context.services.honours_priority:
        raise InvalidRequestError(
            "`priority` cannot be honoured: the server runs a policy without priorities; "
            "start it with --scheduling-policy priority.",
            param="priority",
        )
    if body.deadline_ms is not None and not context.services.honours_deadline:
        raise InvalidRequestError(
            "`deadline_ms` cannot be honoured: the server runs a policy without deadlines; "
            "start it with --scheduling-policy deadline.",
            param="deadline_ms",
        )


def _prompts(body: CompletionRequest) -> list[str | list[int]]:
    prompt = body.prompt
    is_one = isinstance(prompt, str) or (prompt and isinstance(prompt[0], int))
    prompts: list[Any] = [prompt] if is_one else list(prompt)
    if not prompts or not all(prompts):
        raise InvalidRequestError("The prompt must not be empty.", param="prompt")
    if len(prompts) > MAX_PROMPTS:
        raise InvalidRequestError(f"At most {MAX_PROMPTS} prompts are taken, not {len(prompts)}.", param="prompt")
    return prompts


def _check_count(num_sequences: int, num_stops: int, services: ServerServices) -> None:
    """Refuse more sequences than can ever run and wait at once, and more stop strings than can be looked for."""
    if num_stops * num_sequences > MAX_STOPS:
        raise InvalidRequestError(
            f"The number of stop strings times n times the number of prompts must not exceed {MAX_STOPS}, and is "
            f"{num_stops * num_sequences}.",
            param="stop",
        )
    if num_sequences > MAX_CHOICES:
        raise InvalidRequestError(
            f"n times the number of prompts must not exceed {MAX_CHOICES}, and is {num_sequences}.", param="n"
        )
    if services.max_num_queued_reqs is None:
        return
    room = services.max_num_seqs + services.max_num_queued_reqs
    if num_sequences > room:
        raise InvalidRequestError(
            f"n times the number of prompts is {num_sequences}, but this server has {services.max_num_seqs} seats and "
            f"lets {services.max_num_queued_reqs} sequences wait (max_num_queued_reqs): {room} at most.",
            param="n",
        )


def _metadata(
    body: GenerationRequest,
    context: ServerContext,
    prefix: str,
    prompts: Sequence[str | list[int]],
    params: SamplingParams,
) -> ResponseMetadata:
    _check_count(params.n * len(prompts), len(params.stop), context.services)
    is_chat = isinstance(body, ChatCompletionRequest)
    options = body.stream_options
    return ResponseMetadata(
        id=prefix + uuid.uuid4().hex,
        model=check_model(body.model, context),
        created=int(time.time()),
        num_prompts=len(prompts),
        prompts=prompts if body.echo else (),
        n=params.n,
        is_chat=is_chat,
        logprobs=params.logprobs,
        skip_special_tokens=params.skip_special_tokens,
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
        return_token_ids=bool(body.return_token_ids),
        prompt_logprobs=body.prompt_logprobs is not None,
        echo=bool(body.echo) and not is_chat,
        echo_text=_echo_text(body) if isinstance(body, ChatCompletionRequest) else "",
        max_tokens=params.max_tokens,
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.include_usage and options.continuous_usage_stats),
    )


def _echo_text(body: ChatCompletionRequest) -> str:
    """Return the message that the answer goes on with, when the client wants to see it again."""
    last = body.messages[-1]
    if body.echo and body.continue_final_message and isinstance(last.content, str):
        return last.content
    return ""


def _tenant(caller: Caller, user: str) -> str:
    """Return whose turn it is under ``fair``; the field ``user`` says so only where nobody gains by it.

    A key without a name is a tenant of its own: its holder could else take one turn for each name that he invents.
    """
    if caller.name or (caller.account and not caller.is_admin):
        return caller.name or f"key {caller.account}"
    return user if len(user) <= MAX_NAME_LENGTH else _digest(user)


def _digest(text: str) -> str:
    """Return 16 bytes, as hexadecimal digits, that stand for a client's text of any length."""
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _respond(
    request: Request,
    body: GenerationRequest,
    metadata: ResponseMetadata,
    writer: StreamWriter | WholeWriter,
    prompts: Sequence[str | list[int]],
    params: SamplingParams,
    make_parser: Callable[[], AnswerParser] | None = None,
    *,
    pooling: str | None = None,
) -> Response:
    context, request_context = context_of(request), request_context_of(request)
    if not request_context.has_own_id:
        request_context.request_id = metadata.id
    caller = request_context.caller
    account = caller.account if context.config.isolate_prefix_cache else ""
    salt = _digest(f"{account} {body.cache_salt or ''}") if account or body.cache_salt else ""
    is_chat = isinstance(body, ChatCompletionRequest)
    prompt_requests = [
        PromptRequest(
            prompt=prompt,
            params=params,
            # A chat template writes the special tokens itself; the tokenizer adds some only when asked to.
            add_special_tokens=bool(body.add_special_tokens) if is_chat else body.add_special_tokens is not False,
            clips_max_tokens=isinstance(body, ChatCompletionRequest) and body.max_completion_tokens is not None,
            priority=body.priority or 0,
            tenant=_tenant(caller, body.user or ""),
            deadline_ms=body.deadline_ms,
            cache_salt=salt,
            make_parser=make_parser,
            hides_reasoning=not metadata.shows_reasoning,
            pooling=pooling,
        )
        for prompt in prompts
    ]
    return GenerationResponse(
        metadata,
        writer,
        lambda: context.services.generator.generate(prompt_requests, request_id=metadata.id),
        context=context,
        request_context=request_context,
    )
