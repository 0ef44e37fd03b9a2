from __future__ import annotations

import itertools
import json
import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers.pre_tokenizers import ByteLevel

from hotseat.errors import ModelError, UnsupportedModelError
from hotseat.text import Tokenizer
from hotseat.text.sentencepiece_merges import merges_from_scores
from text.tiny_tokenizers import SYMBOL, byte_level, sentencepiece_metadata, sentencepiece_vocabulary


def byte_level_metadata(**changes: Any) -> dict[str, Any]:
    """The tokenizer keys that a GGUF file would have for the tiny byte-level tokenizer."""
    backend = byte_level()
    ids = backend.get_vocab(with_added_tokens=True)
    tokens = sorted(ids, key=ids.__getitem__)
    added = backend.get_added_tokens_decoder()
    types = [(3 if added[i].special else 4) if i in added else 1 for i in range(len(tokens))]
    merges = [f"{left} {right}" for left, right in learned_merges(backend)]
    fields = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": types, "merges": merges, **changes}
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items() if value is not None}


def learned_merges(backend: Backend) -> list[tuple[str, str]]:
    return [tuple(merge) for merge in json.loads(backend.to_str())["model"]["merges"]]


ORIGINAL = byte_level(adds_bos=False)
REBUILT = Tokenizer.from_gguf(byte_level_metadata())


@given(text=st.one_of(st.text(), st.text(alphabet="the dog<s></s>é好🌶\n 12")))
@settings(max_examples=300, deadline=None)
def test_byte_level_tokenizer_is_rebuilt_equal(text: str) -> None:
    ids = REBUILT.encode(text)
    assert ids == ORIGINAL.encode(text).ids
    for skip in (True, False):
        assert REBUILT.decode(ids, skip_special_tokens=skip) == ORIGINAL.decode(ids, skip_special_tokens=skip)


def test_roles_and_kinds_of_tokens_are_taken_over() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata(bos_token_id=0, eos_token_id=1, padding_token_id=999_999))
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)
    ids = tokenizer.encode("<think></s>two  spaces")
    assert [tokenizer.token_text(i) for i in ids] == ["<think>", "</s>", "two  spaces"]
    assert [tokenizer.is_special(i) for i in ids] == [False, True, False]
    assert tokenizer.vocab_size == ORIGINAL.get_vocab_size()


@pytest.mark.parametrize(
    ("pre", "flag", "expected"),
    [
        ("gpt-2", None, 0),
        ("smollm", None, 0),
        ("llama-bpe", None, 1),
        ("llama-bpe", False, 0),
        ("gpt-2", True, 1),
        (None, None, 0),
    ],
)
def test_bos_is_added_when_the_file_or_its_kind_says_so(pre: str | None, flag: bool | None, expected: int) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata(pre=pre, add_bos_token=flag, bos_token_id=0))
    assert tokenizer.encode("dog").count(0) == expected
    assert tokenizer.encode("dog", add_special_tokens=False).count(0) == 0


def test_eos_is_added_when_the_file_says_so() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata(add_eos_token=True, eos_token_id=1))
    assert tokenizer.encode("dog")[-1] == 1


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "a  b 123don't", ["a", " ", " b", " 123", "don", "'t"]),
        ("smollm", "a  b 123don't", ["a", " ", " b", " ", "1", "2", "3", "don", "'t"]),
        ("llama-bpe", "a 12345DON'T\n\nx", ["a", " ", "123", "45", "DON", "'T", "\n\n", "x"]),
        ("qwen2", "a 123\u0065\u0301", ["a", " ", "1", "2", "3", "é"]),
        ("tekken", "aB 12helloWorld", ["a", "B", " ", "1", "2", "hello", "World"]),
    ],
)
def test_words_are_split_as_the_kind_of_tokenizer_splits_them(pre: str, text: str, words: list[str]) -> None:
    """The vocabulary has every substring of the text as a token, so that a word, once split off, becomes one."""
    whole = spell(unicodedata.normalize("NFC", text))
    merges = [f"{whole[start:at]} {whole[at]}" for start in range(len(whole)) for at in range(start + 1, len(whole))]
    tokens = dict.fromkeys([*sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in merges)])
    tokenizer = Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": list(tokens),
            "tokenizer.ggml.merges": list(dict.fromkeys(merges)),
        }
    )
    assert [tokenizer.token_text(i) for i in tokenizer.encode(text, add_special_tokens=False)] == words


