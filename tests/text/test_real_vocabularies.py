"""Tokenizers of real GGUF files, read by the real reader, against ids that others expect of them."""

from __future__ import annotations

import itertools
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from data_files import gemma_270m, llama_cpp_models
from hotseat.errors import UnsupportedModelError
from hotseat.models.gguf import read_gguf
from hotseat.text import Tokenizer
from text.mixed_text import PARTS, SPECIAL, mixed_texts

pytestmark = pytest.mark.model

WITH_IDS = (
    *("command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe", "llama-spm", "mpt"),
    *("phi-3", "qwen2", "qwen35", "refact", "starcoder"),
)
WITHOUT_IDS = ("aquila", "baichuan", "gpt-neox")
REFUSED = {"bert-bge": "tokenizer.ggml.model 'bert'", "nomic-bert-moe": "tokenizer.ggml.model 't5'"}


def metadata(name: str) -> Any:
    return read_gguf(llama_cpp_models() / f"ggml-vocab-{name}.gguf").metadata


def expectations(name: str) -> list[tuple[str, list[int]]]:
    """The texts that llama.cpp's own test encodes, each with its ids."""
    path = llama_cpp_models() / f"ggml-vocab-{name}.gguf"
    texts = Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = Path(f"{path}.out").read_text().split("\n")
    return [(text, [int(token_id) for token_id in line.split()]) for text, line in zip(texts, lines, strict=False)]


def test_every_vocabulary_is_listed_here() -> None:
    names = {path.stem.removeprefix("ggml-vocab-") for path in llama_cpp_models().glob("*.gguf")}
    assert names == {*WITH_IDS, *WITHOUT_IDS, *REFUSED}


@pytest.fixture(scope="module", params=[*WITH_IDS, *WITHOUT_IDS])
def real(request: pytest.FixtureRequest) -> tuple[str, Tokenizer]:
    return request.param, Tokenizer.from_gguf(metadata(request.param))


def test_texts_have_the_ids_that_llama_cpp_expects(real: tuple[str, Tokenizer]) -> None:
    name, tokenizer = real
    pairs = expectations(name) if name in WITH_IDS else []
    assert name in WITHOUT_IDS or len(pairs) >= 46
    for text, ids in pairs:
        assert tokenizer.encode(text, add_special_tokens=False) == ids, text


def test_text_comes_back_whole(real: tuple[str, Tokenizer]) -> None:
    """But for characters that a vocabulary cannot spell, and for what is normalised on purpose."""
    name, tokenizer = real

    def back(text: str) -> str:
        return tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False)

    lost = {chr(byte) for byte in range(128) if back(chr(byte)) != chr(byte)}
    assert len(lost) <= {"falcon": 14, "starcoder": 6, "refact": 6}.get(name, 0)
    for part in PARTS:
        if name == "phi-3" and part is SPECIAL:
            continue  # behind a control token it puts a space, as SentencePiece does before a text
        kept = "".join(character for character in part if character not in lost)
        if name in ("qwen2", "mpt", "command-r"):
            kept = unicodedata.normalize("NFC", kept)
        assert back(kept) == kept


@pytest.mark.parametrize("name", REFUSED)
def test_vocabulary_of_another_kind_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=REFUSED[name]):
        Tokenizer.from_gguf(metadata(name))


def test_vocabulary_without_a_word_rule_is_read_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    Tokenizer.from_gguf(metadata("gpt-neox"))
    assert "does not say how its tokenizer splits words" in caplog.text


def test_phi_3_swallows_white_space_behind_its_control_tokens() -> None:
    tokenizer = Tokenizer.from_gguf(metadata("phi-3"))
    ids = tokenizer.encode("<|user|>\nHi<|end|> \n\n<|assistant|>\n", add_special_tokens=False)
    assert [tokenizer.token_text(token_id) for token_id in ids] == ["<|user|>", " Hi", "<|end|>", "<|assistant|>"]


class Gemma:
    """SentencePiece in plain Python: user-defined tokens first, then the best-scored neighbours, the leftmost first."""

    def __init__(self, path: Path) -> None:
        fields = read_gguf(path).metadata
        self.tokens = fields["tokenizer.ggml.tokens"]
        self.ids = {token: token_id for token_id, token in enumerate(self.tokens)}
        self.scores = fields["tokenizer.ggml.scores"].tolist()
        types = fields["tokenizer.ggml.token_type"].tolist()
        self.whole = {token for token, kind in zip(self.tokens, types, strict=True) if kind in (3, 4)}
        self.longest = max(map(len, self.whole))

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        start = at = 0
        while at < len(text):
            sizes = range(min(self.longest, len(text) - at), 0, -1)
            size = next((size for size in sizes if text[at : at + size] in self.whole), 0)
            if size:
                ids += [*self.merge(text[start:at]), self.ids[text[at : at + size]]]
                start = at + size
            at += size or 1
        return ids + self.merge(text[start:])

    def merge(self, text: str) -> list[int]:
        pieces = list(text.replace(" ", "▁"))
        while True:
            joins = [
                (self.scores[self.ids[a + b]], -at)
                for at, (a, b) in enumerate(itertools.pairwise(pieces))
                if a + b in self.ids
            ]
            if not joins:
                break
            at = -max(joins)[1]
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return [
            self.ids[token]
            for piece in pieces
            for token in ([piece] if piece in self.ids else [f"<0x{byte:02X}>" for byte in piece.encode()])
        ]


@pytest.fixture(scope="module")
def gemma() -> Tokenizer:
    return Tokenizer.from_gguf(read_gguf(gemma_270m()).metadata)


def test_gemma_encodes_as_sentencepiece_is_defined(gemma: Tokenizer) -> None:
    plain = Gemma(gemma_270m())
    rng = random.Random(3)
    texts = [*PARTS, *(text[:150] for text in mixed_texts()[13:80])]
    texts += ["".join(rng.choice("=-_ .\n\t<br>a") * rng.randint(1, 30) for _ in range(4)) for _ in range(60)]
    for text in texts:
        assert gemma.encode(text, add_special_tokens=False) == plain.encode(text), text


def test_gemma_begins_with_bos_and_adds_no_space(gemma: Tokenizer) -> None:
    assert gemma.encode("Hello world") == [2, 9259, 1902]
    assert gemma.encode("<bos>Hello world") == [2, 9259, 1902]
    ids = gemma.encode("a\n\n\nb  c", add_special_tokens=False)
    assert [gemma.token_text(token_id) for token_id in ids] == ["a", "\n\n\n", "b", "  ", "c"]


def test_gemma_gives_text_back_whole(gemma: Tokenizer) -> None:
    for text in mixed_texts():
        ids = gemma.encode(text, add_special_tokens=False)
        assert gemma.decode(ids, skip_special_tokens=False) == text
        stream = gemma.detokenizer(skip_special_tokens=False)
        assert "".join(stream.add([token_id]) for token_id in ids) + stream.flush() == text
