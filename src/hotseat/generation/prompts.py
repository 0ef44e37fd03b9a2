"""From a prompt and parameters to the requests that the engine runs, or to the reason why not."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hotseat.core.limits import check_context
from hotseat.core.request import Request, RequestId, SamplingParams
from hotseat.core.structured_outputs import TokenConstraint
from hotseat.errors import InvalidRequestError, PromptTooLongError
from hotseat.formats import AnswerParser
from hotseat.generation.bad_words import BadWords, word_ids
from hotseat.grammar import Grammar
from hotseat.text import Tokenizer

__all__ = ["ModelLimits", "PromptReader", "PromptRequest", "child_seed"]

HEAD_CHARACTERS_PER_TOKEN = 16  # of a prompt's head; English has four
_SEED_MASK = (1 << 63) - 1


def request_seed(engine_seed: int, serial: int) -> int:
    """Return the seed of the ``serial``-th request of an engine with a seed of its own."""
    digest = hashlib.blake2b(f"engine:{engine_seed}:{serial}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & _SEED_MASK


def child_seed(seed: int | None, index: int) -> int:
    """Return the seed of sequence ``index``: the first is the caller's own, so that ``n`` does not change it.

    Others are hashed, so that sequence 1 of seed 5 has nothing to do with sequence 0 of seed 6. Without a seed each
    one is drawn.
    """
    if seed is None:
        return int.from_bytes(os.urandom(8), "little") & _SEED_MASK
    if index == 0:
        return seed & _SEED_MASK
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & _SEED_MASK


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRequest:
    """A prompt, as text or token ids, and how to continue it.

    Raises:
        InvalidRequestError: ``deadline_ms`` is no positive number, or there is no such ``pooling``.
    """

    prompt: str | list[int]
    params: SamplingParams
    add_special_tokens: bool = True  # to a text, as the tokenizer wants them around a plain one
    clips_max_tokens: bool = False  # max_tokens is an upper bound: it may exceed the room that the context has left
    priority: int = 0
    tenant: str = ""
    deadline_ms: float | None = None  # from arrival to the first token
    cache_salt: str = ""
    make_parser: Callable[[], AnswerParser] | None = None  # splits the text of one sequence
    hides_reasoning: bool = False  # also in token_ids and logprobs
    pooling: str | None = None  # "last" or "mean": the deltas bring its final hidden states, put together so

    def __post_init__(self) -> None:
        if self.deadline_ms is not None and not 0 < self.deadline_ms < math.inf:
            raise InvalidRequestError(
                f"deadline_ms must be a positive number, not {self.deadline_ms!r}", param="deadline_ms"
            )
        if self.pooling not in (None, "last", "mean"):
            raise InvalidRequestError(f'pooling must be "last" or "mean", not {self.pooling!r}', param="pooling")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """The model's bounds on its requests."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int] = frozenset()
    default_max_tokens: int | None = None  # when a request has none; None: what the context holds
    seed: int | None = None  # from which requests without a seed get theirs, in order; None: each one is drawn


