"""Sampling parameters of a request and its stop conditions."""

from __future__ import annotations

import copy
import enum
import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from functools import wraps
from typing import Any, NoReturn, TypeAlias, TypeVar

from hotseat.core.structured_outputs import StructuredOutputsParams
from hotseat.errors import InvalidRequestError

__all__ = [
    "MAX_LOGIT_BIAS",
    "MAX_LOGPROBS",
    "MAX_N",
    "MAX_STOP_STRINGS",
    "LogitsProcessor",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
]

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024  # characters of one stop string
MAX_N = 128
MAX_LOGIT_BIAS = 100.0
MAX_COUNT = 2**31 - 1  # the largest number of tokens, and the largest token id, that anything may name
MAX_BAD_WORDS = 256
_INT64 = 2**63

# (output ids so far, logits float32[V]) or (prompt ids, output ids so far, logits) → logits float32[V]
LogitsProcessor: TypeAlias = Callable[..., Any]

# vLLM's fields that are not there: the value that asks for nothing, and what to do instead.
_NOT_HERE: dict[str, tuple[object, str]] = {
    "best_of": (None, "n answers are all that are computed; leave it out, or set it to n"),
    "spaces_between_special_tokens": (True, "special tokens are written as the tokenizer writes them"),
    "guided_decoding": (None, "say structured_outputs=StructuredOutputsParams(...)"),
    "extra_args": (None, "there are no plugins that would read it"),
    "flat_logprobs": (False, "log-probabilities come as a dict for each token"),
    "skip_reading_prefix_cache": (None, "say LLM(enable_prefix_caching=False)"),
    "skip_clone": (False, "parameters never change, so nothing is copied"),
    "use_beam_search": (False, "beam search is not supported; say n"),
    "length_penalty": (1.0, "it belongs to beam search, which is not supported"),
    "early_stopping": (False, "it belongs to beam search, which is not supported"),
}

T = TypeVar("T")


