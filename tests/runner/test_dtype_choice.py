"""What dtype auto means: the bits of the file where weights are many or memory is short, else int8."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from hotseat.models.dequantize import row_bytes
from hotseat.models.weights import WeightTensor
from hotseat.runner.dtype_choice import choose_dtype, stored_bits
from runner.hand_batches import memory_weights, tiny_spec
from tiny_models import TinyLlama

MODEL = TinyLlama(hidden_size=256, intermediate_size=512, num_heads=4, num_kv_heads=2, vocab_size=512, head_dim=64)
LARGE = replace(MODEL, vocab_size=4_000_000, num_layers=1)  # 1 GB in int8, of which the tests hold nothing
PLENTY = 1 << 40


def stored(kind: str, model: TinyLlama = MODEL) -> Mapping[str, WeightTensor]:
    """Return weights whose matrices are of one kind, and all zeros, that take no memory."""
    weights = dict(memory_weights(MODEL))
    if model is LARGE:
        weights["token_embedding"] = replace(weights["token_embedding"], shape=(model.vocab_size, 256))
    for slot, tensor in weights.items():
        if len(tensor.shape) == 2:
            zeros = np.broadcast_to(np.zeros(1, np.uint8), (tensor.shape[0], row_bytes(kind, tensor.shape[1])))
            weights[slot] = WeightTensor(kind=kind, shape=tensor.shape, data=zeros)
    return weights


@pytest.mark.parametrize(("kind", "bits"), [("F16", 16), ("Q8_0", 8.5), ("Q4_K", 4.5), ("Q6_K", 6.5625)])
def test_bits_are_those_of_the_file(kind: str, bits: float) -> None:
    assert stored_bits(tiny_spec(MODEL), stored(kind)) == pytest.approx(bits)


@pytest.mark.parametrize(
    ("kind", "model", "free_bytes", "expected"),
    [
        ("Q4_K", MODEL, PLENTY, "int8"),
        ("Q4_K", LARGE, PLENTY, "gguf"),
        ("Q6_K", LARGE, PLENTY, "gguf"),
        ("Q8_0", LARGE, PLENTY, "int8"),
        ("F16", LARGE, PLENTY, "int8"),
        ("Q4_K", MODEL, 1000, "gguf"),
        ("Q8_0", MODEL, 1000, "int8"),
    ],
)
def test_many_weights_of_few_bits_keep_them(kind: str, model: TinyLlama, free_bytes: int, expected: str) -> None:
    assert choose_dtype(tiny_spec(model), stored(kind, model), free_bytes) == expected


def test_one_log_line_says_the_choice_and_its_memory(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        choose_dtype(tiny_spec(LARGE), stored("Q4_K", LARGE), PLENTY)
    (message,) = caplog.messages
    assert message.startswith("dtype auto: gguf, about 599 MB"), message
    assert "int8 would take 1096 MB; the file has 4.5 bits a weight" in message
