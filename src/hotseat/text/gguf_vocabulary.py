"""Tokenizers rebuilt from the metadata of GGUF files.

A GGUF file carries the vocabulary and the merges or scores, but of the code around them only names:
``tokenizer.ggml.model`` for the kind of BPE, ``tokenizer.ggml.pre`` for how text is split into words first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from hotseat.errors import ModelError, UnsupportedModelError
from hotseat.text.sentencepiece_merges import merges_from_scores
from hotseat.text.token_bytes import SPACE_SYMBOL, TURN_ENDS
from hotseat.text.word_rules import WORD_RULES

__all__ = ["GgufVocabulary"]

logger = logging.getLogger(__name__)

# tokenizer.ggml.token_type
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4

_TURN_ENDS = frozenset(TURN_ENDS)

_ID_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_SENTENCEPIECE_IDS = {"unk_token": 0, "bos_token": 1, "eos_token": 2}  # where the file names none


class GgufVocabulary:
    """The description of a tokenizer in a GGUF file: the ``tokenizer.ggml.*`` keys, and ``general.architecture``.

    Lists may be Python lists or, as ``read_gguf`` returns numbers, arrays of numpy.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        """Read the keys.

        Raises UnsupportedModelError for an unknown kind of tokenizer, naming those that are known, and ModelError for
        a value of a wrong type.
        """
        prefix = "tokenizer.ggml."
        self._fields = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
        self._architecture = metadata.get("general.architecture")
        self.model = _one_of(_BUILDERS, self._fields.get("model"), "tokenizer.ggml.model")
        pre = "gpt-2"  # SentencePiece splits no words
        if self.model == "gpt2":
            pre = _one_of(WORD_RULES, self._fields.get("pre", "default"), "tokenizer.ggml.pre")
        self._words = WORD_RULES[pre]
        if self._words.degraded:
            logger.warning(
                "the GGUF file does not say how its tokenizer splits words (tokenizer.ggml.pre is %r): answers may be "
                "worse than the model's; a newer conversion of the model says it",
                self._fields.get("pre"),
            )
        for key in _ID_KEYS.values():
            value = self._fields.get(key)
            if value is not None and not isinstance(value, int):
                raise _wrong_type(key, "a whole number", value)
        self.tokens = self._texts("tokens")
        self._types = self._numbers("token_type", "iu", "whole numbers")

    @property
    def adds_bos(self) -> bool:
        """Tell whether a plain text begins with a BOS."""
        if self.model == "gemma4":  # its first files say no, which the model was not trained on
            return True
        default = self._words.adds_bos if self.model == "gpt2" else True
        return bool(self._fields.get("add_bos_token", default))

    @property
    def adds_eos(self) -> bool:
        """Tell whether a plain text ends with an EOS."""
        return bool(self._fields.get("add_eos_token", False))

    @property
    def special_tokens(self) -> dict[str, str]:
        """The tokens that have a role, as transformers names the roles."""
        default = _SENTENCEPIECE_IDS if self.model == "llama" else {}
        ids = {role: self._fields.get(key, default.get(role)) for role, key in _ID_KEYS.items()}
        return {
            role: self.tokens[token_id]
            for role, token_id in ids.items()
            if token_id is not None and 0 <= token_id < len(self.tokens)
        }

    def build(self) -> tokenizers.Tokenizer:
        """Return the tokenizer; raises ModelError when the metadata contradict themselves."""
        ids = {token: token_id for token_id, token in enumerate(self.tokens)}
        merges = self._merges()
        try:
            backend = _BUILDERS[self.model](self, ids, merges)
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"the tokenizer in the GGUF file is broken: {error}") from error
        special = (_CONTROL,) if self.model == "gpt2" else (_CONTROL, _UNKNOWN)
        typed = self._typed_tokens()
        rstrip = self._swallows_spaces()
        backend.add_special_tokens(
            [AddedToken(token, normalized=False, rstrip=rstrip(token)) for token, kind in typed if kind in special]
        )
        backend.add_tokens(
            [
                AddedToken(token, normalized=False, rstrip=rstrip(token))
                for token, kind in typed
                if kind == _USER_DEFINED
            ]
        )
        return backend

    def _typed_tokens(self) -> list[tuple[str, int]]:
        """Return the tokens that are not just text, each with its type; ends of turns are control tokens anyway."""
        types = {} if self._types is None else dict(enumerate(self._types[: len(self.tokens)].tolist()))
        types.update((at, _CONTROL) for at, token in enumerate(self.tokens) if token in _TURN_ENDS)
        return [(self.tokens[at], kind) for at, kind in types.items() if kind != _NORMAL and self.tokens[at]]

    def byte_level(self, ids: dict[str, int], merges: list[tuple[str, str]]) -> tokenizers.Tokenizer:
        """Return the kind of GPT-2: words are cut off first, and every byte is a character."""
        backend = tokenizers.Tokenizer(models.BPE(ids, merges, ignore_merges=self._words.ignores_merges))
        if self._words.nfc:
            backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = self._words.pre_tokenizer()
        backend.decoder = decoders.ByteLevel()
        return backend

    def sentencepiece(self, ids: dict[str, int], merges: list[tuple[str, str]]) -> tokenizers.Tokenizer:
        """Return the kind of Llama 2 and Gemma: one word, spaces as ``▁``, bytes for what has no token."""
        return self._spaced(ids, merges, prefix=bool(self._fields.get("add_space_prefix", True)))

    def gemma4(self, ids: dict[str, int], merges: list[tuple[str, str]]) -> tokenizers.Tokenizer:
        """Return the kind of Gemma 4: as SentencePiece, but with merges, and lines are words of their own."""
        backend = self._spaced(ids, merges, prefix=False)
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|\n+"), behavior="isolated")
        return backend

    def _spaced(self, ids: dict[str, int], merges: list[tuple[str, str]], *, prefix: bool) -> tokenizers.Tokenizer:
        unknown = self.special_tokens.get("unk_token")
        backend = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
        spaces = normalizers.Replace(" ", SPACE_SYMBOL)
        steps: list[decoders.Decoder] = [decoders.Replace(SPACE_SYMBOL, " "), decoders.ByteFallback(), decoders.Fuse()]
        if prefix:
            backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_SYMBOL), spaces])
            steps.append(decoders.Strip(" ", 1, 0))
        else:
            backend.normalizer = spaces
        backend.decoder = decoders.Sequence(steps)
        return backend

    def _swallows_spaces(self) -> Callable[[str], bool]:
        """Return whether a token takes the white space behind it; GGUF has no key for it, so it goes by the family."""
        if self._architecture == "phi3" and self.model == "llama":
            return lambda token: token not in ("<unk>", "<s>", "<|endoftext|>")
        return lambda _: False

    def _merges(self) -> list[tuple[str, str]]:
        if self.model != "llama" or "merges" in self._fields:
            return [
                (parts[0], parts[1]) if len(parts := merge.split(" ")) == 2 and parts[0] else _pair(merge)
                for merge in self._texts("merges")
            ]
        scores = self._numbers("scores", "iuf", "numbers")
        if scores is None:
            raise ModelError("the GGUF file has no tokenizer.ggml.scores")
        if len(scores) < len(self.tokens):
            raise ModelError(f"tokenizer.ggml.scores has {len(scores)} numbers for {len(self.tokens)} tokens")
        return merges_from_scores(self.tokens, scores[: len(self.tokens)])

    def _texts(self, key: str) -> Sequence[str]:
        value = self._fields.get(key)
        if value is None or (isinstance(value, list | np.ndarray | str) and len(value) == 0):
            raise ModelError(f"the GGUF file has no tokenizer.ggml.{key}")
        if not isinstance(value, list) or set(map(type, value)) != {str}:
            raise _wrong_type(key, "a list of texts", value)
        return value

    def _numbers(self, key: str, kinds: str, wanted: str) -> npt.NDArray[Any] | None:
        value = self._fields.get(key)
        if value is None:
            return None
        array = np.asarray(value) if isinstance(value, list | np.ndarray) else None
        if array is None or array.ndim != 1 or (array.size and array.dtype.kind not in kinds):
            raise _wrong_type(key, f"a list of {wanted}", value)
        return array


_BUILDERS = {
    "gpt2": GgufVocabulary.byte_level,
    "llama": GgufVocabulary.sentencepiece,
    "gemma4": GgufVocabulary.gemma4,
}


def _wrong_type(key: str, wanted: str, value: object) -> ModelError:
    return ModelError(f"tokenizer.ggml.{key} must be {wanted}, not {repr(value)[:60]}")


def _one_of(known: Mapping[str, object], value: object, key: str) -> str:
    if isinstance(value, str) and value in known:
        return value
    raise UnsupportedModelError(f"{key} {value!r} is not supported; supported are {', '.join(known)}")


def _pair(merge: str) -> tuple[str, str]:
    """Split a merge at the space between its two sides; a space in the first place belongs to the left side."""
    left, space, right = merge[1:].partition(" ")
    if not space:
        raise ModelError(f"tokenizer.ggml.merges has {merge[:60]!r}, which is not two tokens with a space between them")
    return merge[0] + left, right
