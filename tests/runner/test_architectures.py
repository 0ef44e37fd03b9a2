"""Every architecture against transformers, and the promise about bits for those with operations that Llama lacks."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_twins import write_gguf_twin
from hotseat.core.batch import Batch, Chunk, NewRequest
from hotseat.core.request import RequestId, SamplingParams
from hotseat.models import LoadedModel, load
from hotseat.runner import _native
from hotseat.runner.config import RunnerConfig
from hotseat.runner.native import NativeRunner
from hotseat.runner.reference import ReferenceRunner
from twins import TWINS, prompts, write_twin

pytestmark = pytest.mark.oracle

BLOCK_SIZE = 16
BLOCKS = 8  # of each seat
BITWISE = (
    "llama-biased",
    "mistral-window",
    "gemma2",
    "gemma3",
    "phi4-mini",
    "olmo3",
    "command-r7b",
    "hunyuan",
    "pythia",
    "qwen2-moe",
    "dots1",
    "gpt-oss",
)


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that makes a twin once and loads it: the model, and transformers' logits of its prompts."""

    @cache
    def make(name: str) -> tuple[LoadedModel, list[np.ndarray]]:
        directory: Path = tmp_path_factory.mktemp("twin") / "model"
        logits = write_twin(TWINS[name], directory)
        return load(str(directory)), logits

    return make


def config(dtype: str = "fp32", kv: str = "fp32", isa: str = "auto", threads: int = 1) -> RunnerConfig:
    options: dict[str, Any] = {"dtype": dtype, "kv_cache_dtype": kv, "isa": isa, "threads": threads}
    return RunnerConfig(
        **options,
        num_kv_blocks=4 * BLOCKS,
        block_size=BLOCK_SIZE,
        max_num_seqs=4,
        max_num_batched_tokens=256,
        max_model_len=BLOCKS * BLOCK_SIZE,
    )


def newcomer(seat: int, tokens: list[int]) -> NewRequest:
    return NewRequest(
        seat=seat,
        request_id=RequestId(f"r{seat}"),
        token_ids=tokens,
        num_prompt_tokens=len(tokens),
        block_ids=list(range(seat * BLOCKS, (seat + 1) * BLOCKS)),
        params=SamplingParams(temperature=0, max_tokens=100),
        seed=0,
        eos_token_ids=frozenset(),
    )


def batch(step: int, pieces: list[tuple[int, int, int, bool]], new: list[NewRequest]) -> Batch:
    """Return a batch of pieces (seat, start, end, samples)."""
    chunks = [Chunk(seat, RequestId(f"r{seat}"), start, end, samples) for seat, start, end, samples in pieces]
    return Batch(step=step, chunks=chunks, new_requests=new, num_tokens=sum(c.end - c.start for c in chunks))


@pytest.mark.parametrize("name", list(TWINS))
def test_logits_in_fp32_are_those_of_transformers(name: str, twin: Any) -> None:
    model, expected = twin(name)
    for prompt, wanted in zip(prompts(TWINS[name]), expected, strict=True):
        largest = np.abs(wanted).max()
        whole = batch(0, [(0, 0, len(prompt), True)], [newcomer(0, prompt)])
        actual = ReferenceRunner(model.spec, model.weights, config()).logits(whole)
        assert np.abs(actual - wanted).max() < 1e-4 * largest
        native = NativeRunner(model.spec, model.weights, config())
        native.execute(whole)
        assert np.abs(native.last_logits()[0] - wanted[-1]).max() < 1e-4 * largest
        native.close()


def logits_of(model: LoadedModel, steps: list[Batch], settings: RunnerConfig) -> list[np.ndarray]:
    """Return the bits of the logits of each step's samples."""
    runner = NativeRunner(model.spec, model.weights, settings)
    found = []
    for one in steps:
        runner.execute(one)
        found.append(runner.last_logits().view(np.uint32))
    runner.close()
    return found


@pytest.mark.parametrize(("dtype", "kv"), [("fp32", "fp32"), ("int8", "bf16"), ("bf16", "bf16"), ("gguf", "bf16")])
@pytest.mark.parametrize("name", BITWISE)
def test_bits_do_not_depend_on_batch_chunks_threads_or_instruction_set(
    name: str, dtype: str, kv: str, twin: Any
) -> None:
    model, _ = twin(name)
    longest = prompts(TWINS[name])[-1]
    length = len(longest)
    alone = [batch(0, [(0, 0, length, True)], [newcomer(0, longest)])]
    (expected,) = logits_of(model, alone, config(dtype, kv))
    chunked = [
        batch(0, [(0, 0, 5, False)], [newcomer(0, longest)]),
        batch(1, [(0, 5, length - 1, False)], []),
        batch(2, [(0, length - 1, length, True)], []),
    ]
    assert np.array_equal(logits_of(model, chunked, config(dtype, kv))[-1], expected)
    others = [newcomer(seat, prompt) for seat, prompt in enumerate(prompts(TWINS[name]), 1)]
    crowd = [
        batch(0, [(one.seat, 0, len(one.token_ids) - 1, False) for one in others], others),
        batch(
            1,
            [(one.seat, len(one.token_ids) - 1, len(one.token_ids), True) for one in others] + [(0, 0, length, True)],
            [newcomer(0, longest)],
        ),
    ]
    for isa in _native.supported_isas():
        for threads in (1, 3):
            found = logits_of(model, crowd, config(dtype, kv, isa, threads))[-1]
            assert np.array_equal(found[-1:], expected), (isa, threads)


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "olmo3", "command-r7b"])
def test_bf16_attention_with_windows_and_caps_is_that_of_the_definition(name: str, twin: Any) -> None:
    model, _ = twin(name)
    prompt = prompts(TWINS[name])[-1]
    whole = batch(0, [(0, 0, len(prompt), True)], [newcomer(0, prompt)])
    defined = ReferenceRunner(model.spec, model.weights, config("fp32", "bf16")).logits(whole)[-1]
    native = NativeRunner(model.spec, model.weights, config("fp32", "bf16"))
    native.execute(whole)
    assert np.abs(native.last_logits()[0] - defined).max() < 2e-2 * np.abs(defined).max()
    native.close()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q5_1"])
def test_quantised_experts_of_a_gguf_file_follow_the_definition(kind: str, tmp_path: Path) -> None:
    twin = TWINS["qwen3-moe-wide"]
    write_twin(twin, tmp_path)
    path = write_gguf_twin(twin, tmp_path, tmp_path / "twin.gguf", expert_kind=kind)
    model, prompt = load(str(path)), prompts(twin)[-1]
    assert model.weights["layers.1.experts.4.down"].kind == kind
    whole = batch(0, [(0, 0, len(prompt), True)], [newcomer(0, prompt)])
    defined = ReferenceRunner(model.spec, model.weights, config("gguf")).logits(whole)[-1]
    (first, *others) = (logits_of(model, [whole], config("gguf", isa=isa))[0] for isa in _native.supported_isas())
    assert np.abs(first.view(np.float32)[0] - defined).max() < 2e-2 * np.abs(defined).max()
    assert all(np.array_equal(other, first) for other in others)
