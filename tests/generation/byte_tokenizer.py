"""A tokenizer with a token for each byte: every text can be spelled, and characters fall into pieces."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from hotseat.text import Tokenizer

NUM_BYTES = 256
EOS = 256
BOS = 257
VOCAB_SIZE = 258

_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_tokenizer(kind: type[Tokenizer] = Tokenizer) -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(_ALPHABET)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>", "<bos>"])
    return kind(backend, {"eos_token": "<eos>", "bos_token": "<bos>"}, adds_bos=True)


_TOKENIZER = byte_tokenizer()


def ids_of(text: str) -> list[int]:
    """Return the byte tokens of ``text``."""
    return _TOKENIZER.encode(text, add_special_tokens=False)
