"""Native runners over models in memory, and what a request got from one; for the tests of the native runner.

Import it after ``pytest.importorskip("hotseat.runner._native")``: the other runner's tests pass without a compiler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from hotseat.core.batch import StepOutput, TokenLogprobs
from hotseat.models.spec import DecoderSpec
from hotseat.models.weights import WeightTensor
from hotseat.runner import RunnerConfig
from hotseat.runner._native import supported_isas
from hotseat.runner.native import NativeRunner
from runner.hand_batches import HandScheduler, small_config

ISAS = tuple(supported_isas())
DTYPES = ("fp32", "bf16", "int8")

Trace = list[TokenLogprobs]  # what a request sampled


def native_config(**options: object) -> RunnerConfig:
    """Return a small configuration that the native runner takes; ``options`` replace fields."""
    values: dict[str, object] = {
        "block_size": 16,
        "num_kv_blocks": 200,
        "max_num_batched_tokens": 640,
        "max_model_len": 640,
        "threads": 2,
    }
    return small_config(**{**values, **options})


def native_scheduler(spec: DecoderSpec, weights: Mapping[str, WeightTensor], **options: object) -> HandScheduler:
    """Return batches by hand for a new native runner."""
    config = native_config(**options)
    return HandScheduler(NativeRunner(spec, weights, config), config)


def token_ids(length: int, vocab_size: int, seed: int = 1) -> list[int]:
    """Return random ids; equal arguments give equal ids, and a shorter list is the beginning of a longer one."""
    ids: list[int] = np.random.default_rng(seed).integers(0, vocab_size, 1000)[:length].tolist()
    return ids


def traced(output: StepOutput, request_id: str) -> Trace:
    """Return what ``request_id`` sampled in a step; it wants log-probabilities."""
    own = [sampled for sampled in output.sampled if sampled.request_id == request_id]
    return [logprobs for sampled in own for logprobs in sampled.logprobs or ()]


def decode(scheduler: HandScheduler, steps: int, *neighbours: str) -> Trace:
    """Let "me" decode beside ``neighbours`` and return what it sampled."""
    counts = dict.fromkeys(("me", *neighbours), 1)
    return [entry for _ in range(steps) for entry in traced(scheduler.step(counts), "me")]


def prefill(scheduler: HandScheduler, counts: Iterable[int], request_id: str = "me") -> Trace:
    """Compute ``request_id`` alone, in chunks of these sizes."""
    return [entry for count in counts for entry in traced(scheduler.step({request_id: count}), request_id)]
