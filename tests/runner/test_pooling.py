"""Embeddings: the same bits whatever shares the steps, by both runners, and what a full-precision model gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotseat import LLM
from hotseat.core.batch import Batch, Chunk, NewRequest, StepOutput
from hotseat.core.request import RequestId, SamplingParams
from hotseat.errors import InvalidRequestError
from hotseat.runner.pooling import Pooler
from tiny_models import write_tiny_hf_model

TEXTS = ["hot", "a hot seat", "Guest number one sits down at table seven " * 6, "Guest number one sits down", "é😀"]
POOLINGS = ("last", "mean")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_hf_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def open_llm(model: Path) -> Iterator[Callable[..., LLM]]:
    opened: list[LLM] = []

    def open_one(**options: Any) -> LLM:
        bounds = {"max_num_seqs": 4, "max_num_batched_tokens": 256, "num_kv_blocks": 64}
        opened.append(LLM(str(model), **(bounds | {"runner": "reference", "dtype": "fp32"} | options)))
        return opened[-1]

    yield open_one
    for llm in opened:
        llm.close()


def embeddings(llm: LLM, texts: list[Any], **options: Any) -> list[list[float]]:
    return [output.outputs.embedding for output in llm.embed(texts, use_tqdm=False, **options)]


@pytest.mark.parametrize("runner", ["reference", "native"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_crowd_chunks_and_the_prefix_cache_change_no_bit(
    open_llm: Callable[..., LLM], runner: str, pooling: str
) -> None:
    if runner == "native":
        pytest.importorskip("hotseat.runner.native")
    alone = open_llm(runner=runner, dtype="fp32", max_num_seqs=1, enable_prefix_caching=False)
    crowd = open_llm(runner=runner, dtype="fp32", max_num_batched_tokens=16)
    want = [embeddings(alone, [text], pooling=pooling)[0] for text in TEXTS]
    assert embeddings(crowd, TEXTS * 2, pooling=pooling) == want * 2
    assert embeddings(crowd, TEXTS[::-1], pooling=pooling) == want[::-1]  # all of it is cached by now


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("dtype", ["int8", "fp32"])
def test_threads_and_instruction_sets_change_no_bit(open_llm: Callable[..., LLM], pooling: str, dtype: str) -> None:
    native = pytest.importorskip("hotseat.runner._native")
    want = embeddings(open_llm(runner="native", dtype=dtype, threads=1), TEXTS, pooling=pooling)
    for isa in native.supported_isas():
        assert embeddings(open_llm(runner="native", dtype=dtype, threads=2, isa=isa), TEXTS, pooling=pooling) == want


@pytest.mark.parametrize("pooling", POOLINGS)
def test_both_runners_agree(open_llm: Callable[..., LLM], pooling: str) -> None:
    pytest.importorskip("hotseat.runner.native")
    ours, theirs = (embeddings(open_llm(runner=name), TEXTS, pooling=pooling) for name in ("native", "reference"))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_mean_is_that_of_the_last_states_of_all_beginnings(open_llm: Callable[..., LLM]) -> None:
    llm = open_llm()
    ids = llm.get_tokenizer().encode(TEXTS[1])
    prompts = [{"prompt_token_ids": ids[:end]} for end in range(1, len(ids) + 1)]
    states = embeddings(llm, prompts, pooling="last", normalize=False)
    (mean,) = embeddings(llm, [TEXTS[1]], pooling="mean", normalize=False)
    np.testing.assert_allclose(mean, np.mean(states, axis=0), rtol=1e-5, atol=1e-6)


def test_a_text_that_loses_its_seat_starts_from_nothing() -> None:
    rows = np.arange(24, dtype=np.float32).reshape(6, 4) / 7
    seating = NewRequest(0, RequestId("a"), [1] * 6, 6, [0], SamplingParams(max_tokens=0), 0, frozenset(), "mean")

    def batch(start: int, end: int, **options: Any) -> Batch:
        return Batch(step=0, chunks=[Chunk(0, RequestId("a"), start, end, end == 6)], **options)

    def pool(pooler: Pooler, one: Batch) -> dict[RequestId, Any]:
        output = StepOutput(sampled=[])
        start = one.chunks[0].start
        pooler.pool(one, lambda first, end: rows[start + first : start + end], output)
        return output.pooled

    pooler = Pooler()
    assert pool(pooler, batch(0, 4, new_requests=[seating])) == {}
    assert pool(pooler, batch(0, 3, new_requests=[seating], released_ids=[RequestId("a")])) == {}
    again = pool(pooler, batch(3, 6))["a"]
    whole = pool(Pooler(), batch(0, 6, new_requests=[seating]))["a"]
    assert again.tobytes() == whole.tobytes()
    np.testing.assert_allclose(whole, rows.mean(axis=0), rtol=1e-6)


def test_vectors_have_the_length_one_and_as_many_dimensions_as_asked_for(open_llm: Callable[..., LLM]) -> None:
    llm = open_llm()
    (whole,) = embeddings(llm, ["a hot seat"])
    (cut,) = embeddings(llm, ["a hot seat"], dimensions=8)
    (raw,) = embeddings(llm, ["a hot seat"], normalize=False)
    assert math.hypot(*whole) == pytest.approx(1)
    assert math.hypot(*cut) == pytest.approx(1)
    np.testing.assert_allclose(np.array(cut) * math.hypot(*whole[:8]), whole[:8])
    np.testing.assert_allclose(np.array(raw) / math.hypot(*raw), whole)
    output = llm.embed("a hot seat", use_tqdm=False)[0]
    assert output.prompt_token_ids == llm.get_tokenizer().encode("a hot seat")


@pytest.mark.parametrize("options", [{"dimensions": 0}, {"dimensions": 10**6}, {"pooling": "cls"}])
def test_wrong_arguments_are_refused(open_llm: Callable[..., LLM], options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(options))):
        open_llm().embed("a", use_tqdm=False, **options)
