"""The least time that bytes and operations take, and the sizes of the caches."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("hotseat.runner._native")

from hotseat.core.batch import Batch, Chunk
from hotseat.core.request import RequestId
from hotseat.models.spec import ExpertsSpec, LayerSpec
from hotseat.roofline.limits import LimitMeter, Limits, Work, last_level_cache_bytes
from hotseat.roofline.parts import Path as ComputePath
from hotseat.roofline.parts import Sample, StepPoint, StepSize, step_size
from hotseat.roofline.points import Point
from hotseat.roofline.shapes import attention_operations, kv_bytes_per_token, linear_shapes
from hotseat.runner._native import supported_isas
from runner.hand_batches import tiny_spec
from tiny_models import TinyLlama

SPEC = tiny_spec(
    TinyLlama(
        hidden_size=32, intermediate_size=48, num_heads=4, num_kv_heads=2, head_dim=16, num_layers=3, vocab_size=300
    )
)
LIMITS = Limits(bytes_per_s=1e9, operations_per_s={"avx2": {"int8": 4e9, "bf16": 2e9}})


def test_the_slower_of_memory_and_arithmetic_is_the_limit() -> None:
    reads = Work(num_bytes=2_000_000, num_operations=4_000_000, dtype="int8")
    multiplies = Work(num_bytes=2_000_000, num_operations=40_000_000, dtype="int8")
    assert LIMITS.least_seconds(reads, "avx2", 1e9) == pytest.approx(0.002)
    assert LIMITS.least_seconds(multiplies, "avx2", 1e9) == pytest.approx(0.01)


def test_a_point_is_compared_with_the_bandwidth_of_its_moment() -> None:
    point = Point(
        kind="linear",
        name="qkv",
        size=1,
        dtype="int8",
        isa="avx2",
        work=Work(num_bytes=1_000_000, num_operations=0, dtype="int8"),
        seconds=[0.004, 0.002, 0.01],
        bytes_per_s=[5e8, 1e9, 1e8],
    )
    assert point.chosen("median") == (0.004, 5e8)
    assert point.share(LIMITS, "median") == pytest.approx(0.5)
    assert point.chosen("best") == (0.002, 1e9)
    assert point.limit_s(LIMITS, "best") == pytest.approx(0.001)
    assert point.share(LIMITS, "best") == pytest.approx(0.5)


def test_the_shapes_of_a_model_hold_all_its_matrices() -> None:
    shapes = {shape.name: shape for shape in linear_shapes(SPEC)}
    sizes = {name: (shape.in_features, shape.num_outputs, shape.count) for name, shape in shapes.items()}
    assert sizes == {
        "qkv": (32, 64 + 32 + 32, 3),
        "attention output": (64, 32, 3),
        "gate and up": (32, 96, 3),
        "down": (48, 32, 3),
        "output head": (32, 300, 1),
    }
    assert shapes["down"].num_operations(5) == 2 * 48 * 32 * 5


def test_of_experts_only_those_that_a_step_reads_count() -> None:
    experts = ExpertsSpec(count=8, per_token=2, intermediate_size=16, shared_intermediate_size=24)
    layers = (LayerSpec(), LayerSpec(has_experts=True), LayerSpec(has_experts=True))
    spec = replace(SPEC, experts=experts, layers=layers)
    shapes = {shape.name: shape for shape in linear_shapes(spec)}
    assert shapes["gate and up"].count == 1
    assert (shapes["expert: gate and up"].num_outputs, shapes["expert: gate and up"].count) == (32, 16)
    assert shapes["shared expert: down"].slots == ("layers.1.shared_down",)
    num_weights = sum(shape.num_weights * shape.count for shape in shapes.values())
    path = ComputePath(spec=spec, dtype="int8", kv_dtype="bf16", isa="avx2", weight_bytes=num_weights)
    one_expert = 32 * 32 + 16 * 32
    rows = {
        count: path.work(StepSize(num_rows=4, num_samples=0, num_kv_positions=4, num_pairs=4, num_experts=count))[0]
        for count in (16, 6)
    }
    assert rows[16].num_bytes - rows[6].num_bytes == 10 * one_expert
    dense = sum(shape.num_weights * shape.count for shape in shapes.values() if shape.used == 1) - 32 * 300
    assert rows[6].num_operations == rows[16].num_operations == 2 * 4 * (dense + 2 * 2 * one_expert)


def test_attention_counts_a_product_for_scores_and_one_for_values() -> None:
    assert attention_operations(SPEC, 10) == 3 * 4 * 16 * 10 * 4
    assert kv_bytes_per_token(SPEC, "bf16") == 3 * 2 * 2 * 16 * 2
    assert kv_bytes_per_token(SPEC, "fp32") == 2 * kv_bytes_per_token(SPEC, "bf16")


def test_the_size_of_a_step_is_that_of_its_chunks() -> None:
    chunks = [
        Chunk(0, RequestId("decodes"), 9, 10, samples=True),
        Chunk(1, RequestId("begins"), 0, 4, samples=False),
    ]
    size = step_size(Batch(step=0, chunks=chunks))
    # The decode sees 10 positions, the rows of the prefill 1 + 2 + 3 + 4.
    assert size == StepSize(num_rows=5, num_samples=1, num_kv_positions=14, num_pairs=20)


def test_the_limit_of_a_step_adds_layers_head_and_attention() -> None:
    path = ComputePath(spec=SPEC, dtype="int8", kv_dtype="bf16", isa="avx2", weight_bytes=100_000)
    size = StepSize(num_rows=1, num_samples=1, num_kv_positions=1000, num_pairs=1000)
    layers, attention, head = path.work(size)
    assert layers.num_bytes + head.num_bytes == 100_000
    head_weights, layer_weights = 32 * 300, 3 * (32 * 128 + 64 * 32 + 32 * 96 + 48 * 32)
    assert head.num_bytes == 100_000 * head_weights // (head_weights + layer_weights)
    assert attention == Work(num_bytes=1000 * 384, num_operations=attention_operations(SPEC, 1000), dtype="bf16")
    expected = sum(LIMITS.least_seconds(work, "avx2", 5e8) for work in (layers, attention, head))
    assert path.limit_s(LIMITS, [size, size], 5e8) == pytest.approx(2 * expected)
    silent = StepSize(num_rows=8, num_samples=0, num_kv_positions=8, num_pairs=36)
    assert len(path.work(silent)) == 2, "no logits where nothing is sampled"


def test_the_parts_of_a_step_add_up_to_its_whole() -> None:
    native = {"linear": 0.004, "attention": 0.001}
    sample = Sample(total_s=0.01, scheduling_s=0.001, runner_s=0.002, native_s=native, sizes=(), bytes_per_s=1e9)
    assert sample.loop_s == pytest.approx(0.002)
    path = ComputePath(spec=SPEC, dtype="int8", kv_dtype="bf16", isa="avx2", weight_bytes=100_000)
    slow = Sample(total_s=0.03, scheduling_s=0.001, runner_s=0.002, native_s=native, sizes=(), bytes_per_s=1e9)
    slower = Sample(total_s=0.04, scheduling_s=0.001, runner_s=0.002, native_s=native, sizes=(), bytes_per_s=1e9)
    point = StepPoint(kind="decode", size=8, context=160, path=path, samples=[slower, sample, slow])
    assert point.chosen("best") is sample
    assert point.chosen("median") is slow
    assert point.tokens_per_s("best") == pytest.approx(800)


def test_caches_that_are_shared_count_once(tmp_path: Path) -> None:
    for cpu, shared_by in ((0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")):
        for index, (level, size) in enumerate(((1, "32K"), (2, "1024K"), (3, "16384K"))):
            directory = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            directory.mkdir(parents=True)
            (directory / "level").write_text(f"{level}\n")
            (directory / "size").write_text(f"{size}\n")
            (directory / "shared_cpu_list").write_text(f"{shared_by if level == 3 else cpu}\n")
    assert last_level_cache_bytes(tmp_path) == 2 * 16384 * 1024
    assert last_level_cache_bytes(tmp_path / "nowhere") > 0


@pytest.mark.parametrize("threads", [1, 2])
def test_every_limit_of_every_instruction_set_is_measured(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotseat.roofline.limits.last_level_cache_bytes", lambda: 1 << 18)
    isas = list(supported_isas())
    meter = LimitMeter(isas=isas, dtypes=["bf16", "fp32", "int8"], threads=threads)
    meter.measure_arithmetic()
    assert meter.measure_memory() > 0
    limits = meter.limits()
    assert limits.bytes_per_s > 0
    assert list(limits.operations_per_s) == isas
    assert all(rate > 0 for peaks in limits.operations_per_s.values() for rate in peaks.values())