class RequestOutputKind(enum.Enum):
    """The outputs that ``AsyncLLM.generate`` yields: the answer so far, what is new of it, or the whole at its end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


def _takes_vllms_words(cls: type[T]) -> type[T]:
    """Say of a field that is not there what to write instead, and of an assignment that there is none."""
    init: Callable[..., None] = cls.__init__
    known = [field.name for field in fields(cls)]  # type: ignore[arg-type]

    @wraps(init)
    def checked_init(self: T, *values: Any, **named: Any) -> None:
        if values:
            raise InvalidRequestError(f"{cls.__name__} takes its fields by name", param="sampling_params")
        if not named.keys() <= checked:
            for name in named.keys() - checked:
                _check_word(name, named.pop(name), named, known)
        init(self, **named)

    def refuse(self: T, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"{cls.__name__} never change: make others with params.clone({name}={value!r})")

    checked = set(known)
    cls.__init__ = checked_init  # type: ignore[method-assign, assignment]
    cls.__setattr__ = refuse  # type: ignore[method-assign, assignment]
    return cls


def _check_word(name: str, value: object, named: dict[str, Any], known: list[str]) -> None:
    if name not in _NOT_HERE:
        raise InvalidRequestError(f"there is no sampling parameter {name}; there are {', '.join(known)}", param=name)
    neutral, instead = _NOT_HERE[name]
    if value not in (None, neutral) and not (name == "best_of" and value == named.get("n", 1)):
        raise InvalidRequestError(f"{name} = {value!r} is not supported: {instead}", param=name)


@_takes_vllms_words
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Say how tokens are chosen and when to stop. Names and defaults are vLLM's.

    ``temperature`` 0 is greedy. ``top_k`` 0 (or -1) and ``top_p`` 1 and ``min_p`` 0 switch the filter
    off. ``seed`` ``None`` (or -1) lets the caller of the engine draw one. ``max_tokens`` ``None`` means: up to the
    model's context; 0 computes the prompt and generates nothing. ``logprobs`` n asks for the chosen token's
    log-probability and the n most probable tokens (0: the chosen one alone); ``prompt_logprobs`` the same
    for the prompt. ``stop`` may be one string, and lists may stand for the tuples. ``structured_outputs`` is the form
    that the answer must have; tokens that end it may be sampled only where the form is complete. ``bad_words`` are
    texts that the answer does not get, as their usual tokens; ``truncate_prompt_tokens`` k keeps the last k tokens of
    the prompt (-1: as many as fit), ``detokenize`` false leaves the text empty.

    ``logits_processors`` are called one after the other on the row of logits, float32[V], of each token, before
    anything else changes it: with the output's ids and the row, or with the prompt's ids before them, and return a row.
    They run in Python between two steps, for all requests to wait for: expect a fraction of the speed. What one returns
    must follow from its arguments alone, or the answer depends on preemptions.

    Raises:
        InvalidRequestError: a value is out of range; ``param`` names the field.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    bad_words: tuple[str, ...] = ()
    logits_processors: tuple[LogitsProcessor, ...] = ()
    truncate_prompt_tokens: int | None = None
    detokenize: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        self._normalize()
        self._check_numbers()
        self._check_lengths()
        self._check_stops()
        self._check_token_ids()
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "detokenize"):
            if not isinstance(getattr(self, name), bool):
                raise _invalid(name, "must be true or false", getattr(self, name))
        self._check_extras()

    def clone(self, **changes: Any) -> SamplingParams:
        """Return a copy, with ``changes`` to its fields.

        Raises:
            InvalidRequestError: a value is out of range; ``param`` names the field.
        """
        return replace(self, **changes)

    def resolved(self, *, max_tokens: int, prompt_logprobs: int | None) -> SamplingParams:
        """Return a copy with these two values, which are trusted: nothing is checked a second time."""
        copied = copy.copy(self)
        _set(copied, "max_tokens", max_tokens)
        _set(copied, "prompt_logprobs", prompt_logprobs)
        return copied

    def _normalize(self) -> None:
        stop: Any = self.stop
        _set(self, "stop", (stop,) if isinstance(stop, str) else _as_tuple("stop", stop))
        _set(self, "stop_token_ids", _as_tuple("stop_token_ids", self.stop_token_ids))
        if self.allowed_token_ids is not None:
            _set(self, "allowed_token_ids", _as_tuple("allowed_token_ids", self.allowed_token_ids))
        for name in ("bad_words", "logits_processors"):
            value = getattr(self, name)
            _set(self, name, () if value is None else _as_tuple(name, value))
        form: Any = self.structured_outputs
        if form is not None and not isinstance(form, StructuredOutputsParams):
            _set(self, "structured_outputs", StructuredOutputsParams.from_values(form))
        bias: Any = self.logit_bias
        pairs = [(_as_id(key), value) for key, value in bias.items()] if isinstance(bias, dict) else bias
        _set(self, "logit_bias", tuple(_as_tuple("logit_bias", pair) for pair in _as_tuple("logit_bias", pairs)))
        if self.top_k == -1:
            _set(self, "top_k", 0)
        if self.seed == -1:
            _set(self, "seed", None)

    def _check_numbers(self) -> None:
        _check_int("n", self.n, 1, MAX_N)
        _check_float("temperature", self.temperature, 0.0, math.inf)
        _check_float("top_p", self.top_p, 0.0, 1.0, excludes_low=True)
        _check_int("top_k", self.top_k, 0, MAX_COUNT)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_float("repetition_penalty", self.repetition_penalty, 0.0, math.inf, excludes_low=True)
        if self.seed is not None:
            _check_int("seed", self.seed, -_INT64, _INT64 - 1)
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _check_int(name, value, 0, MAX_LOGPROBS)

    def _check_lengths(self) -> None:
        _check_int("min_tokens", self.min_tokens, 0, MAX_COUNT)
        if self.max_tokens is None:
            return
        _check_int("max_tokens", self.max_tokens, 0, MAX_COUNT)
        if self.min_tokens > self.max_tokens:
            raise _invalid("min_tokens", f"must not exceed max_tokens = {self.max_tokens}", self.min_tokens)

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise _invalid("stop", f"takes at most {MAX_STOP_STRINGS} strings", len(self.stop))
        for stop in self.stop:
            if not isinstance(stop, str) or not stop:
                raise _invalid("stop", "must hold strings that are not empty", stop)
            if len(stop) > MAX_STOP_LENGTH:
                raise _invalid("stop", f"takes strings of at most {MAX_STOP_LENGTH} characters", len(stop))

    def _check_extras(self) -> None:
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise _invalid("bad_words", f"takes at most {MAX_BAD_WORDS} texts", len(self.bad_words))
        for word in self.bad_words:
            if not isinstance(word, str) or not word.strip() or len(word) > MAX_STOP_LENGTH:
                raise _invalid("bad_words", f"must hold texts of 1 to {MAX_STOP_LENGTH} characters", word)
        for processor in self.logits_processors:
            if not callable(processor):
                raise _invalid("logits_processors", "must hold callables", processor)
        if self.truncate_prompt_tokens not in (None, -1):
            _check_int("truncate_prompt_tokens", self.truncate_prompt_tokens, 1, MAX_COUNT)
        if not self.detokenize and self.stop:
            raise _invalid("detokenize", "must be true where stop strings are looked for", False)
        if not isinstance(self.output_kind, RequestOutputKind):
            raise _invalid("output_kind", "must be a RequestOutputKind", self.output_kind)

    def _check_token_ids(self) -> None:
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, 0, MAX_COUNT)
        for pair in self.logit_bias:
            if len(pair) != 2:
                raise _invalid("logit_bias", "must hold pairs of a token id and a bias", pair)
            if not isinstance(pair[0], int) or isinstance(pair[0], bool):
                raise _invalid("logit_bias", "has token ids as keys, each a whole number", pair[0])
            _check_int("logit_bias", pair[0], 0, MAX_COUNT)
            _check_float("logit_bias", pair[1], -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
        if self.allowed_token_ids is None:
            return
        if not self.allowed_token_ids:
            raise _invalid("allowed_token_ids", "must not be empty", [])
        for token_id in self.allowed_token_ids:
            _check_int("allowed_token_ids", token_id, 0, MAX_COUNT)


def _set(params: SamplingParams, name: str, value: object) -> None:
    object.__setattr__(params, name, value)  # the dataclass is frozen, and this is still its construction


def _as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _invalid(name, "must be a list", value)
    return tuple(value)


def _as_id(key: Any) -> Any:
    """Return a key as JSON spells a token id as a number."""
    return int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10 else key


def _check_int(name: str, value: Any, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _invalid(name, "must be a whole number", value)
    if not low <= value <= high:
        raise _invalid(name, f"must be between {low} and {high}", value)


def _check_float(name: str, value: Any, low: float, high: float, *, excludes_low: bool = False) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise _invalid(name, "must be a finite number", value)
    if low <= value <= high and not (excludes_low and value == low):
        return
    above = f"{'greater than' if excludes_low else 'at least'} {low:g}"
    raise _invalid(name, f"must be {above}" if high == math.inf else f"must be {above} and at most {high:g}", value)


def _invalid(name: str, rule: str, value: object) -> InvalidRequestError:
    text = repr(value)
    return InvalidRequestError(f"{name} {rule}, not {text if len(text) <= 60 else text[:57] + '…'}", param=name)
