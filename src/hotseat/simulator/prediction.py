"""Simulations that predict a machine: the chosen step cost, learned or written, and a run from arrivals alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotseat.core.config import SchedulerConfig
from hotseat.core.events import EventSink
from hotseat.core.policy import Policy
from hotseat.errors import ConfigError
from hotseat.simulator.arrivals import Arrival
from hotseat.simulator.calibration import CostSequence, LearnedCost, calibrate, entry_delay_s
from hotseat.simulator.config import SimulateOptions
from hotseat.simulator.replay import read_records
from hotseat.simulator.simulation import Simulation
from hotseat.simulator.step_cost import StepCost

__all__ = ["chosen_cost", "simulate_with"]


def chosen_cost(options: SimulateOptions) -> StepCost | LearnedCost:
    """Return the step cost that ``options`` name, and write what was learned where they say so.

    Raises:
        HotseatError: a file cannot be read or written, or holds too little.
    """
    if options.calibrate is None:
        if options.step_cost.endswith(".json"):
            return LearnedCost.load(Path(options.step_cost).expanduser())
        return StepCost.parse(options.step_cost)
    records = list(read_records(options.calibrate))
    entry_s = 0.0
    if options.calibrate_requests is not None:
        entry_s += entry_delay_s(_lines(options.calibrate_requests), records)
    if options.calibrate_bench is not None:
        if options.calibrate_requests is None:
            raise ConfigError("calibrate_bench needs calibrate_requests of the same run")
        entry_s += _http_s(options.calibrate_bench, _lines(options.calibrate_requests), records)
    learned = calibrate(records, entry_s)
    if options.save_step_cost is not None:
        learned.save(options.save_step_cost)
    return learned


def simulate_with(
    config: SchedulerConfig,
    arrivals: Iterable[Arrival],
    cost: StepCost | LearnedCost,
    policy: Policy | None = None,
    sinks: Sequence[EventSink] = (),
) -> None:
    """Simulate ``arrivals`` at ``cost``.

    A learned cost predicts: when the engine took requests in, and when their clients left, then follows from it, and is
    not taken from the file.
    """
    if isinstance(cost, StepCost):
        Simulation(config, arrivals, cost=cost, policy=policy, sinks=sinks).run()
        return
    sequence = CostSequence(cost)
    late = [
        replace(arrival, added_s=arrival.arrival_s + cost.entry_s) if arrival.abort_at_s is None else arrival
        for arrival in arrivals
    ]
    Simulation(config, late, cost=sequence, between=sequence.between, policy=policy, sinks=sinks).run()


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for line in lines:
            _ = line["id"], line["arrival_s"], line["added_s"], line["prompt_len"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no file that --record-requests wrote: {error}") from None
    return lines


def _http_s(path: Path, requests: Sequence[dict[str, Any]], records: Sequence[dict[str, Any]]) -> float:
    """Return how much later clients saw first tokens than the engine had them, by the middle of both."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        good = [one for one in report["requests"] if one["error"] is None]
        seen = sorted(float(one["chunks_s"][0] - one["sent_s"]) for one in good)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no report of `hotseat bench serve`: {error}") from None
    prompt_len = {line["id"]: line["prompt_len"] for line in requests}
    first_token: dict[str, float] = {}
    for record in records:
        for chunk in record["scheduled"]:
            if chunk["id"] in prompt_len and chunk["end"] >= prompt_len[chunk["id"]]:
                first_token.setdefault(chunk["id"], record["start_s"] + record["duration_s"])
    had = sorted(first_token[line["id"]] - line["arrival_s"] for line in requests if line["id"] in first_token)
    if not seen or not had:
        raise ConfigError(f"{path} and the record have no first tokens in common")
    share: float = seen[len(seen) // 2] - had[len(had) // 2]
    return max(0.0, share)
