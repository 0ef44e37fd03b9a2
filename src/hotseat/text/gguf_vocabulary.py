"""Rebuild a tokenizer from the metadata of a GGUF file.

A GGUF file carries the vocabulary and the merges, but of the code around them only a name: ``tokenizer.ggml.model`` for
the kind of BPE and ``tokenizer.ggml.pre`` for how text is split into words first. What each name stands for is written
down here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from hotseat.errors import ModelError, UnsupportedModelError
from hotseat.text.token_bytes import SPACE_SYMBOL

__all__ = ["GgufVocabulary"]

# tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

# SentencePiece makes tokens of 16 characters unless told otherwise; runs of spaces or dashes have up to some hundreds.
_MAX_TOKEN_CHARACTERS = 1024

_ID_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_LISTS: tuple[tuple[str, type | tuple[type, ...], str], ...] = (
    ("tokens", str, "a list of texts"),
    ("merges", str, "a list of texts"),
    ("token_type", int, "a list of whole numbers"),
    ("scores", (int, float), "a list of numbers"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WordRule:
    """How a byte-level tokenizer splits text before it merges; ``pattern`` is ``None`` for GPT-2's own."""

    pattern: str | None = None
    splits_digits: bool = False
    composes: bool = False  # Unicode NFC first
    ignores_merges: bool = False  # a word that is a token is taken whole
    adds_bos: bool = False


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS_AFTER_CL100K = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_GPT2 = _WordRule()
_LLAMA3 = _WordRule(pattern=_WORDS_AFTER_CL100K % "{1,3}", ignores_merges=True, adds_bos=True)
_WORD_RULES = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _WordRule(pattern=_WORDS_AFTER_CL100K % "", composes=True),
    "smollm": _WordRule(splits_digits=True),
    "starcoder": _WordRule(splits_digits=True),
    "tekken": _WordRule(pattern=_TEKKEN_WORDS, ignores_merges=True, adds_bos=True),
}
_MODELS = ("gpt2", "llama")


