"""The native runner computes what the reference defines: every instruction set, precision and awkward shape."""

import os
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from hotseat.core.batch import Batch, Chunk
from hotseat.core.request import RequestId
from hotseat.errors import ConfigError
from hotseat.models.dequantize import block_layout, row_bytes
from hotseat.models.spec import DecoderSpec, RopeSpec
from hotseat.models.weights import WeightTensor
from hotseat.runner import ReferenceRunner
from runner.hand_batches import HandScheduler, f32_tensor, memory_weights, tiny_spec
from tiny_models import TinyLlama, encode

pytest.importorskip("hotseat.runner._native", reason="the extension is not built")

from hotseat.runner.config import ISAS as ISA_CHOICES
from hotseat.runner.native import default_threads, resolve_isa
from runner.native_cases import DTYPES, ISAS, native_config, native_scheduler, token_ids

# Contexts lie around the borders of groups (16 positions) and spans (256); sizes are not multiples of a vector (16),
# a panel (64) or half of one.
SHAPES: dict[str, tuple[TinyLlama, int, tuple[int, ...]]] = {  # model, block size, context lengths
    "groups of one": (TinyLlama(num_heads=4, num_kv_heads=4, head_dim=16, vocab_size=300), 16, (1, 15, 16, 17, 2)),
    "groups of three, odd heads": (
        TinyLlama(hidden_size=36, intermediate_size=52, num_heads=9, num_kv_heads=3, head_dim=12, vocab_size=61),
        32,
        (255, 256, 1, 33),
    ),
    "groups of eight, heads of eight": (
        TinyLlama(hidden_size=100, intermediate_size=36, num_heads=8, num_kv_heads=1, head_dim=8, vocab_size=389),
        16,
        (257, 31, 600),
    ),
    "groups of seventeen": (
        TinyLlama(hidden_size=52, intermediate_size=100, num_heads=17, num_kv_heads=1, head_dim=20, vocab_size=129),
        64,
        (256, 257, 17),
    ),
    "wide heads, odd sizes": (
        TinyLlama(
            num_layers=1, hidden_size=33, intermediate_size=101, num_heads=5, num_kv_heads=5, head_dim=64, vocab_size=97
        ),
        64,
        (600, 15, 65),
    ),
    "heads of eighty": (
        TinyLlama(num_layers=1, num_heads=3, num_kv_heads=1, head_dim=80, hidden_size=72, intermediate_size=200),
        16,
        (1, 257, 513),
    ),
    "one layer, one head": (
        TinyLlama(num_layers=1, num_heads=1, num_kv_heads=1, head_dim=32, hidden_size=20, vocab_size=64),
        32,
        (16, 40),
    ),
    "untied, three layers": (
        TinyLlama(num_layers=3, tie_word_embeddings=False, vocab_size=1000, intermediate_size=192, rope_theta=100.0),
        16,
        (15, 256, 300),
    ),
}
SCALED_ROPE = "one layer, one head"  # with an attention factor, as YaRN has

# Largest and median error by dtype and kv_dtype, as shares of the largest logit. Sums of fp32 may be in another order.
# Where anything is rounded to fewer bits, a value between two codes may then get the other one: rare, but all that
# follows sees it.
TOLERANCES = {
    ("fp32", "fp32"): (1e-5, 1e-6),
    ("fp32", "bf16"): (2e-3, 1e-4),
    ("bf16", "fp32"): (2e-2, 2e-3),
    ("bf16", "bf16"): (2e-2, 2e-3),
    ("int8", "fp32"): (4e-2, 4e-3),
    ("int8", "bf16"): (4e-2, 4e-3),
}


def spec_of(name: str) -> DecoderSpec:
    model = SHAPES[name][0]
    spec = tiny_spec(model)
    if name == SCALED_ROPE:
        rope = RopeSpec(inverse_frequencies=spec.rope.inverse_frequencies, attention_factor=1.3)
        return replace(spec, ropes=(rope,))
    return spec


def prompts_of(name: str) -> dict[str, list[int]]:
    model, _, lengths = SHAPES[name]
    return {f"r{length}": token_ids(length, model.vocab_size, seed=length) for length in lengths}


