"""Texts that an answer must not get, kept out token by token."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hotseat.core.structured_outputs import TokenConstraint
from hotseat.text import Tokenizer

__all__ = ["BadWords", "word_ids"]

_ALL = np.uint32(0xFFFFFFFF)


def word_ids(words: Iterable[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Return the usual tokens of ``words``, inside a line and at its beginning, as vLLM finds them.

    A word that other tokens spell, with other letters around it, is not found.
    """
    found: list[tuple[int, ...]] = []
    for word in words:
        bare = tuple(tokenizer.encode(word.lstrip(), add_special_tokens=False))
        spaced = tuple(tokenizer.encode(" " + word.lstrip(), add_special_tokens=False))
        found.append(bare)
        if len(spaced) == len(bare) and spaced[0] != bare[0]:
            found.append(spaced)
    return found


class BadWords:
    """Masks the token that would complete one of ``words``; a ``TokenConstraint``, over a grammar's or alone."""

    __slots__ = ("_completions", "_inner", "_open", "_output", "_row", "ends_answer")

    def __init__(self, words: Iterable[tuple[int, ...]], vocab_size: int, inner: TokenConstraint | None = None) -> None:
        self.ends_answer = inner is not None and inner.ends_answer
        self._inner = inner
        self._output: list[int] = []
        self._open = np.full((vocab_size + 31) // 32, _ALL)  # without the words of a single token
        self._completions: dict[int, list[tuple[int, ...]]] = {}  # by their last token but one
        for word in words:
            if len(word) == 1:
                _clear(self._open, word[0])
            else:
                self._completions.setdefault(word[-2], []).append(word)
        self._row = self._open.copy()

    def mask(self) -> memoryview:
        """Return which tokens may come next, uint32[ceil(vocab_size / 32)]; valid until the next call.

        Raises:
            GrammarError: the grammar beneath cannot go on.
        """
        if self._inner is None:
            self._row[:] = self._open
        else:
            np.bitwise_and(self._open, np.frombuffer(self._inner.mask(), np.uint32), out=self._row)
        output = self._output
        for word in self._completions.get(output[-1], ()) if output else ():
            if tuple(output[-(len(word) - 1) :]) == word[:-1]:
                _clear(self._row, word[-1])
        return self._row.data

    def accept(self, token_id: int) -> None:
        """Go on by one token.

        Raises:
            GrammarError: it cannot come here, by the grammar beneath.
        """
        if self._inner is not None:
            self._inner.accept(token_id)
        self._output.append(token_id)

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens, as after a draft."""
        if self._inner is not None:
            self._inner.rollback(num_tokens)
        del self._output[len(self._output) - num_tokens :]


def _clear(row: np.ndarray, token_id: int) -> None:
    row[token_id >> 5] &= _ALL ^ np.uint32(1 << (token_id & 31))
