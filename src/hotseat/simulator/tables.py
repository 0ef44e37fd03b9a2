"""The tables that people read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hotseat.simulator.summary import Group, Slo, Spread, Summary

__all__ = ["format_comparison", "format_summary"]

WIDTH = 24
CELL = 12


def format_summary(summary: Summary, slo: Slo | None, num_seats: int) -> str:
    """Return the table of one run."""
    whole = summary.all
    lines = [
        _line("requests", _describe_requests(whole)),
        *_refusals(summary),
        _line("duration", f"{summary.duration_s:.3f} s, {100 * summary.busy_share:.1f} % of it in steps"),
        _line("steps", f"{summary.num_steps} ({summary.num_request_steps} request-steps)"),
        _line(
            "throughput",
            f"{whole.request_throughput:.3f} requests/s, {whole.prompt_throughput:.1f} prompt tokens/s, "
            f"{whole.output_throughput:.1f} output tokens/s",
        ),
    ]
    if slo is not None:
        lines.append(_line("goodput", f"{_describe_goodput(whole)} ({slo})"))
    if whole.num_with_deadline:
        lines.append(_line("deadlines met", f"{whole.num_met_deadline} of {whole.num_with_deadline}"))
    causes = ", ".join(f"{cause} {count}" for cause, count in sorted(summary.preemptions.items()))
    lines += [
        _line("preemptions", f"{sum(summary.preemptions.values())}" + (f" ({causes})" if causes else "")),
        _line("seat use", f"{100 * summary.seat_use:.1f} % of {num_seats}"),
        _line("budget use", f"{100 * summary.budget_use:.1f} %"),
        _line("prefix hits", f"{_cached_share(whole)} of {whole.num_prompt_tokens} prompt tokens"),
        "",
        _row("milliseconds", ["mean", "p50", "p90", "p99", "max"]),
    ]
    for name, spread in (
        ("TTFT", whole.ttft_ms),
        ("TPOT", whole.tpot_ms),
        ("ITL", summary.itl_ms),
        ("E2E", whole.e2e_ms),
    ):
        lines.append(_row(name, _cells(spread)))
    lines += _groups("tenant", summary.tenants) + _groups("priority", summary.priorities)
    return "\n".join(lines) + "\n"


def format_comparison(summaries: Mapping[str, Summary], slo: Slo | None) -> str:
    """Return a table with a column for each run."""
    columns = list(summaries.values())
    width = max(CELL, *(len(name) + 2 for name in summaries))
    rows: list[tuple[str, Callable[[Summary], str]]] = [
        ("completed", lambda run: str(run.all.num_completed)),
        ("refused", lambda run: str(run.all.num_refused)),
        ("timed out or failed", lambda run: str(run.all.num_timed_out + run.all.num_failed)),
        ("duration s", lambda run: f"{run.duration_s:.1f}"),
        ("requests/s", lambda run: f"{run.all.request_throughput:.3f}"),
        ("output tokens/s", lambda run: f"{run.all.output_throughput:.1f}"),
    ]
    if slo is not None:
        rows += [
            ("goodput requests/s", lambda run: f"{run.all.goodput or 0:.3f}"),
            ("met the SLO", lambda run: f"{100 * (run.all.slo_attainment or 0):.1f} %"),
        ]
    spreads: list[tuple[str, Callable[[Summary], Spread | None]]] = [
        ("TTFT", lambda run: run.all.ttft_ms),
        ("TPOT", lambda run: run.all.tpot_ms),
        ("ITL", lambda run: run.itl_ms),
        ("E2E", lambda run: run.all.e2e_ms),
    ]
    for name, get in spreads:
        for percentile in ("p50", "p90", "p99"):
            rows.append((f"{name} {percentile} ms", _percentile(get, percentile)))
    rows += [
        ("preemptions", lambda run: str(sum(run.preemptions.values()))),
        ("seat use", lambda run: f"{100 * run.seat_use:.1f} %"),
        ("prefix hits", lambda run: _cached_share(run.all)),
    ]
    lines = [f"SLO: {slo}"] if slo is not None else []
    lines.append(_row("", list(summaries), width))
    lines += [_row(name, [get(run) for run in columns], width) for name, get in rows]
    for kind in ("tenant", "priority"):
        lines += _compared_groups(kind, columns, slo, width)
    return "\n".join(lines) + "\n"


def _percentile(get: Callable[[Summary], Spread | None], name: str) -> Callable[[Summary], str]:
    def cell(run: Summary) -> str:
        spread = get(run)
        return "-" if spread is None else f"{getattr(spread, name):.1f}"

    return cell


def _compared_groups(kind: str, columns: Sequence[Summary], slo: Slo | None, width: int) -> list[str]:
    parts: list[Mapping[str, Group]] = [_named(run.tenants if kind == "tenant" else run.priorities) for run in columns]
    names = list(dict.fromkeys(name for part in parts for name in part))
    if len(names) < 2:
        return []
    lines = []
    for name in names:
        groups = [part.get(name) for part in parts]
        label = f"{kind} {name}"
        ttft = [f"{group.ttft_ms.p99:.1f}" if group and group.ttft_ms else "-" for group in groups]
        lines.append(_row(f"{label} TTFT p99", ttft, width))
        if slo is not None:
            goodput = [f"{group.goodput or 0:.3f}" if group else "-" for group in groups]
            lines.append(_row(f"{label} goodput", goodput, width))
    return ["", *lines]


def _named(groups: Mapping[str, Group] | Mapping[int, Group]) -> dict[str, Group]:
    return {str(name) if name != "" else "(none)": group for name, group in groups.items()}


def _groups(kind: str, groups: Mapping[str, Group] | Mapping[int, Group]) -> list[str]:
    """Return a table with a line for each group; nothing when there is only one."""
    if len(groups) < 2:
        return []
    has_slo = any(group.goodput is not None for group in groups.values())
    head = ["requests", "completed", "output tok", "preempted", "TTFT p50", "p90", "p99", "TPOT p50", "p99", "E2E p99"]
    lines = ["", _row(kind, head + (["goodput/s", "met SLO"] if has_slo else []), 11)]
    for name, group in _named(groups).items():
        cells = [
            str(group.num_requests),
            str(group.num_completed),
            str(group.num_output_tokens),
            str(group.num_preemptions),
            *(_cell(group.ttft_ms, percentile) for percentile in ("p50", "p90", "p99")),
            *(_cell(group.tpot_ms, percentile) for percentile in ("p50", "p99")),
            _cell(group.e2e_ms, "p99"),
        ]
        if has_slo:
            cells += [f"{group.goodput or 0:.3f}", f"{100 * (group.slo_attainment or 0):.1f} %"]
        lines.append(_row(name, cells, 11))
    return lines


def _cell(spread: Spread | None, name: str) -> str:
    return "-" if spread is None else f"{getattr(spread, name):.1f}"


def _cells(spread: Spread | None) -> list[str]:
    return [_cell(spread, name) for name in ("mean", "p50", "p90", "p99", "max")]


def _describe_requests(group: Group) -> str:
    words = [f"{group.num_completed} completed"]
    for count, word in (
        (group.num_cut, "of them cut at the longest sequence"),
        (group.num_refused, "refused"),
        (group.num_aborted, "aborted"),
        (group.num_timed_out, "timed out"),
        (group.num_failed, "failed"),
    ):
        if count:
            words.append(f"{count} {word}")
    return f"{group.num_requests}: " + ", ".join(words)


def _describe_goodput(group: Group) -> str:
    return f"{group.goodput or 0:.3f} requests/s, {100 * (group.slo_attainment or 0):.1f} % met the SLO"


def _refusals(summary: Summary) -> list[str]:
    lines = [_line(f"refused: {kind}", str(count)) for kind, count in summary.refused.items()]
    lines += [f"  {refusal['id']}: {refusal['error']}" for refusal in summary.refusals[:5]]
    if len(summary.refusals) > 5:
        lines.append(f"  … {summary.all.num_refused - 5} more")
    return lines


def _cached_share(group: Group) -> str:
    return f"{100 * group.num_cached_tokens / max(1, group.num_prompt_tokens):.1f} %"


def _line(name: str, text: str) -> str:
    return f"{name:<{WIDTH}}{text}"


def _row(name: str, cells: Sequence[str], width: int = CELL) -> str:
    return f"{name:<{WIDTH}}" + "".join(f"{cell:>{width}}" for cell in cells)
