"""Time the multiplications and the attention of a model, one at a time, with cold weights and a cold KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from hotseat.models import LoadedModel
from hotseat.roofline.attention import attention_point
from hotseat.roofline.config import WEIGHT_DTYPES, KernelBenchOptions
from hotseat.roofline.limits import LimitMeter, Limits, Work, arithmetic_of, cold_bytes
from hotseat.roofline.pins import Pins
from hotseat.roofline.points import Measure, Point, measure_in_turns, rounded
from hotseat.roofline.shapes import LinearShape, linear_shapes
from hotseat.roofline.tables import describe_limits, format_points
from hotseat.runner import _native
from hotseat.runner.config import resolve_kv_cache_dtype
from hotseat.runner.groups import UNGROUPED_KINDS, matrix_kinds
from hotseat.runner.native import default_threads, resolve_isa

__all__ = ["KernelTimes", "measure"]

_BITS = {"int8": 8, "bf16": 16, "fp32": 32, "gguf": 4}  # a weight, at least
_MAX_COPIES = 1024
_PASS_S = 0.002  # of one measurement: long beside the clock and the barriers, short beside a time slice


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """All points and the limits of the machine."""

    threads: int
    limits: Limits
    points: list[Point]

    def report(self, statistic: str) -> tuple[str, dict[str, Any]]:
        """Return the tables and what goes into the JSON file."""
        text = describe_limits(self.limits, self.threads) + format_points(self.points, self.limits, statistic)
        points = [
            asdict(point)
            | {
                "seconds": rounded(point.seconds),
                "bytes_per_s": rounded(point.bytes_per_s),
                "chosen_s": point.chosen(statistic)[0],
                "limit_s": point.limit_s(self.limits, statistic),
                "share": round(point.share(self.limits, statistic), 4),
            }
            for point in self.points
        ]
        return text, {"threads": self.threads, "limits": asdict(self.limits), "points": points}


@dataclass(slots=True, kw_only=True)
class _Bench:
    """State that all measurements of a run share."""

    options: KernelBenchOptions
    model: LoadedModel
    threads: int
    isas: Sequence[str]
    pins: Pins
    meter: LimitMeter
    points: list[Point] = field(default_factory=list)

    def run(self, jobs: Sequence[tuple[Point, Measure]]) -> None:
        with self.pins.held():
            measure_in_turns(jobs, self.meter, self.options.num_rounds)
        self.points += [point for point, _ in jobs]


def measure(model: LoadedModel, options: KernelBenchOptions) -> KernelTimes:
    """Measure the shapes of ``model``.

    Raises:
        ConfigError: the machine does not have an instruction set.
    """
    dtypes = _dtypes(model, options)
    isas = [resolve_isa(name) for name in options.isas or _fast_isas()]
    threads = options.threads or default_threads()
    kv_dtypes = list(dict.fromkeys(resolve_kv_cache_dtype(dtype, "auto") for dtype in dtypes))
    peaks = sorted({*kv_dtypes, *map(arithmetic_of, dtypes)})  # attention multiplies what is cached
    pins = Pins(enabled=options.pin)
    meter = pins.start(lambda: LimitMeter(isas=isas, dtypes=peaks, threads=threads))
    bench = _Bench(options=options, model=model, threads=threads, isas=isas, pins=pins, meter=meter)
    for dtype in dtypes:
        bench.run(_linear_jobs(bench, dtype))
    for kv_dtype in kv_dtypes:
        for isa in isas:
            for size in options.context_lens:
                for streams, queries in ((options.streams, 1), (1, options.queries)):
                    point = partial(attention_point, model.spec, kv_dtype, isa, size, streams, queries, threads=threads)
                    bench.run([pins.start(point)])
    return KernelTimes(threads=threads, limits=meter.limits(), points=bench.points)


def _fast_isas() -> list[str]:
    supported = list(_native.supported_isas())
    return supported[1:] or supported


def _dtypes(model: LoadedModel, options: KernelBenchOptions) -> list[str]:
    if options.dtypes:
        return options.dtypes
    has_groups = not matrix_kinds(model.spec, model.weights).keys() <= set(UNGROUPED_KINDS)
    return [dtype for dtype in WEIGHT_DTYPES if has_groups or dtype != "gguf"]


def _linear_jobs(bench: _Bench, dtype: str) -> list[tuple[Point, Measure]]:
    """Return the multiplications of one dtype, all shapes, rows and instruction sets; layouts are the same for all."""
    jobs = []
    for shape in linear_shapes(bench.model.spec):
        probe = bench.pins.start(partial(_probe, bench, shape, dtype))
        for rows in bench.options.row_counts:
            for isa in bench.isas:
                count = max(1, int(_PASS_S / probe.seconds(isa, rows, 1)))
                operations = shape.num_operations(rows)
                work = Work(num_bytes=probe.weight_bytes, num_operations=operations, dtype=arithmetic_of(dtype))
                point = Point(kind="linear", name=shape.name, size=rows, dtype=dtype, isa=isa, work=work)
                jobs.append((point, _timing(probe, isa, rows, count)))
    return jobs


def _probe(bench: _Bench, shape: LinearShape, dtype: str) -> _native.LinearProbe:
    """Return copies of the matrix, packed as ``dtype`` from the values in the file: enough to outgrow the caches."""
    tensors = [bench.model.weights[slot] for slot in shape.slots]
    if dtype == "gguf":
        kinds, data = [tensor.kind for tensor in tensors], [tensor.data for tensor in tensors]
    else:  # the values once, as packing many copies would find them out again and again
        kinds, data = ["F32"] * len(tensors), [tensor.dequantize().view(np.uint8) for tensor in tensors]
    num_bytes = shape.num_weights * _BITS[dtype] // 8
    return _native.LinearProbe(
        isa=bench.isas[-1],
        dtype=dtype,
        in_features=shape.in_features,
        kinds=kinds,
        data=data,
        epilogue=shape.epilogue,
        num_copies=min(_MAX_COPIES, 1 + cold_bytes() // num_bytes),
        max_rows=max(bench.options.row_counts),
        threads=bench.threads,
    )


def _timing(probe: _native.LinearProbe, isa: str, rows: int, count: int) -> Measure:
    return lambda: probe.seconds(isa, rows, count)
