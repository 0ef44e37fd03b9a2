"""Incremental decoding: a growing list of token ids as text, a step at a time."""

from __future__ import annotations

from collections.abc import Iterable

from hotseat.text.token_bytes import TokenBytes, read_utf8

__all__ = ["Detokenizer"]


class Detokenizer:
    """The text of one stream of tokens, handed out as soon as its characters are complete.

    The deltas of ``add``, with ``flush`` at the end, concatenate to ``Tokenizer.decode`` of all ids, whatever the
    ids are. At most three bytes (an unfinished character) are held back. The cost of a token does not depend on how
    long the text already is.
    """

    __slots__ = ("_byte_level", "_leading_spaces", "_opening", "_pending", "_pieces")

    def __init__(self, pieces: TokenBytes, *, prompt_ids: Iterable[int] = ()) -> None:
        """Start a stream; after a ``prompt_ids`` with any text in it, the stream is a continuation, and a
        SentencePiece space at its start is a real one."""
        rule = pieces.rule
        self._pieces = pieces
        self._byte_level = rule.byte_level
        self._pending = b""
        self._opening = rule.opens_specially
        self._leading_spaces = rule.leading_spaces
        for token_id in prompt_ids:
            if not self._opening:
                break
            self._open([token_id])

    def add(self, ids: Iterable[int]) -> str:
        """Take the next ids and return the text that is complete with them (often empty, never a broken character)."""
        if self._opening:
            data = self._open(list(ids))
        else:
            pieces = self._pieces
            data = b"".join([pieces[token_id] for token_id in ids])
        if self._pending:
            data = self._pending + data
        text, used = read_utf8(data, byte_level=self._byte_level, final=False)
        self._pending = data[used:]
        return text

    def flush(self) -> str:
        """End the stream and return what was held back, with U+FFFD in place of characters that never came whole."""
        text, _ = read_utf8(self._pending, byte_level=self._byte_level, final=True)
        self._pending = b""
        return text

    def _open(self, ids: list[int]) -> bytes:
        """Return the bytes of ``ids`` at the start of a text, and note whether the text has begun with them."""
        pieces = self._pieces
        if pieces.rule.first_symbol is not None:
            first = next((at for at, token_id in enumerate(ids) if pieces[token_id]), None)
            if first is None:
                return b""
            self._opening = False
            return pieces.opening(ids[first]) + b"".join([pieces[token_id] for token_id in ids[first + 1 :]])
        data = b"".join([pieces[token_id] for token_id in ids])
        while self._leading_spaces and data.startswith(b" "):
            data = data[1:]
            self._leading_spaces -= 1
        self._opening = not data and self._leading_spaces > 0
        return data