def spell(text: str) -> str:
    """Write the bytes of ``text`` in the byte alphabet."""
    return "".join(piece for piece, _ in ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "tokenizer.ggml.model 'bert' is not supported; supported are gpt2, llama"),
        ({"model": None}, "tokenizer.ggml.model None is not supported"),
        ({"pre": "chameleon"}, "tokenizer.ggml.pre 'chameleon' is not supported; supported are default, gpt-2, phi-2"),
        ({"pre": 7}, "tokenizer.ggml.pre 7 is not supported"),
    ],
)
def test_unknown_kind_is_refused_with_the_list_of_known_ones(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        Tokenizer.from_gguf(byte_level_metadata(**changes))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": []}, "the GGUF file has no tokenizer.ggml.tokens"),
        ({"tokens": None}, "the GGUF file has no tokenizer.ggml.tokens"),
        ({"merges": None}, "the GGUF file has no tokenizer.ggml.merges"),
        ({"merges": ["x y z"]}, "the tokenizer in the GGUF file is broken"),
        ({"merges": ["ab"]}, "tokenizer.ggml.merges has 'ab', which is not two tokens"),
    ],
)
def test_metadata_that_contradict_themselves_are_a_model_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_gguf(byte_level_metadata(**changes))


# SentencePiece


def reference_encode(text: str) -> list[str]:
    """SentencePiece's BPE: join the best-scored neighbours until none is left, spell the rest in bytes."""
    tokens, scores, _ = sentencepiece_vocabulary()
    score_of = dict(zip(tokens, scores, strict=True))
    pieces = list(SYMBOL + text.replace(" ", SYMBOL)) if text else []
    while True:
        joins = [(score_of[a + b], -at) for at, (a, b) in enumerate(itertools.pairwise(pieces)) if a + b in score_of]
        if not joins:
            break
        at = -max(joins)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return [
        spelled
        for piece in pieces
        for spelled in ([piece] if piece in score_of else [f"<0x{byte:02X}>" for byte in piece.encode()])
    ]


@given(text=st.text(alphabet="the dogver  ß你好客🌶\n", max_size=40))
@settings(max_examples=300, deadline=None)
def test_sentencepiece_vocabulary_encodes_by_score_and_falls_back_to_bytes(text: str) -> None:
    tokens, _, _ = sentencepiece_vocabulary()
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata())
    ids = tokenizer.encode(text)
    assert [tokens[i] for i in ids] == ["<s>", *reference_encode(text)]
    assert tokenizer.decode(ids) == text


def test_sentencepiece_without_space_prefix_keeps_text_as_it_is() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(add_space_prefix=False, add_bos_token=False))
    ids = tokenizer.encode("the dog")
    assert tokenizer.token_text(ids[0]) == "the"
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"


def test_sentencepiece_token_bytes_are_true_bytes() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata())
    ids = tokenizer.encode("客", add_special_tokens=False)
    assert [tokenizer.token_bytes(i) for i in ids] == [b" ", b"\xe5", b"\xae", b"\xa2"]


@given(vocabulary=st.dictionaries(st.text("ab▁é🌶", max_size=5), st.integers(-5, 0), max_size=40))
@settings(max_examples=300, deadline=None)
def test_merges_are_all_cuts_of_tokens_into_tokens_the_best_scores_first(vocabulary: dict[str, int]) -> None:
    tokens = list(vocabulary)
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    cuts = [(token, token[:at], token[at:]) for token in tokens for at in range(1, len(token))]
    expected = [
        (left, right)
        for _, _, _, left, right in sorted(
            (-vocabulary[token], ids[left], ids[right], left, right)
            for token, left, right in cuts
            if left in ids and right in ids
        )
    ]
    assert merges_from_scores(tokens, np.array(list(vocabulary.values()), np.float32)) == expected
