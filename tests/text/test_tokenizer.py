from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders

from hotseat.errors import InvalidRequestError, ModelError, UnsupportedModelError
from hotseat.text import ChatTemplate, Tokenizer
from text.tiny_tokenizers import BOS, EOS, byte_level, metaspace, sentencepiece

BACKENDS: dict[str, Backend] = {"byte-level": byte_level(), "sentencepiece": sentencepiece(), "metaspace": metaspace()}


def saved(backend: Backend, directory: Path, config: dict[str, Any] | None = None) -> Tokenizer:
    path = directory / "tokenizer.json"
    backend.save(str(path))
    return Tokenizer.from_file(path, config)


@pytest.fixture(scope="module", params=BACKENDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Backend, Tokenizer]:
    backend = BACKENDS[request.param]
    return backend, saved(backend, tmp_path_factory.mktemp("tokenizer"))


@given(text=st.one_of(st.text(), st.text(alphabet="the dog▁ <s></s>é好🌶\n")))
@settings(max_examples=300, deadline=None)
def test_tokenizer_json_encodes_as_the_library_does(pair: tuple[Backend, Tokenizer], text: str) -> None:
    backend, tokenizer = pair
    assert tokenizer.encode(text, add_special_tokens=False) == backend.encode(text, add_special_tokens=False).ids
    ids = backend.encode(text).ids
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == backend.decode(ids)


def test_special_tokens_in_the_text_are_recognised(pair: tuple[Backend, Tokenizer]) -> None:
    backend, tokenizer = pair
    ids = tokenizer.encode(f"the{EOS}", add_special_tokens=False)
    assert ids[-1] == backend.token_to_id(EOS)
    assert tokenizer.is_special(ids[-1])
    assert not tokenizer.is_special(ids[0])


def test_tokens_bytes_make_the_text(pair: tuple[Backend, Tokenizer]) -> None:
    _, tokenizer = pair
    ids = tokenizer.encode("the dog ß 你好", add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode().strip() == "the dog ß 你好"
    assert (
        "".join(map(tokenizer.token_text, tokenizer.encode("the dog", add_special_tokens=False))).strip() == "the dog"
    )


def test_token_bytes_are_true_where_the_text_has_only_a_replacement(tmp_path: Path) -> None:
    tokenizer = saved(byte_level(adds_bos=False), tmp_path)
    ids = tokenizer.encode("🌶")
    assert len(ids) > 1
    assert b"".join(map(tokenizer.token_bytes, ids)) == "🌶".encode()
    assert "\ufffd" in tokenizer.token_text(ids[0])


@pytest.mark.parametrize("token_id", [-1, 10**6, 2**32, 2**70])
def test_id_outside_the_vocabulary_has_no_text(pair: tuple[Backend, Tokenizer], token_id: int) -> None:
    _, tokenizer = pair
    assert tokenizer.token_bytes(token_id) == b""
    assert tokenizer.decode([token_id]) == ""
    assert not tokenizer.is_special(token_id)


def test_vocab_size_is_one_more_than_the_largest_id(pair: tuple[Backend, Tokenizer]) -> None:
    backend, tokenizer = pair
    assert tokenizer.vocab_size == 1 + max(backend.get_vocab().values())


def test_bos_is_added_once_to_text_that_has_one(tmp_path: Path) -> None:
    tokenizer = saved(byte_level(), tmp_path, {"bos_token": BOS})
    bos = tokenizer.bos_token_id
    assert tokenizer.encode("dog")[0] == bos
    assert tokenizer.encode("dog").count(bos) == 1
    assert tokenizer.encode(f"{BOS}dog") == tokenizer.encode("dog")
    assert tokenizer.encode(f"{BOS}dog", add_special_tokens=False) == tokenizer.encode("dog")


@pytest.mark.parametrize("config", [{"add_bos_token": False}, {}])
def test_bos_that_the_text_repeats_itself_is_kept(tmp_path: Path, config: dict[str, Any]) -> None:
    tokenizer = saved(byte_level(adds_bos=False), tmp_path, {"bos_token": BOS, **config})
    assert tokenizer.encode(f"{BOS}{BOS}dog").count(tokenizer.bos_token_id) == 2


@pytest.mark.parametrize("config", [{"add_bos_token": True}, {}])
def test_only_the_bos_that_would_be_added_is_left_out(tmp_path: Path, config: dict[str, Any]) -> None:
    tokenizer = saved(byte_level(), tmp_path, {"bos_token": BOS, **config})
    assert tokenizer.encode(f"{BOS}{BOS}dog").count(tokenizer.bos_token_id) == 2
    assert tokenizer.encode(f"dog{BOS}").count(tokenizer.bos_token_id) == 2
    assert tokenizer.encode("") == [tokenizer.bos_token_id]
    assert tokenizer.encode(BOS) == [tokenizer.bos_token_id]


def test_rendered_chat_has_one_bos(tmp_path: Path) -> None:
    tokenizer = saved(byte_level(), tmp_path, {"bos_token": BOS, "eos_token": {"content": EOS}})
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}", **tokenizer.special_tokens)
    prompt = template.render([{"role": "user", "content": "dog"}])
    for add_special_tokens in (False, True):
        assert tokenizer.encode(prompt, add_special_tokens=add_special_tokens).count(tokenizer.bos_token_id) == 1


