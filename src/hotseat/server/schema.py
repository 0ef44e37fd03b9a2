"""Bodies of requests: the fields of OpenAI and vLLM, with their types and defaults.

Only types and shapes are checked here. Ranges of sampling fields are ``SamplingParams``' business, fields
that cannot be honoured are refused in ``unsupported``, and unknown fields are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    Tag,
)

__all__ = [
    "AbortRequest",
    "ChatCompletionRequest",
    "ChatMessage",
    "CompletionRequest",
    "DetokenizeRequest",
    "EmbeddingRequest",
    "GenerationRequest",
    "JsonBody",
    "StreamOptions",
    "TokenizeRequest",
]

MAX_PROMPTS = 1024
MAX_MESSAGES = 4096
MAX_BIASES = 16_384
MAX_TEMPLATE_KWARGS = 256
MAX_TOKEN_IDS = 16_384  # in a list that names tokens of the vocabulary

Item = TypeVar("Item")
# One wrong item is enough to know: a list of a million would else bring a million complaints.
Many = Annotated[list[Item], Field(fail_fast=True)]

TokenId = Annotated[StrictInt, Field(ge=0, lt=2**31)]
TokenIds = Many[TokenId]
FewTokenIds = Annotated[TokenIds, Field(max_length=MAX_TOKEN_IDS)]
JsonSchema = dict[str, Any] | StrictStr | StrictBool
TemplateKwargs = Annotated[dict[str, Any], Field(max_length=MAX_TEMPLATE_KWARGS)]
Count = Annotated[StrictInt, Field(ge=0, lt=2**31)]


def _check_size(value: object) -> object:
    """Refuse a large object before each of its values is looked at."""
    if isinstance(value, dict) and len(value) > MAX_BIASES:
        raise ValueError(f"at most {MAX_BIASES} entries are taken, not {len(value)}")
    return value


def _kind_of_prompt(value: object) -> str:
    """Tell by the first item which kind of prompt is meant."""
    if not isinstance(value, list):
        return "text"
    if value and isinstance(value[0], str):
        return "texts"
    return "lists" if value and isinstance(value[0], list) else "ids"


Prompt = Annotated[
    Annotated[StrictStr, Tag("text")]
    | Annotated[TokenIds, Tag("ids")]
    | Annotated[Many[StrictStr], Field(max_length=MAX_PROMPTS), Tag("texts")]
    | Annotated[Many[TokenIds], Field(max_length=MAX_PROMPTS), Tag("lists")],
    Discriminator(_kind_of_prompt),
]


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
    stop: StrictStr | Many[StrictStr] | None = None
    stop_token_ids: FewTokenIds | None = None
    ignore_eos: StrictBool | None = None
    include_stop_str_in_output: StrictBool | None = None
    skip_special_tokens: StrictBool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[StrictStr, float] | None, BeforeValidator(_check_size)] = None
    allowed_token_ids: FewTokenIds | None = None
    bad_words: Many[StrictStr] | None = None
    truncate_prompt_tokens: StrictInt | None = None
    prompt_logprobs: StrictInt | None = None

    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: JsonSchema | None = None
    guided_regex: StrictStr | None = None
    guided_choice: Many[StrictStr] | None = None
    guided_grammar: StrictStr | None = None
    guided_json_object: StrictBool | None = None
    guided_whitespace_pattern: StrictStr | None = None
    json_schema: JsonSchema | None = None
    grammar: StrictStr | None = None
    regex: StrictStr | None = None
    ebnf: StrictStr | None = None

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
    content: StrictStr | Many[dict[str, Any] | StrictStr] | None = None
    name: StrictStr | None = None


class ChatCompletionRequest(GenerationRequest):
    """Body of ``POST /v1/chat/completions``."""

    messages: Annotated[Many[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    logprobs: StrictBool | None = False
    top_logprobs: StrictInt | None = None
    max_completion_tokens: Count | None = None
    add_generation_prompt: StrictBool | None = True
    continue_final_message: StrictBool | None = False
    documents: Many[dict[str, Any]] | None = None
    tools: Many[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: StrictBool | None = None
    include_reasoning: StrictBool | None = None
    reasoning_effort: StrictStr | None = None
    chat_template_kwargs: TemplateKwargs | None = None


class EmbeddingRequest(JsonBody):
    """Body of ``POST /v1/embeddings``. ``pooling``: the last token's hidden state, or the mean of all."""

    input: Prompt
    model: StrictStr | None = None
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[Count, Field(ge=1)] | None = None
    pooling: Literal["last", "mean"] | None = None
    user: StrictStr | None = None
    priority: Annotated[StrictInt, Field(ge=-(2**31), lt=2**31)] | None = 0
    deadline_ms: Annotated[float, Field(gt=0)] | None = None
    cache_salt: StrictStr | None = None
    add_special_tokens: StrictBool | None = None


class TokenizeRequest(JsonBody):
    """Body of ``POST /tokenize``: a prompt, or messages to be rendered first."""

    model: StrictStr | None = None
    prompt: StrictStr | None = None
    messages: Annotated[Many[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: StrictBool | None = None
    add_generation_prompt: StrictBool | None = True
    continue_final_message: StrictBool | None = False
    tools: Many[dict[str, Any]] | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    return_token_strs: StrictBool | None = False


class DetokenizeRequest(JsonBody):
    """Body of ``POST /detokenize``."""

    model: StrictStr | None = None
    tokens: TokenIds


class AbortRequest(JsonBody):
    """Body of ``POST /abort_requests``: ids as they stand in responses; they must match exactly."""

    request_ids: Annotated[Many[StrictStr], Field(min_length=1, max_length=65_536)]
