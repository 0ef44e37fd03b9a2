"""The tokenizer of the default model against two independent rebuilds of it."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from hotseat.text import Tokenizer
from text.mixed_text import PARTS, SPECIAL, mixed_texts

pytestmark = pytest.mark.model

any_text = st.one_of(st.text(), st.text(alphabet=sorted(set("".join(PARTS)))), st.sampled_from(mixed_texts()))
session = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="session")
def tokenizer(smollm_metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(smollm_metadata)


@pytest.fixture(scope="session")
def oracle(smollm_path: Path) -> Backend:
    """Transformers' conversion, given the split of digits, which it does not know for this model."""
    transformers = pytest.importorskip("transformers")
    made = transformers.AutoTokenizer.from_pretrained(str(smollm_path.parent), gguf_file=smollm_path.name)
    backend: Backend = made.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return backend


class PythonBpe:
    """Byte-level BPE as its authors describe it, with llama.cpp's two expressions for this model."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.regex = pytest.importorskip("regex")
        tokens = metadata["tokenizer.ggml.tokens"]
        self.ids = {token: at for at, token in enumerate(tokens)}
        self.ranks = {tuple(m.split(" ")): at for at, m in enumerate(metadata["tokenizer.ggml.merges"])}
        types = metadata["tokenizer.ggml.token_type"]
        control = [token for token, kind in zip(tokens, types, strict=True) if kind == 3]
        self.control = self.regex.compile("(" + "|".join(map(self.regex.escape, sorted(control, key=len)[::-1])) + ")")
        self.digit = self.regex.compile(r"(\p{N})")
        self.word = self.regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")

    def encode(self, text: str) -> list[int]:
        ids = []
        for at, segment in enumerate(self.control.split(text)):
            if at % 2:
                ids.append(self.ids[segment])
                continue
            for part in filter(None, self.digit.split(segment)):
                for word in self.word.findall(part):
                    ids += [self.ids[token] for token in self.merge(word) if token in self.ids]
        return ids

    @functools.cache  # noqa: B019  (lives as long as the test session)
    def merge(self, word: str) -> tuple[str, ...]:
        # A byte without a token is lost, as in the original.
        pieces = [character for character in spell(word) if character in self.ids]
        while len(pieces) > 1:
            pairs = enumerate(itertools.pairwise(pieces))
            ranked = [(self.ranks.get(pair, len(self.ranks)), at) for at, pair in pairs]
            rank, at = min(ranked)
            if rank == len(self.ranks):
                break
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return tuple(pieces)


def spell(word: str) -> str:
    return "".join(piece for piece, _ in ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(word))


@pytest.fixture(scope="session")
def python_bpe(smollm_metadata: dict[str, Any]) -> PythonBpe:
    return PythonBpe(smollm_metadata)


@pytest.mark.oracle
def test_mixed_text_encodes_as_transformers_does(tokenizer: Tokenizer, oracle: Backend) -> None:
    for text in mixed_texts():
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == oracle.encode(text, add_special_tokens=False).ids
        for skip in (True, False):
            assert tokenizer.decode(ids, skip_special_tokens=skip) == oracle.decode(ids, skip_special_tokens=skip)


@pytest.mark.oracle
@given(text=any_text)
@session
def test_any_text_encodes_as_transformers_does(tokenizer: Tokenizer, oracle: Backend, text: str) -> None:
    assert tokenizer.encode(text, add_special_tokens=False) == oracle.encode(text, add_special_tokens=False).ids


@pytest.mark.oracle
def test_mixed_text_encodes_as_plain_python_does(tokenizer: Tokenizer, python_bpe: PythonBpe) -> None:
    for text in mixed_texts():
        assert tokenizer.encode(text) == python_bpe.encode(text)


@pytest.mark.oracle
@given(ids=st.lists(st.one_of(st.integers(0, 49_300), st.integers(0, 300)), max_size=60), skip=st.booleans())
@session
def test_any_ids_stream_to_what_transformers_decodes(
    tokenizer: Tokenizer, oracle: Backend, ids: list[int], skip: bool
) -> None:
    stream = tokenizer.detokenizer(skip_special_tokens=skip)
    text = "".join(stream.add([token_id]) for token_id in ids) + stream.flush()
    assert text == oracle.decode(ids, skip_special_tokens=skip)


def test_text_comes_back_whole(tokenizer: Tokenizer) -> None:
    """But for the few bytes that this vocabulary lacks."""
    lost = {chr(byte) for byte in range(128) if not tokenizer.encode(chr(byte))}
    assert lost == {"\x04", "\x06", "\x13", "\x14", "\x16", "\x1d"}
    for part in PARTS:
        kept = "".join(char for char in part if char not in lost and char < "\U00040000")
        assert tokenizer.decode(tokenizer.encode(kept), skip_special_tokens=False) == kept


def test_special_tokens_are_single_ids_in_any_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(SPECIAL)
    assert ids[0] == 1
    assert ids.count(1) == SPECIAL.count("<|im_start|>")
    assert ids.count(2) == SPECIAL.count("<|im_end|>")
    assert [i for i in range(tokenizer.vocab_size) if tokenizer.is_special(i)] == list(range(17))


def test_ends_and_sizes_are_the_models(tokenizer: Tokenizer) -> None:
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.vocab_size) == (1, 2, 49_152)
    assert tokenizer.special_tokens["unk_token"] == "<|endoftext|>"
    assert tokenizer.encode("Hello") == tokenizer.encode("Hello", add_special_tokens=False)
