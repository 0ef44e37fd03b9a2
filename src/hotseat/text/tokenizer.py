"""Tokenizers: text to token ids and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from hotseat.errors import InvalidRequestError, ModelError, UnsupportedModelError
from hotseat.text.detokenizer import Detokenizer
from hotseat.text.gguf_vocabulary import GgufVocabulary
from hotseat.text.plain_contents import MarkedPrompt, TokenFinder
from hotseat.text.token_bytes import TokenBytes, decoding_rule

__all__ = ["Tokenizer"]


class Tokenizer:
    """A model's tokenizer. It never changes after it is made, so any thread may use it.

    ``vocab_size`` is one more than the largest token id. ``special_tokens`` maps roles (``bos_token``, ``eos_token``,
    ``unk_token``, ``pad_token``) to spellings. ``bos_token_id`` and ``eos_token_id`` are ``None`` in a model without
    them; further tokens that end an answer are listed in the model's generation_config.
    """

    __slots__ = (
        "_added",
        "_after",
        "_backend",
        "_before",
        "_bytes",
        "_finder",
        "_ids_of_added",
        "_post_processes",
        "_special_ids",
        "_visible_bytes",
        "bos_token_id",
        "eos_token_id",
        "special_tokens",
        "vocab_size",
    )

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str],
        *,
        adds_bos: bool | None = None,
        adds_eos: bool | None = None,
    ) -> None:
        """Wrap ``backend``.

        ``adds_bos`` and ``adds_eos`` say what goes around a plain text; when both are ``None``, the backend's own
        post-processor decides.
        """
        backend.no_truncation()
        backend.no_padding()
        decoder = backend.decoder
        rule = decoding_rule(None if decoder is None else json.loads(decoder.__getstate__()))
        added = backend.get_added_tokens_decoder()
        self._backend = backend
        self._added = added
        self._finder: TokenFinder | None = None  # made when it is needed first
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        ids = frozenset(added)
        self._bytes = TokenBytes(backend.id_to_token, rule, added=ids)
        self._visible_bytes = TokenBytes(backend.id_to_token, rule, added=ids, hidden=self._special_ids)
        self.vocab_size: int = max(backend.get_vocab_size(), 1 + max(added, default=-1))
        self.special_tokens = dict(special_tokens)
        self.bos_token_id = _id_of(backend, special_tokens.get("bos_token"))
        self.eos_token_id = _id_of(backend, special_tokens.get("eos_token"))
        self._post_processes = adds_bos is None and adds_eos is None
        if self._post_processes:
            adds_bos = backend.encode("").ids[:1] == [self.bos_token_id]
        self._before = [self.bos_token_id] if adds_bos and self.bos_token_id is not None else []
        self._after = [self.eos_token_id] if adds_eos and self.eos_token_id is not None else []

    @classmethod
    def from_file(cls, path: str | Path, tokenizer_config: Mapping[str, Any] | None = None) -> Tokenizer:
        """Read a tokenizer.json, and what its tokenizer_config.json adds to it.

        Raises ModelError when the file cannot be read, UnsupportedModelError when its decoder is not supported.
        """
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"cannot read the tokenizer {path}: {error}") from error
        config = tokenizer_config or {}
        special_tokens = _special_tokens_of_config(config)
        special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
        missed = [token for token in special_tokens.values() if token not in special]
        # A role makes a token special, whatever tokenizer.json says.
        backend.add_special_tokens([token for token in missed if backend.token_to_id(token) is not None])
        return cls(backend, special_tokens, adds_bos=config.get("add_bos_token"), adds_eos=config.get("add_eos_token"))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Rebuild the tokenizer that a GGUF file describes in its ``tokenizer.ggml.*`` keys.

        Raises UnsupportedModelError for a kind that is not known, naming those that are, and ModelError for metadata
        that contradict themselves.
        """
        vocabulary = GgufVocabulary(metadata)
        return cls(
            vocabulary.build(), vocabulary.special_tokens, adds_bos=vocabulary.adds_bos, adds_eos=vocabulary.adds_eos
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of ``text``. Special tokens that are spelled out in it are recognised.

        ``add_special_tokens`` adds what the model wants around a plain text (mostly a BOS). A chat template writes
        these itself: encode its output without. A text that is rendered elsewhere and begins with a BOS gets no second
        one. Runs without the GIL, so a thread of its own keeps a long prompt out of the way of others.
        """
        if isinstance(text, MarkedPrompt):
            return self._encode_marked(text, add_special_tokens)
        asks_backend = add_special_tokens and self._post_processes
        try:
            # A batch of one, because `encode` holds the GIL; without offsets, which nothing here reads.
            ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=asks_backend)[0].ids
        except TypeError as error:
            raise InvalidRequestError(
                "the text contains a lone surrogate, which is not a character", param="prompt"
            ) from error
        if not add_special_tokens:
            return ids
        if asks_backend:
            twice = bool(self._before) and ids[:2] == self._before * 2
            return ids[1:] if twice else ids
        before = [] if ids[:1] == self._before else self._before
        return [*before, *ids, *self._after]

    @property
    def control_tokens(self) -> list[str]:
        """The spellings of all control tokens.

        Raises UnsupportedModelError for a tokenizer that cannot encode the text between them by itself.
        """
        if _opens_first_word_only(self._backend):
            raise UnsupportedModelError("this tokenizer treats the first word of a prompt differently from all others")
        return [self._added[token_id].content for token_id in self._special_ids]

    def _encode_marked(self, text: MarkedPrompt, add_special_tokens: bool) -> list[int]:
        """Encode a chat in which whole spellings of control tokens are the template's, and all others text."""
        plain = tokenizers.Tokenizer(self._backend.model)  # shares the model, and knows no added tokens
        if self._backend.normalizer is not None:
            plain.normalizer = self._backend.normalizer
        if self._backend.pre_tokenizer is not None:
            plain.pre_tokenizer = self._backend.pre_tokenizer
        if self._finder is None:
            self._ids_of_added = {token.content: token_id for token_id, token in self._added.items()}
            self._finder = TokenFinder(self._ids_of_added)
        ids: list[int] = []
        swallows = False
        for part, spelling in text.parts(self._finder):
            following = None if spelling is None else self._added[self._ids_of_added[spelling]]
            part = part.lstrip() if swallows else part
            part = part.rstrip() if following is not None and following.lstrip else part
            if part:
                ids += plain.encode_batch_fast([part], add_special_tokens=False)[0].ids
            if spelling is not None and following is not None:
                ids.append(self._ids_of_added[spelling])
                swallows = following.rstrip
        if not add_special_tokens:
            return ids
        return [*([] if ids[:1] == self._before else self._before), *ids, *self._after]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ``ids``; ids outside the vocabulary have none, broken bytes become U+FFFD.

        As the ``tokenizers`` library decodes, but for two cases. In a run of SentencePiece byte tokens that is broken
        somewhere, the whole characters are kept, as SentencePiece does, where the library gives up the whole run. An
        added token such as "ü", found in text as it is spelled, comes back so, where the library takes it for a byte.
        """
        stream = self.detokenizer(skip_special_tokens=skip_special_tokens)
        return stream.add(ids) + stream.flush()

    def detokenizer(self, prompt_ids: Iterable[int] = (), skip_special_tokens: bool = True) -> Detokenizer:
        """Return an incremental ``decode`` for a stream that continues ``prompt_ids``."""
        return Detokenizer(self._visible_bytes if skip_special_tokens else self._bytes, prompt_ids=prompt_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """Return what the token adds to a text, which may be part of a character."""
        return self._bytes[token_id]

    def token_text(self, token_id: int) -> str:
        """Return the token for display, with U+FFFD where it is part of a character."""
        return self._bytes[token_id].decode(errors="replace")

    def special_id(self, text: str) -> int | None:
        """Return the id of the control token that is spelled ``text``; ``None`` where there is no such one."""
        token_id = _id_of(self._backend, text)
        return token_id if token_id in self._special_ids else None

    def to_json(self) -> str:
        """Return the whole tokenizer in the form of a tokenizer.json."""
        text: str = self._backend.to_str()
        return text

    def added_tokens(self) -> dict[str, int]:
        """Return the ids of tokens that stand for themselves whatever is around them, by their spelling."""
        return {token.content: token_id for token_id, token in self._backend.get_added_tokens_decoder().items()}

    def is_special(self, token_id: int) -> bool:
        """Tell whether the token is a control token (such as BOS), which is no part of the text."""
        return token_id in self._special_ids


def _opens_first_word_only(backend: tokenizers.Tokenizer) -> bool:
    state = json.loads(backend.pre_tokenizer.__getstate__()) if backend.pre_tokenizer is not None else {}
    steps = state.get("pretokenizers", [state])
    return any(step.get("prepend_scheme") == "first" for step in steps)


def _id_of(backend: tokenizers.Tokenizer, token: str | None) -> int | None:
    if token is None:
        return None
    token_id: int | None = backend.token_to_id(token)
    return token_id


def _special_tokens_of_config(config: Mapping[str, Any]) -> dict[str, str]:
    """Read the tokens with a role; each is a string or an object with ``content``."""
    tokens = {}
    for role in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = config.get(role)
        content = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(content, str):
            tokens[role] = content
    return tokens