def batches(scheduler: HandScheduler, prompts: dict[str, list[int]]) -> list[Batch]:
    """Prefill whole prompts and pieces, then sample them all: by decodes, and the even ones by short prefills."""
    ends = {id_: max(0, len(prompt) - (1 if index % 2 else 7)) for index, (id_, prompt) in enumerate(prompts.items())}
    result = []
    for id_, prompt in prompts.items():
        scheduler.seat(id_, prompt)
        cut = ends[id_] // 3
        result += [scheduler.batch({id_: count}) for count in (cut, ends[id_] - cut) if count]
    result.append(scheduler.batch({id_: len(prompt) - ends[id_] for id_, prompt in prompts.items()}))
    return result


def options_of(name: str, dtype: str, kv_dtype: str) -> dict[str, object]:
    return {"dtype": dtype, "kv_cache_dtype": kv_dtype, "block_size": SHAPES[name][1]}


@cache
def reference_logits(name: str, dtype: str, kv_dtype: str) -> np.ndarray:
    config = native_config(**options_of(name, dtype, kv_dtype))
    runner = ReferenceRunner(spec_of(name), memory_weights(SHAPES[name][0]), config)
    *before, last = batches(HandScheduler(runner, config), prompts_of(name))
    for batch in before:
        runner.logits(batch)
    rows = np.cumsum([chunk.end - chunk.start for chunk in last.chunks]) - 1
    logits: np.ndarray = runner.logits(last)[rows]
    return logits


def native_logits(name: str, dtype: str, kv_dtype: str, isa: str) -> np.ndarray:
    options = options_of(name, dtype, kv_dtype)
    scheduler = native_scheduler(spec_of(name), memory_weights(SHAPES[name][0]), isa=isa, **options)
    runner = scheduler.runner
    assert runner.isa == isa
    for batch in batches(scheduler, prompts_of(name)):
        runner.execute(batch)
    return runner.last_logits()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SHAPES)
def test_logits_equal_those_of_the_reference(name: str, dtype: str, kv_dtype: str, isa: str) -> None:
    expected = reference_logits(name, dtype, kv_dtype)
    error = np.abs(native_logits(name, dtype, kv_dtype, isa) - expected) / np.abs(expected).max()
    largest, median = TOLERANCES[dtype, kv_dtype]
    assert error.max() <= largest
    assert np.median(error) <= median


KIND_MODEL = TinyLlama(hidden_size=256, intermediate_size=512, num_heads=4, num_kv_heads=2, vocab_size=70, num_layers=1)
# Where the half-precision scales of a block lie.
SCALES = {
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),  # an exponent in byte 0
}
KINDS = ("F32", "F16", "BF16", *SCALES)


