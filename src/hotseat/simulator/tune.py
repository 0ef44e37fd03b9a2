"""The command ``hotseat tune``: scheduler options for a trace and a target, found by simulation.

From the options as they are, one after the other is varied while the others stay, the best value is kept, and again
until nothing gets better: a coordinate search, which needs some thirty simulations. Better is a larger part of requests
that meet the target; among equals, a smaller sum of p99 TTFT and p99 TPOT relative to it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hotseat.core.config import SchedulerConfig
from hotseat.errors import ConfigError
from hotseat.simulator.arrivals import Arrival
from hotseat.simulator.binding import binding_resource
from hotseat.simulator.calibration import LearnedCost
from hotseat.simulator.command import PolicyMaker, chosen_arrivals, run_once, scheduler_config
from hotseat.simulator.config import SimulateOptions
from hotseat.simulator.prediction import chosen_cost
from hotseat.simulator.step_cost import StepCost
from hotseat.simulator.summary import Slo, Summary

__all__ = ["Candidate", "TuneOptions", "search", "tune"]

SEATS = (4, 8, 16, 32, 64, 128, 256)
BUDGETS = (64, 128, 256, 512, 1024, 2048, 4096)
SHARES = (0.0, 0.25, 0.5)
ITL_SHARES = (0.6, 0.9)  # of the target for TPOT
AGING_S = 30.0  # so that sjf starves nobody
NUM_ROUNDS = 3
CHANGE_IS_WORTH = 0.02  # of a target: what a change has to gain to be proposed
NUM_SHOWN = 4
REPLICAS = (2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """Options of ``hotseat tune``: the target and the files of the result; the step cost is that of ``simulate``."""

    output: Path | None = field(default=None, metadata={"help": "write the best options as YAML for `serve --config`"})
    html: Path | None = field(default=None, metadata={"help": "write a report with plots (needs hotseat[report])"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Scheduler options and what they gave."""

    changes: Mapping[str, Any]  # from the options that the search began with
    summary: Summary

    @property
    def attainment(self) -> float:
        """The part of requests that met the target."""
        return self.summary.all.slo_attainment or 0.0

    def rank(self, slo: Slo) -> tuple[float, float]:
        """Return what the search makes small."""
        group, excess = self.summary.all, 0.0
        for spread, bound in ((group.ttft_ms, slo.ttft_s), (group.tpot_ms, slo.tpot_s), (group.e2e_ms, slo.e2e_s)):
            if spread is not None and bound < math.inf:
                excess += spread.p99 / (1000 * bound)
        return -round(self.attainment, 3), round(excess, 2) + CHANGE_IS_WORTH * len(self.changes)

    def describe(self) -> str:
        """Return the changes as flags."""
        return " ".join(_flag(name, value) for name, value in self.changes.items()) or "(the options as they are)"


def tune(
    chosen: TuneOptions,
    options: SimulateOptions,
    values: Mapping[str, Any],
    make_policy: PolicyMaker,
) -> int:
    """Search, print the best few and what binds, and write the files that are asked for.

    ``values`` are the scheduler's options that were chosen: where the search begins. Status 1 says that no options meet
    the target.

    Raises:
        HotseatError: an option is wrong, or a file cannot be read or written.
    """
    if options.requests is None or options.slo is None:
        raise ConfigError("requests and slo are needed: hotseat tune trace.jsonl --slo ttft:1000,tpot:100")
    slo, cost = Slo.parse(options.slo), chosen_cost(options)
    config = scheduler_config(options, values)
    arrivals = chosen_arrivals(options.requests, options, config)
    candidates = search(config, arrivals, cost, slo, make_policy)
    best = candidates[0]
    target = 1.0 - 0.01
    is_met = best.attainment >= target
    sys.stdout.write(f"{len(arrivals)} requests, {slo}; a step takes {cost.describe()}\n")
    sys.stdout.write(
        f"{len(candidates)} configurations simulated; each must let 99 % of the requests meet the target\n\n"
    )
    sys.stdout.write(_table(candidates, slo))
    if not is_met:
        sys.stdout.write(_what_binds(best, config, arrivals, cost, slo, make_policy))
    _write_files(chosen, best, candidates, config, slo)
    return 0 if is_met else 1


def search(
    config: SchedulerConfig,
    arrivals: Sequence[Arrival],
    cost: StepCost | LearnedCost,
    slo: Slo,
    make_policy: PolicyMaker,
) -> list[Candidate]:
    """Return all configurations that were tried, the best first; the one that it began with is among them."""
    tried: dict[tuple[tuple[str, Any], ...], Candidate] = {}

    def attempt(changes: Mapping[str, Any]) -> Candidate:
        key = tuple(sorted(changes.items()))
        if key not in tried:
            changed = replace(config, **changes)
            summary = run_once(changed, arrivals, cost, make_policy(changed), slo)
            tried[key] = Candidate(changes=dict(changes), summary=summary)
        return tried[key]

    best = attempt({})
    for _ in range(NUM_ROUNDS):
        before = best
        for alternatives in _alternatives(config, slo):
            for values in alternatives:
                changes = _without_defaults(config, {**best.changes, **values})
                if _is_valid(config, changes):
                    best = min(best, attempt(changes), key=lambda one: one.rank(slo))
        if best is before:
            break
    return sorted(tried.values(), key=lambda one: one.rank(slo))


