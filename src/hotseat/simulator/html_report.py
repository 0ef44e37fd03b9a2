"""Reports as one HTML file with plots in it; matplotlib, which draws them, comes with ``hotseat[report]``."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotseat.errors import ConfigError
from hotseat.simulator.summary import Slo, Spread

if TYPE_CHECKING:
    from hotseat.simulator.tune import Candidate

__all__ = ["write_tuning_report"]

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }}
table {{ border-collapse: collapse }} td, th {{ padding: .2em .8em; text-align: right; border-bottom: 1px solid #ccc }}
td:last-child, th:last-child {{ text-align: left; font-family: monospace }} svg {{ max-width: 100%; height: auto }}
</style></head><body><h1>{title}</h1><p>{summary}</p>{plots}<table>{rows}</table></body></html>
"""


def write_tuning_report(path: Path, candidates: Sequence[Candidate], slo: Slo) -> None:
    """Write what a search found: its candidates as points and as a table, the best first.

    Raises:
        ConfigError: matplotlib is missing, or the file cannot be written.
    """
    plots = [_figure(lambda axes: _tradeoff(axes, candidates)), _figure(lambda axes: _latencies(axes, candidates))]
    heads = ("meets it", "goodput/s", "tokens/s", "TTFT p50 ms", "p99", "TPOT p50 ms", "p99", "options")
    rows = "<tr>" + "".join(f"<th>{name}</th>" for name in heads) + "</tr>"
    rows += "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(one)) + "</tr>" for one in candidates
    )
    summary = f"{len(candidates)} configurations were simulated for the target {slo}."
    page = _PAGE.format(title="Hotseat: tuning", summary=escape(summary), plots="".join(plots), rows=rows)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"html {str(path)!r} cannot be written: {error}") from None


def _figure(draw: Callable[[Any], None]) -> str:
    """Return a figure as SVG to stand in HTML."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"html needs matplotlib ({error}): pip install 'hotseat[report]'") from None
    with mpl.rc_context({"svg.hashsalt": "hotseat"}):
        figure = Figure(figsize=(8, 4), layout="constrained")
        draw(figure.add_subplot())
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    return text[text.index("<svg") :]


def _tradeoff(axes: Any, candidates: Sequence[Candidate]) -> None:
    goodput = [one.summary.all.goodput or 0.0 for one in candidates]
    axes.scatter([one.summary.all.output_throughput for one in candidates], goodput, color="0.6")
    axes.scatter([candidates[0].summary.all.output_throughput], goodput[:1], color="tab:orange", label="best")
    begin = next(one for one in candidates if not one.changes).summary.all
    axes.scatter([begin.output_throughput], [begin.goodput or 0.0], color="tab:blue", label="options as they are")
    axes.set(xlabel="output tokens/s", ylabel="requests/s that met the target", title="What each configuration gives")
    axes.legend()


def _latencies(axes: Any, candidates: Sequence[Candidate]) -> None:
    for one, color in ((candidates[0], "tab:orange"), (next(o for o in candidates if not o.changes), "tab:blue")):
        spread = one.summary.all.ttft_ms
        if spread is not None:
            axes.plot(
                [50, 90, 99, 100],
                [spread.p50, spread.p90, spread.p99, spread.max],
                "o-",
                color=color,
                label=one.describe()[:60],
            )
    axes.set(xlabel="percent of the requests", ylabel="TTFT, ms", yscale="log", title="Time to the first token")
    axes.legend()


def _cells(one: Candidate) -> list[str]:
    group = one.summary.all

    def numbers(spread: Spread | None) -> list[str]:
        return ["–", "–"] if spread is None else [f"{spread.p50:.1f}", f"{spread.p99:.1f}"]

    return [
        f"{100 * one.attainment:.1f} %",
        f"{group.goodput or 0:.3f}",
        f"{group.output_throughput:.1f}",
        *numbers(group.ttft_ms),
        *numbers(group.tpot_ms),
        one.describe(),
    ]
