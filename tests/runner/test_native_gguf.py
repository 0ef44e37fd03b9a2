"""Weights multiplied as a GGUF file stores them: against the definition, on every instruction set, in a crowd."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from hotseat.core.request import SamplingParams
from hotseat.errors import ConfigError
from hotseat.models.dequantize import dequantize_rows
from hotseat.models.weights import WeightTensor
from hotseat.runner import ReferenceRunner
from hotseat.runner.groups import UNGROUPED_KINDS
from hotseat.runner.reference_groups import nearest_groups
from runner.hand_batches import HandScheduler, memory_weights, tiny_spec
from tiny_models import TinyLlama

pytest.importorskip("hotseat.runner._native")

from hotseat.runner.native import NativeRunner
from runner.native_cases import ISAS, decode, native_config, native_scheduler, prefill, token_ids
from runner.test_native import KINDS, stored_as

# Inputs are whole K-quant blocks; the vocabulary leaves a half panel of padding, gate and up a partial half.
MODEL = TinyLlama(
    hidden_size=256, intermediate_size=512, num_heads=4, num_kv_heads=2, vocab_size=333, num_layers=2, head_dim=64
)
UNTIED = replace(MODEL, tie_word_embeddings=False)
MIXED = (
    "Q4_1",
    "F16",
    "Q6_K",
    "Q8_0",
    "Q4_K",
    "Q5_0",
    "Q5_K",
    "Q4_0",
    "Q5_1",
    "IQ4_XS",
    "Q3_K",
    "MXFP4",
    "Q2_K",
    "IQ4_NL",
)
SEEDED = SamplingParams(temperature=1.0, logprobs=2)


def stored(kinds: Sequence[str], model: TinyLlama = MODEL) -> dict[str, WeightTensor]:
    """Return weights whose matrices are of these kinds in turn."""
    return {
        slot: stored_as(kinds[i % len(kinds)], tensor.shape, i) if len(tensor.shape) == 2 else tensor
        for i, (slot, tensor) in enumerate(memory_weights(model).items())
    }


def logits(weights: Mapping[str, WeightTensor], isa: str, length: int, model: TinyLlama = MODEL) -> np.ndarray:
    scheduler = native_scheduler(tiny_spec(model), weights, dtype="gguf", isa=isa)
    scheduler.seat("me", token_ids(length, model.vocab_size))
    scheduler.step({"me": length})
    return np.asarray(scheduler.runner.last_logits()[0])  # type: ignore[attr-defined]


def reference_logits(weights: Mapping[str, WeightTensor], length: int, model: TinyLlama = MODEL) -> np.ndarray:
    config = native_config(dtype="gguf")
    runner = ReferenceRunner(tiny_spec(model), weights, config)
    scheduler = HandScheduler(runner, config)
    scheduler.seat("me", token_ids(length, model.vocab_size))
    return np.asarray(runner.logits(scheduler.batch({"me": length}))[-1])


@pytest.mark.parametrize("kinds", [*((kind,) for kind in KINDS), MIXED], ids="-".join)
def test_logits_follow_the_definition_and_are_the_same_bits_on_every_isa(kinds: Sequence[str]) -> None:
    weights, length = stored(kinds), 23
    expected = reference_logits(weights, length)
    results = [logits(weights, isa, length) for isa in ISAS]
    # A value at the border of two codes may round the other way, which moves a sum by one step of its group, and so may
    # a group's multiplier, which moves all of its codes.
    error = np.abs(results[0] - expected) / np.abs(expected).max()
    assert error.max() <= 4e-2
    assert np.median(error) <= 4e-3
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("isa", ISAS)
def test_the_neighbours_leave_the_bits_alone(isa: str) -> None:
    weights = stored(MIXED)
    alone = native_scheduler(tiny_spec(MODEL), weights, dtype="gguf", isa=isa, threads=1)
    alone.seat("me", token_ids(37, MODEL.vocab_size), params=SEEDED, seed=3)
    expected = prefill(alone, [37]) + decode(alone, 8)

    crowd = native_scheduler(tiny_spec(MODEL), weights, dtype="gguf", isa=isa, threads=3)
    for i in range(5):
        crowd.seat(f"other{i}", token_ids(3 + 11 * i, MODEL.vocab_size, seed=9 + i))
        crowd.step({f"other{i}": 3 + 11 * i})
    crowd.seat("me", token_ids(37, MODEL.vocab_size), params=SEEDED, seed=3)
    trace = prefill(crowd, [5, 16, 1, 15]) + decode(crowd, 8, *(f"other{i}" for i in range(5)))
    assert trace == expected


def as_q8_0(tensor: WeightTensor) -> WeightTensor:
    """Return the nearest Q8_0 tensor, found with the definition."""
    values = nearest_groups(tensor.dequantize()).reshape(-1, 32)
    scale = (np.abs(tensor.dequantize()).reshape(-1, 32).max(axis=1) / np.float32(127)).astype(np.float16)
    blocks = np.empty(len(values), [("d", "<f2"), ("q", "i1", 32)])
    blocks["d"] = scale
    with np.errstate(invalid="ignore", divide="ignore"):  # a group of nothing has scale 0
        blocks["q"] = np.nan_to_num(np.rint(values / scale.astype(np.float32)[:, None]))
    data = blocks.view(np.uint8).reshape(len(tensor.data), -1)
    assert np.array_equal(dequantize_rows("Q8_0", data), values.reshape(tensor.shape)), "the definition is Q8_0"
    return WeightTensor(kind="Q8_0", shape=tensor.shape, data=data)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", UNGROUPED_KINDS)
def test_a_matrix_without_groups_gives_the_bits_of_the_nearest_q8_0(kind: str, isa: str) -> None:
    weights = stored((kind, "Q4_1"), UNTIED)  # every other matrix
    multiplied = [slot for slot, tensor in weights.items() if tensor.kind == kind and len(tensor.shape) == 2]
    multiplied.remove("token_embedding")
    nearest = weights | {slot: as_q8_0(weights[slot]) for slot in multiplied}
    assert len(multiplied) >= 5
    np.testing.assert_array_equal(logits(weights, isa, 23, UNTIED), logits(nearest, isa, 23, UNTIED))


# Inputs of 24 are not whole groups; q, k and v of 24, 8 and 8 rows share half panels.
ODD = TinyLlama(hidden_size=24, intermediate_size=40, num_heads=3, num_kv_heads=1, head_dim=8, vocab_size=301)


def test_sizes_that_are_not_whole_groups_follow_the_definition() -> None:
    weights = stored(("F16", "BF16", "F32"), ODD)
    expected = reference_logits(weights, 23, ODD)
    results = [logits(weights, isa, 23, ODD) for isa in ISAS]
    np.testing.assert_allclose(results[0], expected, atol=2e-2 * np.abs(expected).max())
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("runner", [NativeRunner, ReferenceRunner])
def test_the_log_counts_what_is_exact_and_what_was_rounded(
    runner: type[NativeRunner | ReferenceRunner], caplog: pytest.LogCaptureFixture
) -> None:
    weights = stored(("Q8_0", "F16", "Q4_1", "Q8_0"))  # of 15: the output head is the embedding
    with caplog.at_level(logging.INFO, "hotseat.runner.groups"):
        runner(tiny_spec(MODEL), weights, native_config(dtype="gguf")).close()
    exact, rounded = [record for record in caplog.records if record.name == "hotseat.runner.groups"]
    kinds = Counter(tensor.kind for tensor in weights.values() if len(tensor.shape) == 2)
    assert exact.levelno == logging.INFO
    assert f"{kinds['Q8_0'] + kinds['Q4_1']} of 15 matrices are multiplied exactly as they are stored" in exact.message
    assert f"(Q8_0 {kinds['Q8_0']}, Q4_1 {kinds['Q4_1']})" in exact.message
    assert f"{kinds['F16']} of 15 matrices are F16 in the file and were rounded to Q8_0" in rounded.message


def test_kinds_that_cannot_lie_side_by_side_are_refused_by_name() -> None:
    narrow = TinyLlama(hidden_size=64, num_heads=3, num_kv_heads=1, head_dim=8)
    weights = stored(("F32",), narrow) | {"layers.1.v": stored_as("Q4_0", (8, 64), 0)}
    with pytest.raises(ConfigError, match=r"layers\.1\.q has 24"):
        native_scheduler(tiny_spec(narrow), weights, dtype="gguf")
