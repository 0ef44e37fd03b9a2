"""Control tokens spelled out in messages, kept as the plain text that they are.

A text that spells ``<|im_end|>`` would become that token, close its turn and open another one, as system or assistant.
Here every such spelling in what a request sends is broken by a mark before the template sees it; the tokenizer takes
whole spellings, which only the template can have written, for control tokens, and removes the marks from the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

__all__ = ["ContentMarker", "MarkedPrompt", "TokenFinder"]

_MARK = "\ufdd0"  # one of Unicode's noncharacters, which no text has
_ESCAPED_MARK = "\\ufdd0"  # by a template that writes JSON in ASCII


class TokenFinder:
    """Finds tokens in a text by their spelling, from left to right, at each place the longest."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = frozenset(tokens)
        lengths: dict[str, set[int]] = {}
        for token in self._tokens:
            lengths.setdefault(token[0], set()).add(len(token))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._firsts = re.compile("|".join(map(re.escape, self._lengths)) or "(?!)")

    def split(self, text: str) -> Iterator[tuple[str, str | None]]:
        """Return the text before each token, and the token; at the end the rest, and ``None``."""
        end = 0
        for match in self._firsts.finditer(text):
            at = match.start()
            if at < end:
                continue
            sizes = self._lengths[match[0]]
            size = next((size for size in sizes if text[at : at + size] in self._tokens), 0)
            if size:
                yield text[end:at], text[at : at + size]
                end = at + size
        yield text[end:], None


class MarkedPrompt(str):
    """A rendered chat whose contents are marked; the tokenizer reads it differently from other texts."""

    __slots__ = ()

    def parts(self, finder: TokenFinder) -> Iterator[tuple[str, str | None]]:
        """Return what ``finder`` returns, with the marks removed from the texts."""
        for text, token in finder.split(str(self)):
            yield text.replace(_MARK, "").replace(_ESCAPED_MARK, ""), token


class ContentMarker:
    """Breaks the spellings of given tokens in values of JSON's types."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._finder = TokenFinder(tokens)

    def mark(self, value: object) -> object:
        """Return a copy of ``value`` in which no text spells a token."""
        if isinstance(value, str):
            return self._broken(value)
        if isinstance(value, list):
            return [self.mark(item) for item in value]
        if isinstance(value, dict):
            return {self._broken(key): self.mark(item) for key, item in value.items()}
        return value

    def _broken(self, text: str) -> str:
        parts = self._finder.split(text.replace(_MARK, "\ufffd"))
        return "".join([before + (token[0] + _MARK + token[1:] if token else "") for before, token in parts])
