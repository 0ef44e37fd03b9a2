"""Thousands of mutated model files: each is loaded or refused, in little time and memory."""

import struct
import time

import numpy as np
import pytest

from hotseat.errors import ModelError
from hotseat.models.gguf import read_gguf
from hotseat.models.rope import rope_spec
from hotseat.models.safetensors import read_safetensors
from hotseat.text import Tokenizer
from models.hostile_files import run
from tiny_models import write_tiny_gguf_model

pytest.importorskip("gguf")


@pytest.mark.parametrize("seed", range(4))
def test_mutated_files_are_loaded_or_refused(seed, tmp_path):
    wrong = []
    ends = run(1000, seed, tmp_path, lambda ended, path: wrong.append(ended))
    assert not wrong
    assert ends["loaded"] > 100
    assert ends["refused"] > 100


SENTENCEPIECE = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "a", "b", "ab"],
    "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -1.0, -2.0, -3.0],
    "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1],
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bos_token_id", [1]),
        ("bos_token_id", 1.0),
        ("eos_token_id", "2"),
        ("unknown_token_id", [[0]]),
        ("token_type", 3),
        ("token_type", ["3"]),
        ("tokens", "abc"),
        ("tokens", [1, 2]),
        ("scores", ["x"] * 6),
        ("scores", 1),
        ("merges", 7),
        ("merges", [7]),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_by_the_name_of_its_key(key, value):
    with pytest.raises(ModelError, match=key):
        Tokenizer.from_gguf(SENTENCEPIECE | {f"tokenizer.ggml.{key}": value})


def test_a_token_of_a_million_characters_costs_little_time():
    tokens = [*SENTENCEPIECE["tokenizer.ggml.tokens"], "a" * 1_000_000]
    began_at = time.process_time()
    Tokenizer.from_gguf(SENTENCEPIECE | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": [0.0] * 7})
    assert time.process_time() - began_at < 5  # a slice for each of its cuts would copy 1e12 characters


def test_a_tokenizer_takes_the_metadata_as_the_reader_gives_them():
    arrays = {
        key: np.array(value) if key.endswith(("scores", "type")) else value for key, value in SENTENCEPIECE.items()
    }
    assert Tokenizer.from_gguf(arrays).encode("ab") == Tokenizer.from_gguf(SENTENCEPIECE).encode("ab")


def test_readers_take_a_path_as_text(tmp_path):
    path = write_tiny_gguf_model(tmp_path / "tiny.gguf")
    assert list(read_gguf(str(path)).tensors) == list(read_gguf(path).tensors)
    (tmp_path / "empty.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="too few"):
        read_safetensors(str(tmp_path / "empty.safetensors"))


def test_a_shape_that_is_a_number_is_refused(tmp_path):
    header = b'{"t": {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]}}'
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(ModelError, match="senseless shape 2"):
        read_safetensors(tmp_path / "a.safetensors")


@pytest.mark.parametrize("factor", [1e-320, 1e-42])
def test_a_rope_factor_that_overflows_is_refused_without_a_warning(factor):
    with pytest.raises(ModelError, match="not finite"):
        rope_spec({"rope_type": "linear", "factor": factor}, head_dim=32, theta=10000.0)