@pytest.mark.parametrize(
    ("config", "before", "after"),
    [
        ({}, [BOS], []),  # what tokenizer.json does by itself
        ({"add_bos_token": False}, [], []),
        ({"add_bos_token": True}, [BOS], []),
        ({"add_bos_token": None}, [BOS], []),
        ({"add_eos_token": True}, [], [EOS]),
        ({"add_bos_token": True, "add_eos_token": True}, [BOS], [EOS]),
    ],
)
def test_tokenizer_config_says_what_goes_around_a_text(
    tmp_path: Path, config: dict[str, Any], before: list[str], after: list[str]
) -> None:
    backend = byte_level()
    tokenizer = saved(backend, tmp_path, {"bos_token": BOS, "eos_token": EOS, **config})
    plain = backend.encode("dog", add_special_tokens=False).ids
    assert tokenizer.encode("dog") == [*map(backend.token_to_id, before), *plain, *map(backend.token_to_id, after)]
    assert tokenizer.encode("dog", add_special_tokens=False) == plain


def test_token_with_a_role_is_special_whatever_tokenizer_json_says(tmp_path: Path) -> None:
    tokenizer = saved(byte_level(), tmp_path, {"eos_token": "<think>", "pad_token": "not in the vocabulary"})
    ids = tokenizer.encode("dog<think>", add_special_tokens=False)
    assert ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(ids) == "dog"
    assert tokenizer.vocab_size == byte_level().get_vocab_size()


def test_truncation_and_padding_of_tokenizer_json_are_ignored(tmp_path: Path) -> None:
    backend = byte_level(adds_bos=False)
    plain = backend.encode("the quick brown fox").ids
    backend.enable_truncation(3)
    backend.enable_padding(length=64)
    assert saved(backend, tmp_path).encode("the quick brown fox") == plain


def test_lone_surrogate_is_the_clients_mistake(pair: tuple[Backend, Tokenizer]) -> None:
    _, tokenizer = pair
    with pytest.raises(InvalidRequestError, match="surrogate") as caught:
        tokenizer.encode("\ud800")
    assert caught.value.param == "prompt"


def test_missing_or_broken_tokenizer_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere/tokenizer\.json"):
        Tokenizer.from_file(tmp_path / "nowhere" / "tokenizer.json")
    broken = tmp_path / "tokenizer.json"
    broken.write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(ModelError, match="cannot read the tokenizer"):
        Tokenizer.from_file(broken)


@pytest.mark.parametrize(
    ("decoder", "name"),
    [
        (None, "none"),
        (decoders.WordPiece(), "WordPiece"),
        (decoders.Sequence([decoders.Fuse(), decoders.Replace("▁", " ")]), r"Fuse \+ Replace"),
        (decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)]), r"Replace \+ Strip"),
        (decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]), r"Fuse \+ Strip"),
    ],
)
def test_decoder_whose_tokens_depend_on_each_other_is_refused_by_name(
    tmp_path: Path, decoder: decoders.Decoder | None, name: str
) -> None:
    backend = byte_level()
    if decoder is None:
        described = json.loads(backend.to_str())
        described["decoder"] = None
        backend = Backend.from_str(json.dumps(described))
    else:
        backend.decoder = decoder
    with pytest.raises(UnsupportedModelError, match=rf"decoder \({name}\) is not supported; supported are ByteLevel"):
        saved(backend, tmp_path)


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    tokenizer = Tokenizer(byte_level(), {})
    text = "the lazy dog jumps over it " * 40_000
    thread = threading.Thread(target=tokenizer.encode, args=(text,))
    begun = last = time.perf_counter()
    longest = 0.0
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    # A thread that held the GIL would leave one silence as long as all its work.
    assert longest < (last - begun) / 2