class PromptReader:
    """Tokenize and check prompts and make their requests, one for each of the ``n`` sequences.

    Ids are never used twice: what the caller passes is only their beginning. Any thread may use it.
    """

    def __init__(self, tokenizer: Tokenizer, limits: ModelLimits) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        self._serial = itertools.count()

    def read(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the token ids of ``text``. One that is far too long is refused at the cost of its head.

        Raises:
            PromptTooLongError: its head alone has twice the tokens that the model can hold.
            InvalidRequestError: it holds what is no character.
        """
        # Where a text is cut changes a few tokens around the cut, never half of them.
        max_model_len = self._limits.max_model_len
        head_length = HEAD_CHARACTERS_PER_TOKEN * max_model_len
        if len(text) > 2 * head_length:
            num_head_tokens = len(self._tokenizer.encode(text[:head_length], add_special_tokens=False))
            if num_head_tokens > 2 * max_model_len:
                raise PromptTooLongError(
                    f"the prompt has {len(text)} characters, of which the first {head_length} alone are "
                    f"{num_head_tokens} tokens, but this model's maximum context length (max_model_len) is "
                    f"{max_model_len} tokens",
                    param="prompt",
                )
        return self._tokenizer.encode(text, add_special_tokens)

    def requests(
        self, prompt: PromptRequest, request_id: str, arrived_at: float, grammar: Grammar | None = None
    ) -> list[Request]:
        """Return the requests for the sequences of one prompt, each with a copy of ``grammar``.

        Raises:
            InvalidRequestError: a token id is outside the vocabulary, the prompt is empty, or the sequence would not
                fit the model's context; the message has the numbers.
        """
        text, params = prompt.prompt, prompt.params
        prompt_ids = self.read(text, prompt.add_special_tokens) if isinstance(text, str) else list(text)
        prompt_ids = self._truncated(prompt_ids, params)
        check_context(len(prompt_ids), params.max_tokens, self._limits.max_model_len)
        self._check_ids(prompt_ids)
        self._check_params(params)
        max_tokens = self._max_tokens(len(prompt_ids), prompt)
        serial = next(self._serial)
        ids = [f"{request_id}.{serial}"] if params.n == 1 else [f"{request_id}.{serial}/{i}" for i in range(params.n)]
        words = word_ids(params.bad_words, self._tokenizer)
        seed = params.seed
        if seed is None and self._limits.seed is not None:
            seed = request_seed(self._limits.seed, serial)
        deadline_at = None if prompt.deadline_ms is None else arrived_at + prompt.deadline_ms / 1000
        first_params = params.resolved(max_tokens=max_tokens, prompt_logprobs=params.prompt_logprobs)
        # The prompt is the same for all: one of them computes its log-probabilities, the others read the cache.
        other_params = params.resolved(max_tokens=max_tokens, prompt_logprobs=None) if params.n > 1 else first_params
        return [
            Request(
                id=RequestId(child_id),
                prompt_token_ids=prompt_ids,
                params=other_params if index else first_params,
                arrived_at=arrived_at,
                seed=child_seed(seed, index),
                eos_token_ids=self._limits.eos_token_ids,
                priority=prompt.priority,
                tenant=prompt.tenant,
                deadline_at=deadline_at,
                constraint=self._constraint(grammar, words),
                cache_salt=prompt.cache_salt,
                pooling=prompt.pooling,
            )
            for index, child_id in enumerate(ids)
        ]

    def _truncated(self, prompt_ids: list[int], params: SamplingParams) -> list[int]:
        """Return the end of the prompt that ``truncate_prompt_tokens`` keeps."""
        keeps = params.truncate_prompt_tokens
        if keeps is None:
            return prompt_ids
        if keeps == -1:
            keeps = max(1, self._limits.max_model_len - max(1, params.max_tokens or 1))
        return prompt_ids[-keeps:]

    def _constraint(self, grammar: Grammar | None, words: list[tuple[int, ...]]) -> TokenConstraint | None:
        inner = None if grammar is None else grammar.constraint()
        return BadWords(words, self._limits.vocab_size, inner) if words else inner

    def _check_ids(self, token_ids: list[int]) -> None:
        if set(map(type, token_ids)) != {int}:
            raise InvalidRequestError("a prompt of token ids must hold integers only", param="prompt")
        self._check_range(token_ids, "prompt")

    def _check_range(self, token_ids: Iterable[int], param: str) -> None:
        ids, vocab_size = tuple(token_ids), self._limits.vocab_size
        if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
            return
        wrong = next(token_id for token_id in ids if not 0 <= token_id < vocab_size)
        raise InvalidRequestError(
            f"{param}: token id {wrong} is outside the vocabulary, which has {vocab_size} tokens", param=param
        )

    def _check_params(self, params: SamplingParams) -> None:
        self._check_range((token_id for token_id, _ in params.logit_bias), "logit_bias")
        self._check_range(params.stop_token_ids, "stop_token_ids")
        self._check_range(params.allowed_token_ids or (), "allowed_token_ids")
        if params.min_tokens > 0:
            self._check_candidates(params)

    def _check_candidates(self, params: SamplingParams) -> None:
        """Refuse when nothing is left: what ends a sequence may not be sampled before ``min_tokens``."""
        banned, allowed = self._limits.eos_token_ids.union(params.stop_token_ids), params.allowed_token_ids
        if len(banned) >= self._limits.vocab_size if allowed is None else banned.issuperset(allowed):
            raise InvalidRequestError(
                f"each token that may be sampled ends the sequence, but min_tokens is {params.min_tokens}",
                param="min_tokens",
            )

    def _max_tokens(self, num_prompt_tokens: int, prompt: PromptRequest) -> int:
        """Return how many tokens the sequence may get; the prompt itself fits."""
        max_tokens, min_tokens = prompt.params.max_tokens, prompt.params.min_tokens
        limit = self._limits.max_model_len
        room = limit - num_prompt_tokens
        if max_tokens is None:
            default = self._limits.default_max_tokens
            return room if default is None else min(room, max(default, min_tokens))
        if max_tokens <= room:
            return max_tokens
        if prompt.clips_max_tokens:
            max_tokens = max(room, min_tokens)
        if max_tokens > room:
            raise InvalidRequestError(
                f"this model's maximum context length (max_model_len) is {limit} tokens, but "
                f"{num_prompt_tokens + max_tokens} were asked for: {num_prompt_tokens} in the prompt and "
                f"{max_tokens} to generate (max_tokens); at most {room} can be generated",
                param="max_tokens",
            )
        return max_tokens
