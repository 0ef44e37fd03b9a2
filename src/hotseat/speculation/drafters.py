"""Drafters without a model: n-grams of the own text, and suffixes of the own text and of recent answers."""

from __future__ import annotations

from collections.abc import Sequence

from hotseat.core.request import Request, RequestId
from hotseat.speculation.token_index import SEPARATOR, TokenIndex

__all__ = ["NgramDrafter", "SuffixDrafter"]

SUFFIX_GRAM = 3  # tokens that must be the same at least
MAX_STORED_TOKENS = 1 << 17  # of recent answers in a generation: some 20 MB


class _OwnTexts:
    """An index of each running request's prompt and output, brought up to date when it is asked for."""

    def __init__(self, gram_size: int) -> None:
        self._gram_size = gram_size
        self._indexes: dict[RequestId, TokenIndex] = {}

    def of(self, request: Request) -> TokenIndex:
        """Return the index of all tokens of ``request``."""
        index = self._indexes.get(request.id)
        if index is None:
            index = self._indexes[request.id] = TokenIndex(self._gram_size)
            index.extend(request.prompt_token_ids)
        num_known = len(index.tokens) - request.num_prompt_tokens
        index.extend(request.output_token_ids[num_known:])
        return index

    def forget(self, request: Request) -> None:
        """Forget a request."""
        self._indexes.pop(request.id, None)


class NgramDrafter:
    """Prompt lookup: what followed the last tokens when they came before, in prompt or output (vLLM's ``ngram``).

    The longest match of ``min_length`` to ``max_length`` tokens counts, the latest of several.
    """

    def __init__(self, min_length: int, max_length: int) -> None:
        self._max_length = max_length
        self._texts = _OwnTexts(min_length)

    def propose(self, request: Request, num_tokens: int) -> Sequence[int]:
        """Return at most ``num_tokens`` ids that may follow."""
        index = self._texts.of(request)
        match = index.find(index.tokens, self._max_length)
        return index.following(match, num_tokens) if match else ()

    def ended(self, request: Request) -> None:
        """Forget a request that ended."""
        self._texts.forget(request)


class SuffixDrafter:
    """The longest suffix that came before, in the own text or in recent answers under the same ``cache_salt``.

    A draft is at most ``max_spec_factor`` times as long as what matched: long matches are safe ones (Oliaro et al.,
    "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications", arXiv 2411.04975). Answers are kept in
    two generations of at most ``MAX_STORED_TOKENS`` tokens and half of ``max_answers`` answers; a full one replaces
    the older.
    """

    def __init__(self, max_depth: int = 24, max_answers: int = 10_000, max_spec_factor: float = 1.0) -> None:
        self._max_depth = max_depth
        self._max_spec_factor = max_spec_factor
        self._max_answers = max_answers / 2
        self._texts = _OwnTexts(SUFFIX_GRAM)
        self._generations: list[dict[str, TokenIndex]] = [{}, {}]  # by salt; the newer first
        self._num_tokens = self._num_answers = 0  # of the newer one

    def propose(self, request: Request, num_tokens: int) -> Sequence[int]:
        """Return at most ``num_tokens`` ids that may follow."""
        own = self._texts.of(request)
        text, index, best = own.tokens, own, own.find(own.tokens, self._max_depth)
        for generation in self._generations:
            if best is not None and best.length >= self._max_depth:
                break
            others = generation.get(request.cache_salt)
            match = others.find(text, self._max_depth) if others is not None else None
            if others is not None and match is not None and (best is None or match.length > best.length):
                index, best = others, match
        if best is None:
            return ()
        return index.following(best, min(num_tokens, max(1, int(self._max_spec_factor * best.length))))

    def ended(self, request: Request) -> None:
        """Forget a request that ended, and remember its answer."""
        self._texts.forget(request)
        output = request.output_token_ids
        if len(output) <= SUFFIX_GRAM or not self._max_answers:
            return
        if self._num_tokens + len(output) > MAX_STORED_TOKENS or self._num_answers >= self._max_answers:
            self._generations = [{}, self._generations[0]]
            self._num_tokens = self._num_answers = 0
        index = self._generations[0].setdefault(request.cache_salt, TokenIndex(SUFFIX_GRAM))
        index.extend(output[:MAX_STORED_TOKENS])
        index.extend([SEPARATOR])
        self._num_tokens += len(output)
        self._num_answers += 1
