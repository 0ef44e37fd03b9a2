"""Weights multiplied as a GGUF file stores them: against the definition, on every instruction set, in a crowd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from hotseat.core.request import SamplingParams
from hotseat.errors import ConfigError
from hotseat.models.weights import WeightTensor
from hotseat.runner import ReferenceRunner
from runner.hand_batches import HandScheduler, memory_weights, tiny_spec
from tiny_models import TinyLlama

pytest.importorskip("hotseat.runner._native")

from runner.native_cases import ISAS, decode, native_config, native_scheduler, prefill, token_ids
from runner.test_native import SCALES, stored_as

# Inputs are whole K-quant blocks; the vocabulary leaves a half panel of padding, gate and up a partial half.
MODEL = TinyLlama(
    hidden_size=256, intermediate_size=512, num_heads=4, num_kv_heads=2, vocab_size=333, num_layers=2, head_dim=64
)
MIXED = ("Q4_1", "Q6_K", "Q8_0", "Q4_K", "Q5_0", "Q5_K", "Q4_0", "Q5_1")
SEEDED = SamplingParams(temperature=1.0, logprobs=2)


def stored(kinds: Sequence[str], model: TinyLlama = MODEL) -> dict[str, WeightTensor]:
    """Return weights whose matrices are of these kinds in turn."""
    return {
        slot: stored_as(kinds[i % len(kinds)], tensor.shape, i) if len(tensor.shape) == 2 else tensor
        for i, (slot, tensor) in enumerate(memory_weights(model).items())
    }


def logits(weights: Mapping[str, WeightTensor], isa: str, length: int) -> np.ndarray:
    scheduler = native_scheduler(tiny_spec(MODEL), weights, dtype="gguf", isa=isa)
    scheduler.seat("me", token_ids(length, MODEL.vocab_size))
    scheduler.step({"me": length})
    return np.asarray(scheduler.runner.last_logits()[0])  # type: ignore[attr-defined]


@pytest.mark.parametrize("kinds", [*((kind,) for kind in SCALES), MIXED], ids="-".join)
def test_logits_follow_the_definition_and_are_the_same_bits_on_every_isa(kinds: Sequence[str]) -> None:
    weights, length = stored(kinds), 23
    config = native_config(dtype="gguf")
    scheduler = HandScheduler(ReferenceRunner(tiny_spec(MODEL), weights, config), config)
    scheduler.seat("me", token_ids(length, MODEL.vocab_size))
    expected = scheduler.runner.logits(scheduler.batch({"me": length}))[-1]  # type: ignore[attr-defined]
    results = [logits(weights, isa, length) for isa in ISAS]
    # A value at the border of two codes may round the other way, which moves a sum by one step of its group.
    np.testing.assert_allclose(results[0], expected, atol=2e-2 * np.abs(expected).max())
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


def test_weights_that_are_not_in_groups_are_refused_by_name() -> None:
    weights = stored(("Q8_0",)) | {"layers.1.up": stored_as("F16", (512, 256), 0)}
    with pytest.raises(ConfigError, match=r"layers\.1\.up is F16"):
        native_scheduler(tiny_spec(MODEL), weights, dtype="gguf")
