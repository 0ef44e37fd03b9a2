"""What clients may send: the fields of OpenAI and vLLM, with their types and defaults.

Only types and shapes are checked here. Ranges of sampling fields are ``SamplingParams``' business, fields
that cannot be honoured are refused in ``unsupported``, and fields nobody knows are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

__all__ = [
    "AbortRequest",
    "ChatCompletionRequest",
    "ChatMessage",
    "CompletionRequest",
    "DetokenizeRequest",
    "GenerationRequest",
    "JsonBody",
    "StreamOptions",
    "TokenizeRequest",
]

MAX_PROMPTS = 1024
MAX_MESSAGES = 16_384

TokenId = Annotated[StrictInt, Field(ge=0, lt=2**31)]
TokenIds = list[TokenId]
Prompt = StrictStr | TokenIds | Annotated[list[StrictStr], Field(max_length=MAX_PROMPTS)] | list[TokenIds]
Count = Annotated[StrictInt, Field(ge=0, lt=2**31)]


class JsonBody(BaseModel):
    """Unknown fields are kept, so that they can be named in the log."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, protected_namespaces=())


class StreamOptions(JsonBody):
    include_usage: StrictBool | None = False
    continuous_usage_stats: StrictBool | None = False


class GenerationRequest(JsonBody):
    """Fields that text and chat completions share. ``None`` always means: as if not sent."""

    model: StrictStr | None = None
    stream: StrictBool | None = False
    stream_options: StreamOptions | None = None
    user: StrictStr | None = None

    n: StrictInt | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: StrictInt | None = None
    min_p: float | None = None
    seed: Annotated[StrictInt, Field(ge=-(2**63), lt=2**64)] | None = None
    max_tokens: Count | None = None
    min_tokens: Count | None = None
    stop: StrictStr | list[StrictStr] | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: StrictBool | None = None
    include_stop_str_in_output: StrictBool | None = None
    skip_special_tokens: StrictBool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[StrictStr, float] | None = None
    allowed_token_ids: TokenIds | None = None
    prompt_logprobs: StrictInt | None = None

    echo: StrictBool | None = False
    add_special_tokens: StrictBool | None = None
    priority: Annotated[StrictInt, Field(ge=-(2**31), lt=2**31)] | None = 0
    deadline_ms: Annotated[float, Field(gt=0)] | None = None
    cache_salt: StrictStr | None = None
    return_token_ids: StrictBool | None = False
    return_tokens_as_token_ids: StrictBool | None = False


class CompletionRequest(GenerationRequest):
    """Body of ``POST /v1/completions``."""

    prompt: Prompt
    logprobs: StrictInt | None = None


class ChatMessage(JsonBody):
    role: Annotated[StrictStr, Field(min_length=1)]
    content: StrictStr | list[dict[str, Any] | StrictStr] | None = None
    name: StrictStr | None = None


class ChatCompletionRequest(GenerationRequest):
    """Body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    logprobs: StrictBool | None = False
    top_logprobs: StrictInt | None = None
    max_completion_tokens: Count | None = None
    add_generation_prompt: StrictBool | None = True
    continue_final_message: StrictBool | None = False
    documents: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    reasoning_effort: StrictStr | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeRequest(JsonBody):
    """Body of ``POST /tokenize``: a prompt, or messages to be rendered first."""

    model: StrictStr | None = None
    prompt: StrictStr | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: StrictBool | None = None
    add_generation_prompt: StrictBool | None = True
    continue_final_message: StrictBool | None = False
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: StrictBool | None = False


class DetokenizeRequest(JsonBody):
    """Body of ``POST /detokenize``."""

    model: StrictStr | None = None
    tokens: TokenIds


class AbortRequest(JsonBody):
    """Body of ``POST /abort_requests``: ids as they stand in responses; they must match exactly."""

    request_ids: Annotated[list[StrictStr], Field(min_length=1, max_length=65_536)]
