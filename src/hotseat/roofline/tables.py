"""The tables that people read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from hotseat.roofline.limits import Limits
from hotseat.roofline.parts import StepPoint
from hotseat.roofline.points import Point

__all__ = ["describe_limits", "format_points", "format_steps"]

_SIZE_NAMES = {"linear": "rows", "decode attention": "context", "prefill attention": "context"}


def describe_limits(limits: Limits, threads: int) -> str:
    """Return what the machine can do at most, a line for each instruction set."""
    lines = [
        f"{threads} thread{'s' if threads > 1 else ''} read {limits.bytes_per_s / 1e9:.1f} GB/s from memory at best"
    ]
    for isa, peaks in limits.operations_per_s.items():
        rates = ", ".join(f"{dtype} {rate / 1e9:.0f}" for dtype, rate in peaks.items())
        lines.append(f"and multiply at most, in GOP/s, with {isa}: {rates}")
    return "\n".join(lines) + "\n"


def format_points(points: Sequence[Point], limits: Limits, statistic: str) -> str:
    """Return a table for each kind, dtype and instruction set."""
    lines: list[str] = []
    ordered = sorted(points, key=lambda point: (point.kind != "linear", point.dtype, point.isa, point.kind))
    for (kind, dtype, isa), group in groupby(ordered, key=lambda point: (point.kind, point.dtype, point.isa)):
        lines += ["", f"{kind}, {dtype}, {isa}"]
        lines.append(f"{'':<18}{_SIZE_NAMES[kind]:>8}{'µs':>11}{'GB/s':>9}{'GOP/s':>9}{'limit µs':>11}{'share':>8}")
        lines += _rows(list(group), limits, statistic)
    return "\n".join(lines) + "\n"


def _rows(points: Sequence[Point], limits: Limits, statistic: str) -> Iterator[str]:
    for point in points:
        seconds, _ = point.chosen(statistic)
        yield (
            f"{point.name:<18}{point.size:>8}{1e6 * seconds:>11.1f}{point.work.num_bytes / seconds / 1e9:>9.1f}"
            f"{point.work.num_operations / seconds / 1e9:>9.1f}"
            f"{1e6 * point.limit_s(limits, statistic):>11.1f}"
            f"{100 * point.share(limits, statistic):>7.0f}%"
        )


def format_steps(points: Sequence[StepPoint], limits: Limits, threads: int, statistic: str) -> str:
    """Return a table with a line for each point: rates, and where the milliseconds go."""
    lines = [describe_limits(limits, threads)]
    for (dtype, isa), group in groupby(points, key=lambda point: (point.path.dtype, point.path.isa)):
        rows = list(group)
        kinds = list(rows[0].chosen(statistic).native_s)
        heads = ["tokens/s", "ms", "limit ms", "share", *kinds, "scheduling", "runner", "loop"]
        lines.append(f"{dtype}, {isa}, {rows[0].path.weight_bytes / 1e6:.0f} MB of weights")
        lines.append(f"{'':<18}" + "".join(f"{head:>11}" for head in heads))
        lines += [_step_row(point, kinds, limits, statistic) for point in rows]
        lines.append("")
    lines.append("From linear to other: native work, in ms. Runner is its Python, loop the rest of the step loop.")
    return "\n".join(lines) + "\n"


def _step_row(point: StepPoint, kinds: Sequence[str], limits: Limits, statistic: str) -> str:
    chosen, limit_s = point.chosen(statistic), point.limit_s(limits, statistic)
    name = f"decode {point.size} x {point.context}" if point.kind == "decode" else f"prefill {point.size}"
    cells = [f"{point.tokens_per_s(statistic):.0f}", f"{1e3 * chosen.total_s:.2f}", f"{1e3 * limit_s:.2f}"]
    cells.append(f"{100 * limit_s / chosen.total_s:.0f}%")
    parts = [chosen.native_s[kind] for kind in kinds] + [chosen.scheduling_s, chosen.runner_s, chosen.loop_s]
    return f"{name:<18}" + "".join(f"{cell:>11}" for cell in [*cells, *(f"{1e3 * part:.3f}" for part in parts)])
