"""Turn a request body into ``SamplingParams``; defaults come from the model's generation_config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotseat.core.request import MAX_LOGIT_BIAS, MAX_LOGPROBS, SamplingParams
from hotseat.errors import InvalidRequestError
from hotseat.server.schema import ChatCompletionRequest, CompletionRequest, GenerationRequest
from hotseat.server.structured import structured_outputs

__all__ = ["chat_sampling", "completion_sampling"]

DEFAULT_MAX_TOKENS = 16

# Fields that pass unchanged, under the same name, when the client sent them.
_PASSED = (
    *("n", "temperature", "top_p", "top_k", "min_p", "seed", "min_tokens", "ignore_eos"),
    *("include_stop_str_in_output", "skip_special_tokens", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "prompt_logprobs", "bad_words", "truncate_prompt_tokens"),
)


def completion_sampling(body: CompletionRequest, defaults: Mapping[str, float]) -> SamplingParams:
    """Return how ``body`` wants its tokens; ``echo`` with ``logprobs`` asks for the prompt's too."""
    values = _shared_values(body, defaults)
    values["max_tokens"] = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if body.logprobs is not None:
        values["logprobs"] = body.logprobs
        if body.echo:
            values["prompt_logprobs"] = max(body.logprobs, values.get("prompt_logprobs", 0))
    return SamplingParams(**values)


def chat_sampling(body: ChatCompletionRequest, defaults: Mapping[str, float]) -> SamplingParams:
    """Return how ``body`` wants its tokens; without a limit the answer may fill the context."""
    values = _shared_values(body, defaults)
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if limit == 0:
        field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        raise InvalidRequestError(f"`{field}` must be at least 1 in a chat.", param=field)
    values["max_tokens"] = limit
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("`top_logprobs` needs `logprobs` to be true.", param="top_logprobs")
    if body.logprobs:
        values["logprobs"] = num_top = body.top_logprobs or 0
        if not 0 <= num_top <= MAX_LOGPROBS:
            raise InvalidRequestError(
                f"`top_logprobs` must be between 0 and {MAX_LOGPROBS}, not {num_top}.", param="top_logprobs"
            )
    return SamplingParams(**values)


def _shared_values(body: GenerationRequest, defaults: Mapping[str, float]) -> dict[str, Any]:
    values: dict[str, Any] = dict(defaults)
    for name in _PASSED:
        value = getattr(body, name)
        if value is not None:
            values[name] = value
    values["stop"] = () if body.stop is None else body.stop
    values["stop_token_ids"] = body.stop_token_ids or ()
    values["logit_bias"] = _logit_bias(body.logit_bias or {})
    if body.allowed_token_ids is not None:
        values["allowed_token_ids"] = body.allowed_token_ids
    values["structured_outputs"] = structured_outputs(body)
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequestError("`prompt_logprobs` cannot be streamed.", param="prompt_logprobs")
    return values


def _logit_bias(biases: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    pairs = {}
    for key, bias in biases.items():
        if not key.isascii() or not key.isdigit() or len(key) > 10:
            raise InvalidRequestError(
                f"`logit_bias` maps token ids to biases; {key[:40]!r} is no id.", param="logit_bias"
            )
        pairs[int(key)] = min(MAX_LOGIT_BIAS, max(-MAX_LOGIT_BIAS, bias))
    return tuple(pairs.items())
