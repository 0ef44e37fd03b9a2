"""Log-probabilities as OpenAI's two shapes, completions and chat, with the tokens' true bytes."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import msgspec

from hotseat.core.batch import TokenLogprobs
from hotseat.text import Tokenizer

__all__ = ["ChatLogprob", "CompletionLogprobs", "PromptLogprob", "TextOffsets", "TokenNames"]

LOWEST = -9999.0  # JSON has no minus infinity


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct, frozen=True):
    """One entry of ``choices[].logprobs.content``."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """``choices[].logprobs`` of a text completion: parallel lists."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(msgspec.Struct, frozen=True):
    """One value of ``prompt_logprobs``, which maps token ids to these at each position."""

    logprob: float
    rank: int
    decoded_token: str


class TokenNames:
    """Write tokens for people: their text, or their bytes where they hold a part of a character."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def bytes(self, token_id: int) -> bytes:
        """Return the token's true bytes."""
        return self._tokenizer.token_bytes(token_id)

    def adds_text(self, token_id: int, *, skip_special_tokens: bool) -> bool:
        """Tell whether the token shows up in the text."""
        return not (skip_special_tokens and self._tokenizer.is_special(token_id))

    def name(self, token_id: int, *, prefix: str = "") -> str:
        r"""Return the token's text, or ``\xf0\x9f`` after ``prefix`` when it is no whole characters."""
        if self._as_ids:
            return f"token_id:{token_id}"
        data = self._tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return prefix + "".join(f"\\x{byte:02x}" for byte in data)

    def chat(self, entries: Sequence[TokenLogprobs], num_top: int) -> list[ChatLogprob]:
        """Return ``entries`` in the shape of chat completions."""
        return [
            ChatLogprob(
                self.name(entry.token_id),
                max(LOWEST, entry.logprob),
                list(self.bytes(entry.token_id)),
                [TopLogprob(self.name(i), max(LOWEST, p), list(self.bytes(i))) for i, p in entry.top[:num_top]],
            )
            for entry in entries
        ]

    def prompt(self, entries: Sequence[TokenLogprobs | None]) -> list[dict[int, PromptLogprob] | None]:
        """Return ``entries``, one for each prompt token, as vLLM's ``prompt_logprobs``."""
        shown: list[dict[int, PromptLogprob] | None] = []
        for entry in entries:
            if entry is None:
                shown.append(None)
                continue
            ranked = {i: PromptLogprob(max(LOWEST, p), r, self.name(i)) for r, (i, p) in enumerate(entry.top, 1)}
            own = PromptLogprob(max(LOWEST, entry.logprob), entry.rank, self.name(entry.token_id))
            shown.append({**ranked, entry.token_id: own})
        return shown


class TextOffsets:
    """Say at which character of a choice's text each token begins, and shape its log-probabilities."""

    def __init__(self, names: TokenNames, *, num_top: int, skip_special_tokens: bool) -> None:
        self._names = names
        self._num_top = num_top
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def shape(self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None]) -> CompletionLogprobs:
        """Return the next tokens of the choice; an entry is ``None`` where nothing was predicted."""
        offsets = [self._advance(token_id) for token_id in token_ids]
        names = [self._names.name(i, prefix="bytes:") for i in token_ids]
        own = [None if entry is None else max(LOWEST, entry.logprob) for entry in entries]
        return CompletionLogprobs(names, own, [self._top(entry) for entry in entries], offsets)

    def _advance(self, token_id: int) -> int:
        offset = self._offset
        if self._names.adds_text(token_id, skip_special_tokens=self._skip_special_tokens):
            self._offset += len(self._decoder.decode(self._names.bytes(token_id)))
        return offset

    def _top(self, entry: TokenLogprobs | None) -> dict[str, float] | None:
        if entry is None:
            return None
        pairs = [*entry.top[: self._num_top], (entry.token_id, entry.logprob)]
        top: dict[str, float] = {}
        for token_id, logprob in pairs:
            top.setdefault(self._names.name(token_id, prefix="bytes:"), max(LOWEST, logprob))
        return top
