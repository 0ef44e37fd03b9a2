from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from hotseat.text import Tokenizer
from text.tiny_tokenizers import byte_level, metaspace, sentencepiece

BACKENDS: dict[str, Backend] = {
    "byte-level": byte_level(),
    "sentencepiece": sentencepiece(),
    "sentencepiece without leading space": sentencepiece(leading_spaces=0),
    "sentencepiece with two leading spaces": sentencepiece(leading_spaces=2),
    "metaspace": metaspace(),
}
TOKENIZERS = {kind: Tokenizer(backend, {}) for kind, backend in BACKENDS.items()}
every_kind = pytest.mark.parametrize("kind", TOKENIZERS)

# Any id, some past the vocabulary; the small ones are special tokens and bytes.
any_ids = st.lists(st.one_of(st.integers(0, 450), st.integers(0, 260)), max_size=40)


def stream(tokenizer: Tokenizer, ids: list[int], cuts: list[int], *, skip: bool) -> list[str]:
    """Feed ``ids`` in the given portions and return the deltas."""
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
    edges = sorted({0, len(ids), *(cut for cut in cuts if cut <= len(ids))})
    deltas = [detokenizer.add(ids[start:end]) for start, end in itertools.pairwise(edges)]
    return [*deltas, detokenizer.flush()]


@every_kind
@given(ids=any_ids, cuts=st.lists(st.integers(0, 40)), skip=st.booleans())
@settings(max_examples=300, deadline=None)
def test_deltas_concatenate_to_the_decoded_text(kind: str, ids: list[int], cuts: list[int], skip: bool) -> None:
    tokenizer = TOKENIZERS[kind]
    assert "".join(stream(tokenizer, ids, cuts, skip=skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", ["byte-level", "metaspace"])
@given(ids=any_ids, skip=st.booleans())
@settings(max_examples=300, deadline=None)
def test_decode_equals_the_library(kind: str, ids: list[int], skip: bool) -> None:
    expected = BACKENDS[kind].decode(ids, skip_special_tokens=skip)
    assert TOKENIZERS[kind].decode(ids, skip_special_tokens=skip) == expected


@pytest.mark.parametrize("kind", [kind for kind in TOKENIZERS if kind.startswith("sentencepiece")])
@given(ids=any_ids, skip=st.booleans())
@settings(max_examples=300, deadline=None)
def test_decode_equals_the_library_but_keeps_whole_characters_of_broken_byte_runs(
    kind: str, ids: list[int], skip: bool
) -> None:
    backend, tokenizer = BACKENDS[kind], TOKENIZERS[kind]
    expected = backend.decode(ids, skip_special_tokens=skip)
    text = tokenizer.decode(ids, skip_special_tokens=skip)
    visible = [i for i in ids if backend.id_to_token(i) and not (skip and tokenizer.is_special(i))]
    runs = ["".join(chr(i - 3) for i in run) for is_byte, run in itertools.groupby(visible, is_byte_id) if is_byte]
    if all(is_utf8(run) for run in runs):
        assert text == expected
    elif kind == "sentencepiece without leading space":
        assert text == "".join(
            one_by_one(bytes(i - 3 for i in run)) if is_byte else backend.decode(list(run), skip_special_tokens=False)
            for is_byte, run in itertools.groupby(visible, is_byte_id)
        )


def is_byte_id(token_id: int) -> bool:
    return 3 <= token_id < 259


def is_utf8(run: str) -> bool:
    try:
        run.encode("latin-1").decode()
    except UnicodeDecodeError:
        return False
    return True


def one_by_one(data: bytes) -> str:
    """SentencePiece's way: the next whole character, or one replacement for one byte."""
    text = ""
    while data:
        for length in range(1, 5):
            if is_utf8(data[:length].decode("latin-1")) and len(data) >= length:
                text += data[:length].decode()
                data = data[length:]
                break
        else:
            text += "\ufffd"
            data = data[1:]
    return text


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
@given(text=st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_whole_text_streams_without_a_broken_character(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    text = text.replace("é", "")  # an added token here, and one that the library itself reads as the byte E9
    ids = tokenizer.encode(text, add_special_tokens=False)
    deltas = stream(tokenizer, ids, list(range(len(ids))), skip=False)
    assert "".join(deltas) == tokenizer.decode(ids, skip_special_tokens=False)
    assert "".join(deltas).count("\ufffd") == text.count("\ufffd")
    assert deltas[-1] == ""


def test_character_is_sent_with_its_last_byte_and_not_before() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    detokenizer = tokenizer.detokenizer()
    assert [detokenizer.add([3 + byte]) for byte in "x客🌶".encode()] == ["x", "", "", "客", "", "", "", "🌶"]
    assert detokenizer.flush() == ""


def test_token_that_ends_one_character_and_begins_the_next_streams_both() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = [byte_id(tokenizer, byte) for byte in "客单".encode()]
    detokenizer = tokenizer.detokenizer()
    assert [detokenizer.add(ids[:2]), detokenizer.add(ids[2:5]), detokenizer.add(ids[5:])] == ["", "客", "单"]


def byte_id(tokenizer: Tokenizer, byte: int) -> int:
    return next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == bytes([byte]))


def test_unfinished_character_at_the_end_becomes_a_replacement_once() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    detokenizer = tokenizer.detokenizer()
    assert detokenizer.add([byte_id(tokenizer, byte) for byte in "🌶".encode()[:3]]) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_prompt_that_ends_inside_a_character_is_not_sent_again() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    prompt = [byte_id(tokenizer, byte) for byte in b"Hello world " + "🌶".encode()[:2]]
    detokenizer = tokenizer.detokenizer(prompt)
    assert detokenizer.add([byte_id(tokenizer, byte) for byte in b"ok"]) == "ok"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("", "the dog"), ("the", " the dog")],
    ids=["a text begins", "a text goes on"],
)
@pytest.mark.parametrize("kind", ["sentencepiece", "metaspace"])
def test_leading_space_is_dropped_only_where_a_text_begins(kind: str, prompt: str, expected: str) -> None:
    tokenizer = TOKENIZERS[kind]
    bos = tokenizer.encode("<s>", add_special_tokens=False)
    detokenizer = tokenizer.detokenizer([*bos, *tokenizer.encode(prompt, add_special_tokens=False)])
    assert detokenizer.add(tokenizer.encode("the dog", add_special_tokens=False)) == expected


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece without leading space"])
@given(text=st.text(max_size=40))
@settings(max_examples=100, deadline=None)
def test_never_more_than_an_unfinished_character_is_held_back(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    detokenizer = tokenizer.detokenizer(skip_special_tokens=False)
    held = 0
    for token_id in tokenizer.encode(text.replace("é", ""), add_special_tokens=False):
        held += len(tokenizer.token_bytes(token_id)) - len(detokenizer.add([token_id]).encode())
        assert 0 <= held <= 3
    assert held == 0
