"""Refuse fields that would silently change the answer if they were ignored."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from hotseat.errors import InvalidRequestError
from hotseat.server.schema import GenerationRequest

__all__ = ["refuse_unsupported"]

_logger = logging.getLogger(__name__)

# Known fields that mean nothing to this engine and whose absence changes no token: accepted, never logged.
_HARMLESS = frozenset(
    {
        *(
            "best_of",
            "guided_decoding_backend",
            "include_reasoning",
            "length_penalty",
            "metadata",
            "prediction",
        ),
        *("prompt_cache_key", "request_id", "safety_identifier", "service_tier", "session_id", "store"),
        *("stream_interval", "spaces_between_special_tokens", "use_beam_search", "verbosity", "vllm_xargs"),
    }
)


def _set(value: Any) -> bool:
    return value is not None and value is not False and value not in ("", [], {})


# Field → (tells whether its value asks for something that is not there, what to say).
_REFUSED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "suffix": (_set, "text cannot be inserted before a suffix by this model"),
    "use_beam_search": (_set, "beam search is not supported"),
    "prompt_embeds": (_set, "prompts must be text or token ids"),
    "logprob_token_ids": (_set, "ask for the most probable tokens by logprobs"),
    "repetition_detection": (_set, "it is not supported"),
    "thinking_token_budget": (_set, "it is not supported"),
    "kv_transfer_params": (_set, "there is no transfer of the KV cache"),
    "chat_template": (_set, "templates are not taken from requests"),
    "functions": (_set, "it is replaced by tools, and tools are not supported"),
    "function_call": (lambda value: _set(value) and value != "none", "tools are not supported"),
    "audio": (_set, "only text is supported"),
    "web_search_options": (_set, "there is no web search"),
    "modalities": (lambda value: _set(value) and value != ["text"], "only text is supported"),
}

# Fields of other servers and of the libraries behind them. Each changes what is generated where it is known.
_OTHERS = {
    "it is not known here; send `max_tokens`": (
        "max_new_tokens",
        "max_length",
        "max_gen_toks",
        "n_predict",
        "num_predict",
    ),
    "it is not known here; send `repetition_penalty`": ("repeat_penalty", "penalty_repeat"),
    "it is not known here; send `min_tokens`": ("min_new_tokens", "min_length"),
    "it is not known here; send `stop`": ("stop_sequences", "stop_strings", "stop_regex", "antiprompt"),
    "it is not known here; send `temperature`": ("do_sample", "greedy"),
    "it is not known here; send `logprobs`": ("n_probs", "return_logprob", "top_n_tokens", "decoder_input_details"),
    "it is not known here; send `tools`": ("tool_config", "toolbox"),
    "it is not known here; send `chat_template_kwargs`": ("think", "thinking", "enable_thinking"),
    "it is not known here; send `structured_outputs`": (
        *("format", "guided_decoding", "structural_tag", "grammar_lazy", "response_schema"),
        *("guided_choice_tokens", "choice_constraint", "constraint", "schema"),
    ),
    "there are no adapters": (
        "lora_path",
        "lora_request",
        "lora",
        "lora_name",
        "adapter_id",
        "adapters",
        "adapter_source",
    ),
    "this way to choose tokens is not supported": (
        *("mirostat", "mirostat_tau", "mirostat_eta", "tfs", "tfs_z", "typical", "typical_p", "top_a", "top_n_sigma"),
        *(
            "dynatemp_range",
            "dynatemp_exponent",
            "dynatemp_low",
            "dynatemp_high",
            "smoothing_factor",
            "smoothing_curve",
        ),
        *("xtc_probability", "xtc_threshold", "epsilon_cutoff", "eta_cutoff", "samplers", "sampler_order"),
        *(
            "dry_multiplier",
            "dry_base",
            "dry_allowed_length",
            "dry_penalty_last_n",
            "dry_sequence_breakers",
            "dry_range",
        ),
        *(
            "num_beams",
            "num_beam_groups",
            "diversity_penalty",
            "penalty_alpha",
            "no_repeat_ngram_size",
            "early_stopping",
        ),
        *("repeat_last_n", "repetition_penalty_range", "encoder_repetition_penalty", "penalize_nl", "negative_prompt"),
        *("guidance_scale", "custom_logit_processor", "custom_params", "logits_processors", "forced_decoder_ids"),
        *("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "force_words_ids", "sequence_bias", "watermark"),
    ),
    "it would change the prompt, and is not supported": (
        *(
            "raw",
            "system",
            "template",
            "context",
            "n_keep",
            "n_discard",
            "truncate",
            "truncation",
            "input_ids",
            "images",
        ),
        *(
            "input_embeds",
            "inputs",
            "image_data",
            "audio_data",
            "options",
            "parameters",
            "session_params",
            "data_sources",
        ),
    ),
    "it would change the answer, and is not supported": (
        *("return_hidden_states", "return_full_text", "return_prompt_logprobs", "t_max_predict_ms", "n_indent"),
        *("response_fields", "details", "best_of_n", "num_return_sequences"),
    ),
}
_REFUSED |= {name: (_set, why) for why, names in _OTHERS.items() for name in names if name not in _REFUSED}


def refuse_unsupported(body: GenerationRequest) -> None:
    """Raise for the first field that cannot be honoured; note unknown ones in the debug log.

    Raises:
        InvalidRequestError: with ``param`` naming the field.
    """
    extra = body.model_extra or {}
    for name, value in extra.items():
        if name in _REFUSED:
            asks, why = _REFUSED[name]
            if asks(value):
                raise InvalidRequestError(f"`{name}` cannot be honoured: {why}.", param=name)
        elif name not in _HARMLESS:
            _logger.debug("ignored unknown field %r", name[:100])
    _refuse_best_of(body, extra.get("best_of"))


def _refuse_best_of(body: GenerationRequest, best_of: Any) -> None:
    if best_of is not None and best_of != (body.n or 1):
        raise InvalidRequestError("`best_of` cannot be honoured: only a value equal to n is.", param="best_of")