def stored_as(kind: str, shape: tuple[int, ...], seed: int) -> WeightTensor:
    """Return random weights; in blocks every bit pattern may come, but for scales, which keep activations sane."""
    rng = np.random.default_rng(seed)
    rows, columns = shape
    if kind in SCALES:
        values, block_bytes = block_layout(kind)
        blocks = rng.integers(0, 256, (rows, columns // values, block_bytes), dtype=np.uint8)
        for offset in SCALES[kind]:
            scales = rng.choice([-1, 1], blocks.shape[:2]) * 2.0 ** rng.uniform(-18, -8, blocks.shape[:2])
            blocks[:, :, offset : offset + 2] = scales.astype("<f2")[..., None].view(np.uint8)
        if kind == "MXFP4":
            blocks[:, :, 0] = rng.integers(110, 120, blocks.shape[:2])
        data = blocks.reshape(rows, -1)
    else:
        weights = rng.standard_normal(shape) / 16 * 2.0 ** rng.integers(-20, 1, shape)  # halves: subnormal ones, too
        data = np.frombuffer(encode(weights.astype(np.float32), kind), np.uint8).reshape(rows, -1)
    assert data.shape[1] == row_bytes(kind, columns)
    return WeightTensor(kind=kind, shape=shape, data=data)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_weight_gives_the_bits_of_its_values_in_fp32(kind: str, isa: str) -> None:
    spec, plain = tiny_spec(KIND_MODEL), memory_weights(KIND_MODEL)
    stored = {
        slot: stored_as(kind, tensor.shape, seed) if len(tensor.shape) == 2 else tensor
        for seed, (slot, tensor) in enumerate(plain.items())
    }
    values = {slot: f32_tensor(tensor.dequantize()) for slot, tensor in stored.items()}
    logits = []
    for weights in (stored, values):
        scheduler = native_scheduler(spec, weights, dtype="fp32", isa=isa)
        scheduler.seat("r", token_ids(40, KIND_MODEL.vocab_size))
        scheduler.runner.execute(scheduler.batch({"r": 40}))
        logits.append(scheduler.runner.last_logits())
    assert np.isfinite(logits[0]).all()
    assert logits[0].std() > 0
    assert np.array_equal(logits[0].view(np.uint32), logits[1].view(np.uint32))


def mixed_kinds(model: TinyLlama) -> dict[str, WeightTensor]:
    """Return weights whose matrices are of another kind each, also those that are packed together."""
    kinds = ["Q8_0", "F16", "Q4_1", "BF16", "Q5_0", "F32"]
    plain = memory_weights(model)
    return {
        slot: stored_as(kinds[i % len(kinds)], tensor.shape, i) if len(tensor.shape) == 2 else tensor
        for i, (slot, tensor) in enumerate(plain.items())
    }


def last_logits_of(scheduler: HandScheduler, request_id: str, length: int) -> np.ndarray:
    scheduler.seat(request_id, token_ids(length, KIND_MODEL.vocab_size))
    scheduler.step({request_id: length})
    return scheduler.runner.last_logits()


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrices_of_different_kinds_mix_and_only_the_embedding_is_read_after_loading(dtype: str) -> None:
    weights = {slot: replace(tensor, data=tensor.data.copy()) for slot, tensor in mixed_kinds(KIND_MODEL).items()}
    values = {slot: f32_tensor(tensor.dequantize()) for slot, tensor in weights.items()}
    scheduler = native_scheduler(tiny_spec(KIND_MODEL), weights, dtype=dtype)
    for slot, tensor in weights.items():
        if slot != "token_embedding":
            tensor.data.fill(255)
    config = native_config(dtype=dtype)
    reference = ReferenceRunner(tiny_spec(KIND_MODEL), values, config)
    twin = HandScheduler(reference, config)
    twin.seat("r", token_ids(20, KIND_MODEL.vocab_size))
    expected = reference.logits(twin.batch({"r": 20}))[-1:]
    error = np.abs(last_logits_of(scheduler, "r", 20) - expected) / np.abs(expected).max()
    assert error.max() <= TOLERANCES[dtype, config.kv_dtype][0]


def test_last_logits_are_a_copy_that_the_next_step_leaves_alone() -> None:
    scheduler = native_scheduler(tiny_spec(KIND_MODEL), memory_weights(KIND_MODEL))
    first = last_logits_of(scheduler, "a", 9)
    kept = first.copy()
    assert not np.array_equal(last_logits_of(scheduler, "b", 5), kept)
    assert np.array_equal(first, kept)


def test_step_without_chunks_computes_nothing() -> None:
    scheduler = native_scheduler(tiny_spec(KIND_MODEL), memory_weights(KIND_MODEL))
    output = scheduler.step({})
    assert (output.sampled, output.failed, output.prompt_logprobs) == ([], {}, {})


@pytest.mark.parametrize(
    "broken",
    [
        Chunk(8, RequestId("beyond all seats"), 0, 1, True),
        Chunk(-1, RequestId("before all seats"), 0, 1, True),
        Chunk(1, RequestId("nobody sits there"), 0, 1, True),
        Chunk(0, RequestId("r"), 10, 11, True),  # not known
        Chunk(0, RequestId("r"), -1, 1, True),
        Chunk(0, RequestId("r"), 9, 9, True),
        Chunk(0, RequestId("r"), 1 << 40, (1 << 40) + 1, True),
        Chunk(0, RequestId("r"), None, 10, True),
        Chunk(0, RequestId("r"), 9, 10, True, writes_kv=None),
    ],
)
def test_chunk_that_breaks_the_contract_is_refused_and_changes_nothing(broken: Chunk) -> None:
    scheduler, twin = (native_scheduler(tiny_spec(KIND_MODEL), memory_weights(KIND_MODEL)) for _ in range(2))
    for each in (scheduler, twin):
        last_logits_of(each, "r", 9)
    good = Chunk(0, RequestId("r"), 9, 10, True)
    with pytest.raises((ValueError, RuntimeError)):
        scheduler.runner.execute(Batch(step=9, chunks=[good, broken]))
    for each in (scheduler, twin):
        each.decode("r", steps=3)
    assert scheduler.sequences == twin.sequences


def test_largest_step_fills_every_row_and_every_seat() -> None:
    """As many chunks as seats and as many tokens as a step may have; the reference says what comes out."""
    model = TinyLlama(vocab_size=80)
    options = {"dtype": "fp32", "max_num_seqs": 40, "max_num_batched_tokens": 190}
    config = native_config(**options)
    reference = ReferenceRunner(tiny_spec(model), memory_weights(model), config)
    native = native_scheduler(tiny_spec(model), memory_weights(model), **options)
    twin = HandScheduler(reference, config)
    counts = {f"r{i}": 1 + i % 9 for i in range(40)}
    for scheduler in (native, twin):
        for seed, (request_id, count) in enumerate(counts.items()):
            scheduler.seat(request_id, token_ids(count, model.vocab_size, seed))
    assert sum(counts.values()) == 190
    native.step(counts)
    rows = np.cumsum(list(counts.values())) - 1
    expected = reference.logits(twin.batch(counts))[rows]
    error = np.abs(native.runner.last_logits() - expected) / np.abs(expected).max()
    assert error.max() <= TOLERANCES["fp32", "fp32"][0]


def test_block_that_splits_a_group_is_refused() -> None:
    with pytest.raises(ConfigError, match="block_size must be a multiple of 16"):
        native_scheduler(tiny_spec(KIND_MODEL), memory_weights(KIND_MODEL), block_size=8)


def test_instruction_sets_are_those_of_the_machine_and_auto_is_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ISAS[0] == "scalar"
    assert set(ISAS) <= set(ISA_CHOICES)
    assert resolve_isa("auto") == ISAS[-1]
    assert [resolve_isa(isa) for isa in ISAS] == list(ISAS)
    monkeypatch.setattr("hotseat.runner._native.supported_isas", lambda: ["scalar"])
    with pytest.raises(ConfigError, match="avx2 is not on this machine, which has scalar"):
        resolve_isa("avx2")


@pytest.mark.skipif(len(ISAS) == 1, reason="there is no other set")
def test_set_whose_bf16_products_deviate_is_named_left_out_and_not_missed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a machine whose best set fails its self-test: the next one computes the same bits."""
    spec, weights = tiny_spec(KIND_MODEL), memory_weights(KIND_MODEL)
    expected = last_logits_of(native_scheduler(spec, weights, dtype="bf16"), "r", 40)
    assert not any("products" in line for line in caplog.messages)
    monkeypatch.setattr("hotseat.runner._native.supported_isas", lambda: ISAS[:-1])
    monkeypatch.setattr("hotseat.runner._native.rejected_isas", lambda: ISAS[-1:])
    scheduler = native_scheduler(spec, weights, dtype="bf16")
    assert scheduler.runner.isa == ISAS[-2]
    assert [line for line in caplog.messages if line.startswith(f"{ISAS[-1]} is not used: its bf16 products")]
    actual = last_logits_of(scheduler, "r", 40)
    assert np.array_equal(actual.view(np.uint32), expected.view(np.uint32))
    with pytest.raises(ConfigError, match=f"isa {ISAS[-1]} is on this machine, but its bf16 products"):
        native_scheduler(spec, weights, dtype="bf16", isa=ISAS[-1])


def test_threads_are_as_many_as_asked_for_and_by_default_no_more_than_may_be_used() -> None:
    assert 1 <= default_threads() <= len(os.sched_getaffinity(0))
    for threads in (1, 3, None):
        scheduler = native_scheduler(tiny_spec(KIND_MODEL), memory_weights(KIND_MODEL), threads=threads)
        assert scheduler.runner.num_threads == (threads or default_threads())


@pytest.mark.parametrize(("threads", "warns"), [(3, True), (2, False), (None, False)])
def test_more_threads_than_cpus_are_warned_of(
    threads: int | None, warns: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    native_scheduler(tiny_spec(KIND_MODEL), memory_weights(KIND_MODEL), threads=threads)
    assert any("only 2 CPUs may be used" in line for line in caplog.messages) == warns


def test_closed_runner_may_be_closed_again() -> None:
    runner = native_scheduler(tiny_spec(KIND_MODEL), memory_weights(KIND_MODEL)).runner
    runner.close()
    runner.close()
