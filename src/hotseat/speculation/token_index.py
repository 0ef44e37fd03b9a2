"""A text that grows token by token, and where its present end occurred before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["SEPARATOR", "Match", "TokenIndex"]

_ID_BITS = 20
SEPARATOR = (1 << _ID_BITS) - 1  # between texts of one index; no vocabulary is so large
MAX_LOOKS = 8  # earlier places that are compared, the latest first


class Match(NamedTuple):
    """An earlier place: what followed begins at ``follower`` and comes after ``length`` tokens that are the same."""

    follower: int
    length: int


class TokenIndex:
    """The places of all grams of ``gram_size`` tokens, each with a link to the place before.

    A gram is entered when the token after it is known, so a text's own end is found in its past only. A token costs a
    look-up and an entry, about half a microsecond; a search compares at most ``MAX_LOOKS`` places.
    """

    __slots__ = ("_before", "_gram", "_last", "_mask", "gram_size", "tokens")

    def __init__(self, gram_size: int) -> None:
        self.gram_size = gram_size
        self.tokens: list[int] = []
        self._mask = (1 << (_ID_BITS * gram_size)) - 1
        self._gram = 0  # the last tokens
        self._last: dict[int, int] = {}  # gram → its newest follower's place
        self._before: list[int] = []  # of each token: the place of its gram's follower before; 0: none

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append tokens."""
        tokens, last, before, mask, gram = self.tokens, self._last, self._before, self._mask, self._gram
        place, size = len(tokens), self.gram_size
        for token_id in token_ids:
            if place >= size:
                before.append(last.get(gram, 0))
                last[gram] = place
            else:
                before.append(0)
            tokens.append(token_id)
            gram = (gram << _ID_BITS | token_id) & mask
            place += 1
        self._gram = gram

    def find(self, text: Sequence[int], max_length: int) -> Match | None:
        """Return the place that has most tokens in common with the end of ``text``, the latest of several.

        At least ``gram_size`` and at most ``max_length`` tokens are compared.
        """
        size = self.gram_size
        if len(text) < size:
            return None
        gram = 0
        for token_id in text[-size:]:
            gram = gram << _ID_BITS | token_id
        place, best = self._last.get(gram, 0), None
        for _ in range(MAX_LOOKS):
            if not place:
                break
            length = self._common(text, place, max_length)
            if best is None or length > best.length:
                best = Match(place, length)
                if length >= max_length:
                    break
            place = self._before[place]
        return best

    def following(self, match: Match, num_tokens: int) -> list[int]:
        """Return what came after a place; at the end of the text it goes on as it did since that place."""
        tokens = self.tokens
        found = tokens[match.follower : match.follower + num_tokens]
        if SEPARATOR in found:
            return found[: found.index(SEPARATOR)]
        period = len(tokens) - match.follower
        while len(found) < num_tokens:
            found.append(found[len(found) - period])
        return found

    def _common(self, text: Sequence[int], place: int, max_length: int) -> int:
        tokens, length = self.tokens, self.gram_size
        limit = min(max_length, place, len(text))
        while length < limit and tokens[place - 1 - length] == text[-1 - length]:
            length += 1
        return length