def _alternatives(config: SchedulerConfig, slo: Slo) -> Iterator[list[dict[str, Any]]]:
    """Yield for each option, or pair of options that belong together, the values to try."""
    yield [{"max_num_seqs": seats} for seats in SEATS]
    yield [{"max_num_batched_tokens": budget} for budget in BUDGETS]
    yield [{"short_prefill_share": share} for share in SHARES]
    targets = (
        [None] if slo.tpot_s == math.inf else [None, *(round(1000 * share * slo.tpot_s, 3) for share in ITL_SHARES)]
    )
    yield [{"target_itl_ms": target} for target in targets]
    policies: list[dict[str, Any]] = [
        {"scheduling_policy": "fcfs", "aging_s": None},
        {"scheduling_policy": "sjf", "aging_s": AGING_S},
    ]
    if slo.ttft_s < math.inf:
        deadline = {"scheduling_policy": "deadline", "default_deadline_ms": 1000 * slo.ttft_s, "aging_s": None}
        policies.append(deadline)
    yield policies


def _without_defaults(config: SchedulerConfig, changes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if value != getattr(config, name)}


def _is_valid(config: SchedulerConfig, changes: Mapping[str, Any]) -> bool:
    try:
        replace(config, **changes)
    except ConfigError:
        return False
    return True


def _table(candidates: Sequence[Candidate], slo: Slo) -> str:
    """Return the best few and the options as they are, each with what it gains and loses against these."""
    begin = next(one for one in candidates if not one.changes)
    better = [one for one in candidates if one.rank(slo) < begin.rank(slo)]
    shown = [*better[:NUM_SHOWN], begin]
    lines = [f"{'meets it':>9} {'goodput/s':>10} {'tokens/s':>10} {'TTFT p99':>12} {'TPOT p99':>12}   options"]
    for one in shown:
        group = one.summary.all
        ttft, tpot = (spread.p99 if spread else math.nan for spread in (group.ttft_ms, group.tpot_ms))
        lines.append(
            f"{100 * one.attainment:8.1f}% {group.goodput or 0:10.3f} {group.output_throughput:10.1f} {ttft:9.0f} ms "
            f"{tpot:9.1f} ms   {one.describe()}"
        )
    return "\n".join(lines) + "\n" + _gains(shown[0], begin)


def _gains(best: Candidate, begin: Candidate) -> str:
    if best is begin:
        return "\nno change is better than the options as they are\n"
    new, old = best.summary.all, begin.summary.all
    pairs = [
        ("goodput", new.goodput, old.goodput, True),
        ("output tokens/s", new.output_throughput, old.output_throughput, True),
        ("TTFT p99", new.ttft_ms and new.ttft_ms.p99, old.ttft_ms and old.ttft_ms.p99, False),
        ("TPOT p99", new.tpot_ms and new.tpot_ms.p99, old.tpot_ms and old.tpot_ms.p99, False),
    ]
    words: dict[bool, list[str]] = {True: [], False: []}
    for name, now, then, more_is_better in pairs:
        if now and then and abs(now / then - 1) >= 0.01:
            words[(now > then) == more_is_better].append(f"{name} {100 * (now / then - 1):+.0f} %")
    gains, losses = (", ".join(words[kind]) or "nothing" for kind in (True, False))
    return f"\nthe best gains {gains}; it loses {losses}\n"


def _what_binds(
    best: Candidate,
    config: SchedulerConfig,
    arrivals: Sequence[Arrival],
    cost: StepCost | LearnedCost,
    slo: Slo,
    make_policy: PolicyMaker,
) -> str:
    changed = replace(config, **best.changes)
    alone = run_once(changed, [replace(arrivals[0], added_s=None)], cost, make_policy(changed), slo)
    text = f"\nthe target cannot be met: {binding_resource(best.summary, alone, slo)}\n"
    for count in REPLICAS:
        shares = [arrivals[index::count] for index in range(count)]
        met = [
            run_once(changed, share, cost, make_policy(changed), slo).all.slo_attainment for share in shares if share
        ]
        if min(value or 0.0 for value in met) >= 0.99:
            return text + f"{count} replicas, with requests in turns, would meet it\n"
    return text + f"{REPLICAS[-1]} replicas would not meet it either\n"


def _write_files(
    chosen: TuneOptions, best: Candidate, candidates: Sequence[Candidate], config: SchedulerConfig, slo: Slo
) -> None:
    text = "".join(f"{name.replace('_', '-')}: {_yaml(value)}\n" for name, value in best.changes.items())
    if chosen.output is not None:
        try:
            chosen.output.write_text(text or "{}\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"output {str(chosen.output)!r} cannot be written: {error}") from None
        sys.stdout.write(f"\n{chosen.output}: hotseat serve --config {chosen.output}\n")
    else:
        sys.stdout.write(f"\n# hotseat serve --config FILE\n{text}")
    if chosen.html is not None:
        from hotseat.simulator.html_report import write_tuning_report

        write_tuning_report(chosen.html, candidates, slo)
        sys.stdout.write(f"{chosen.html}: the report\n")


def _yaml(value: object) -> str:
    return "null" if value is None else str(value)


def _flag(name: str, value: object) -> str:
    return f"--{name.replace('_', '-')} {'none' if value is None else value}"