class GgufVocabulary:
    """What a GGUF file says about its tokenizer."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        """Read the ``tokenizer.ggml.*`` keys.

        Raises UnsupportedModelError for an unknown kind of tokenizer, naming those that are known.
        """
        self._fields = {
            key.removeprefix("tokenizer.ggml."): value.tolist() if hasattr(value, "tolist") else value
            for key, value in metadata.items()
            if key.startswith("tokenizer.ggml.")
        }
        self.model = _one_of(_MODELS, self._fields.get("model"), "tokenizer.ggml.model")
        self._words = _GPT2
        if self.model == "gpt2":
            self._words = _WORD_RULES[_one_of(_WORD_RULES, self._fields.get("pre", "default"), "tokenizer.ggml.pre")]
        self._check_types()
        self.tokens: Sequence[str] = self._required("tokens")

    @property
    def adds_bos(self) -> bool:
        """Whether a plain text begins with a BOS."""
        default = self._words.adds_bos if self.model == "gpt2" else True
        return bool(self._fields.get("add_bos_token", default))

    @property
    def adds_eos(self) -> bool:
        """Whether a plain text ends with an EOS."""
        return bool(self._fields.get("add_eos_token", False))

    @property
    def special_tokens(self) -> dict[str, str]:
        """The tokens that have a role, as transformers names the roles."""
        ids = {role: self._fields.get(key) for role, key in _ID_KEYS.items()}
        return {
            role: self.tokens[token_id]
            for role, token_id in ids.items()
            if token_id is not None and 0 <= token_id < len(self.tokens)
        }

    def build(self) -> tokenizers.Tokenizer:
        """Return the tokenizer; raises ModelError when the metadata contradict themselves."""
        self._required("scores" if self.model == "llama" and "merges" not in self._fields else "merges")
        try:
            backend = self._byte_level() if self.model == "gpt2" else self._sentencepiece()
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"the tokenizer in the GGUF file is broken: {error}") from error
        special = {_CONTROL} if self.model == "gpt2" else {_CONTROL, _UNKNOWN}
        types = self._fields.get("token_type", ())
        typed = list(zip(self.tokens, types, strict=False))
        backend.add_special_tokens([AddedToken(token, normalized=False) for token, kind in typed if kind in special])
        backend.add_tokens([AddedToken(token, normalized=False) for token, kind in typed if kind == _USER_DEFINED])
        return backend

    def _byte_level(self) -> tokenizers.Tokenizer:
        words = self._words
        merges = [_pair(merge) for merge in self._fields["merges"]]
        backend = tokenizers.Tokenizer(models.BPE(self._ids(), merges, ignore_merges=words.ignores_merges))
        if words.composes:
            backend.normalizer = normalizers.NFC()
        steps: list[pre_tokenizers.PreTokenizer] = []
        if words.splits_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if words.pattern is not None:
            steps.append(pre_tokenizers.Split(Regex(words.pattern), behavior="isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words.pattern is None))
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
        backend.decoder = decoders.ByteLevel()
        return backend

    def _sentencepiece(self) -> tokenizers.Tokenizer:
        ids = self._ids()
        if "merges" in self._fields:
            merges = [_pair(merge) for merge in self._fields["merges"]]
        else:
            merges = _merges_from_scores(ids, self._fields["scores"])
        unknown = self.special_tokens.get("unk_token")
        backend = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
        spaces = normalizers.Replace(" ", SPACE_SYMBOL)
        steps: list[decoders.Decoder] = [decoders.Replace(SPACE_SYMBOL, " "), decoders.ByteFallback(), decoders.Fuse()]
        if self._fields.get("add_space_prefix", True):
            backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_SYMBOL), spaces])
            steps.append(decoders.Strip(" ", 1, 0))
        else:
            backend.normalizer = spaces
        backend.decoder = decoders.Sequence(steps)
        return backend

    def _check_types(self) -> None:
        """Refuse values of a wrong type: a file may hold anything under any key."""
        for key, kinds, wanted in _LISTS:
            value = self._fields.get(key)
            if value is not None and not (isinstance(value, list) and all(isinstance(one, kinds) for one in value)):
                raise _wrong_type(key, wanted, value)
        for key in _ID_KEYS.values():
            value = self._fields.get(key)
            if value is not None and not isinstance(value, int):
                raise _wrong_type(key, "a whole number", value)

    def _required(self, key: str) -> Any:
        if not self._fields.get(key):
            raise ModelError(f"the GGUF file has no tokenizer.ggml.{key}")
        return self._fields[key]

    def _ids(self) -> dict[str, int]:
        return {token: token_id for token_id, token in enumerate(self.tokens)}


def _wrong_type(key: str, wanted: str, value: object) -> ModelError:
    return ModelError(f"tokenizer.ggml.{key} must be {wanted}, not {repr(value)[:60]}")


def _one_of(known: Sequence[str] | Mapping[str, object], value: object, key: str) -> str:
    if isinstance(value, str) and value in known:
        return value
    raise UnsupportedModelError(f"{key} {value!r} is not supported; supported are {', '.join(known)}")


def _pair(merge: str) -> tuple[str, str]:
    """Split a merge at the space between its two sides; a space in the first place belongs to the left side."""
    at = merge.index(" ", 1)
    return merge[:at], merge[at + 1 :]


def _merges_from_scores(ids: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Derive the merges of a SentencePiece BPE vocabulary, which has scores in their place.

    Every way to cut a token into two tokens is a merge, and the better the token's score, the earlier it applies.
    Raises ModelError for a token that no training makes: the work grows with the square of its length.
    """
    merges = []
    lengths = {len(token) for token in ids}
    if (longest := max(lengths)) > _MAX_TOKEN_CHARACTERS:
        raise ModelError(f"a token of the vocabulary has {longest} characters; at most {_MAX_TOKEN_CHARACTERS} can be")
    for token, token_id in ids.items():
        score = -scores[token_id]
        for at in range(1, len(token)):
            if at not in lengths or len(token) - at not in lengths:
                continue
            left = ids.get(token[:at])
            right = ids.get(token[at:])
            if left is not None and right is not None:
                merges.append((score, left, right, token[:at], token[at:]))
    merges.sort()
    return [merge[3:] for merge in merges]
