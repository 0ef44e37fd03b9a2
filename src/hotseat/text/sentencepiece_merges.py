"""The merges of a SentencePiece vocabulary, which has scores in their place.

SentencePiece's BPE joins, of all neighbours whose text together is a token, those with the best score (Kudo and
Richardson, 2018, https://arxiv.org/abs/1808.06226). So every way to cut a token into two tokens is a merge, and the
better the token's score, the earlier it applies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["merges_from_scores"]

_Hashes = npt.NDArray[np.uint64]
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64


def merges_from_scores(tokens: Sequence[str], scores: npt.NDArray[np.floating]) -> list[tuple[str, str]]:
    """Return the merges in the order of their application: by falling score, then by the two tokens' ids.

    ``scores`` has the shape [len(tokens)]. The work grows with the number of characters, however long a token is: all
    parts of all tokens are looked up at once, by their hashes.
    """
    text = np.frombuffer("".join(tokens).encode("utf-32-le"), np.uint32)
    ends = np.cumsum(np.fromiter(map(len, tokens), np.int64, len(tokens)))
    starts = np.concatenate(([0], ends[:-1])) if len(tokens) else ends
    hashes = _Prefixes(text)
    whole = hashes.of(starts, ends)
    by_hash = np.argsort(whole, kind="stable")
    known = whole[by_hash]

    # Every place inside a token is a cut: `owner` is the token, `cut` the place in the whole text.
    owner = np.repeat(np.arange(len(tokens)), np.maximum(ends - starts - 1, 0))
    first = np.ones(len(text), bool)
    first[starts[ends > starts]] = False
    cut = np.flatnonzero(first)
    left, found = _look_up(known, by_hash, hashes.of(starts[owner], cut))
    owner, cut, left = owner[found], cut[found], left[found]
    right, found = _look_up(known, by_hash, hashes.of(cut, ends[owner]))
    owner, left, right = owner[found], left[found], right[found]

    order = np.lexsort((left * len(tokens) + right, -scores[owner]))
    # A collision of hashes is not looked for: the library refuses a merge whose two sides together are no token.
    return [(tokens[a], tokens[b]) for a, b in zip(left[order].tolist(), right[order].tolist(), strict=True)]


class _Prefixes:
    """Hashes of any part of a text in constant time (Karp and Rabin, modulo 2**64)."""

    def __init__(self, text: npt.NDArray[np.uint32]) -> None:
        powers = _powers(_BASE, len(text))
        self._inverse = _powers(pow(_BASE, -1, 2**64), len(text))
        self._sums = np.zeros(len(text) + 1, np.uint64)
        np.cumsum((text.astype(np.uint64) + np.uint64(1)) * powers[:-1], out=self._sums[1:])

    def of(self, start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> _Hashes:
        """Return the hashes of the parts from ``start`` up to ``end``."""
        return (self._sums[end] - self._sums[start]) * self._inverse[start]


def _powers(base: int, count: int) -> _Hashes:
    """Return ``base ** 0`` … ``base ** count`` modulo 2**64."""
    factors = np.full(count + 1, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors)


def _look_up(
    known: _Hashes, by_hash: npt.NDArray[np.int64], wanted: _Hashes
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return for each wanted hash a token that has it, and whether there is one."""
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return by_hash[at], known[at] == wanted
