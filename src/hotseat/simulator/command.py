"""The command ``hotseat simulate``: read requests or records, run, print tables, write JSON."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import IO, Any

from hotseat.core.batch import RequestUpdate
from hotseat.core.config import SchedulerConfig, default_token_budget
from hotseat.core.events import EventSink, StepRecord
from hotseat.core.kv_layout import KvLayout
from hotseat.core.policy import Policy
from hotseat.errors import ConfigError
from hotseat.simulator.arrivals import Arrival
from hotseat.simulator.calibration import LearnedCost
from hotseat.simulator.config import SimulateOptions
from hotseat.simulator.observer import Observer
from hotseat.simulator.prediction import chosen_cost, simulate_with
from hotseat.simulator.replay import read_records, replay
from hotseat.simulator.step_cost import StepCost
from hotseat.simulator.summary import Slo, Summary, summarize
from hotseat.simulator.tables import format_comparison, format_summary
from hotseat.simulator.trace_files import read_arrivals
from hotseat.telemetry import RecordWriter

__all__ = ["PolicyMaker", "chosen_arrivals", "run_once", "scheduler_config", "simulate"]

SCHEMA = "hotseat.simulate/1"
REPLAY_SCHEMA = "hotseat.replay/1"
PolicyMaker = Callable[[SchedulerConfig], Policy | None]


def chosen_arrivals(path: Path, options: SimulateOptions, config: SchedulerConfig) -> list[Arrival]:
    """Return the requests of the file ``path`` as ``options`` ask for them.

    Raises:
        HotseatError: the file cannot be read.
    """
    return read_arrivals(
        path,
        block_size=config.block_size,
        content_block=options.content_block,
        speedup=options.speedup,
        limit=options.limit,
    )


def scheduler_config(options: SimulateOptions, values: Mapping[str, Any]) -> SchedulerConfig:
    """Return the scheduler's configuration: ``values`` are its options that were chosen, by name.

    Raises:
        ConfigError: a value is out of range.
    """
    known = {entry.name: entry.default for entry in fields(SchedulerConfig)}
    chosen = {name: value for name, value in values.items() if name in known}
    chosen["num_kv_blocks"] = options.num_kv_blocks
    chosen["kv_layout"] = KvLayout.parse(options.kv_layout)
    chosen["max_model_len"] = options.max_model_len or 1
    seats = chosen.get("max_num_seqs", known["max_num_seqs"])
    chosen.setdefault("max_num_batched_tokens", default_token_budget(seats))
    config = SchedulerConfig(**chosen)
    return config if options.max_model_len else replace(config, max_model_len=max(1, config.max_cached_tokens))


def simulate(options: SimulateOptions, config: SchedulerConfig, make_policy: PolicyMaker, *, command: str) -> int:
    """Run what ``options`` say, print the result, and return the exit status.

    ``make_policy`` returns the object for a policy that is not built in, else ``None``. ``command`` is the command line
    that JSON output quotes.

    Raises:
        HotseatError: an option is wrong, or a file cannot be read or written.
    """
    cost = chosen_cost(options)
    if options.requests is None:
        if options.save_step_cost is not None:
            sys.stdout.write(f"{options.save_step_cost}: {cost.describe()}\n")
            return 0
        raise ConfigError("requests is missing: hotseat simulate FILE.jsonl")
    arrivals = chosen_arrivals(options.requests, options, config)
    if options.max_tokens is not None:
        arrivals = [_asking_for(arrival, options.max_tokens) for arrival in arrivals]
    if options.replay is not None:
        return _replay(options, config, arrivals, make_policy)
    runs = _variants(options, config)
    paths = _record_paths(options.record, list(runs))
    started = time.perf_counter()
    slo = None if options.slo is None else Slo.parse(options.slo)
    summaries = {name: run_once(run, arrivals, cost, make_policy(run), slo, paths[name]) for name, run in runs.items()}
    if options.json:
        document = _document(command, options, runs, summaries, time.perf_counter() - started)
        sys.stdout.write(json.dumps(document) + "\n")
        return 0
    sys.stdout.write(_heading(options, cost, len(arrivals)))
    if len(runs) > 1:
        sys.stdout.write(format_comparison(summaries, slo))
    else:
        ((name, summary),) = summaries.items()
        sys.stdout.write(format_summary(summary, slo, runs[name].max_num_seqs))
    return 0


def _asking_for(arrival: Arrival, max_tokens: int) -> Arrival:
    if arrival.max_tokens is not None or not arrival.output_len:
        return arrival
    return replace(arrival, max_tokens=max(max_tokens, arrival.output_len))


def _variants(options: SimulateOptions, config: SchedulerConfig) -> dict[str, SchedulerConfig]:
    """Return the configurations to run, by name."""
    if options.modes:
        return {mode: replace(config, batching=mode) for mode in options.modes}
    if options.policies:
        return {policy: replace(config, scheduling_policy=policy) for policy in options.policies}
    if options.capacity_policies:
        return {capacity: replace(config, capacity_policy=capacity) for capacity in options.capacity_policies}
    return {config.scheduling_policy if config.batching == "continuous" else config.batching: config}


def _record_paths(path: Path | None, names: Sequence[str]) -> dict[str, Path | None]:
    """Return where each run's record goes: OUT.jsonl, or OUT.static.jsonl … when there are several."""
    if path is None or len(names) == 1:
        return dict.fromkeys(names, path)
    return {name: path.with_suffix(f".{name.replace(':', '-')}{path.suffix}") for name in names}


class _Recorder(EventSink):
    """A sink that writes step records and keeps the error: the loop drops a sink that raises, and a record is whole."""

    def __init__(self, file: IO[str]) -> None:
        self.error: OSError | None = None
        self._writer = RecordWriter(file)

    def on_step(self, record: StepRecord, updates: Sequence[RequestUpdate]) -> None:
        if self.error is None:
            try:
                self._writer.on_step(record, updates)
            except OSError as error:
                self.error = error


def run_once(
    config: SchedulerConfig,
    arrivals: Sequence[Arrival],
    cost: StepCost | LearnedCost,
    policy: Policy | None,
    slo: Slo | None,
    record: Path | None = None,
) -> Summary:
    """Simulate ``arrivals`` and work out the numbers; ``record`` is where the steps are written."""
    observer = Observer()
    sinks: list[EventSink] = [observer]
    try:
        with contextlib.ExitStack() as stack:
            recorder = None
            if record is not None:
                recorder = _Recorder(stack.enter_context(record.open("w", encoding="utf-8")))
                sinks.append(recorder)
            simulate_with(config, arrivals, cost, policy, sinks)
            if recorder is not None and recorder.error is not None:
                raise recorder.error
    except OSError as error:
        raise ConfigError(f"record {str(record)!r} cannot be written: {error}") from None
    return summarize(observer, slo, config.max_num_seqs)


def _replay(
    options: SimulateOptions, config: SchedulerConfig, arrivals: Sequence[Arrival], make_policy: PolicyMaker
) -> int:
    """Print what a replay found; the exit status is 1 when a batch differs."""
    assert options.replay is not None, "there is something to replay"
    result = replay(config, arrivals, read_records(options.replay), make_policy(config))
    if options.json:
        sys.stdout.write(json.dumps(asdict(result) | {"schema": REPLAY_SCHEMA, "is_equal": result.is_equal}) + "\n")
        return 0 if result.is_equal else 1
    sys.stdout.write(
        f"{result.num_steps} steps replayed ({result.num_request_steps} request-steps): "
        f"{result.num_equal} with the same batch, {result.num_equal_counts} with the same queue, blocks and budget\n"
    )
    for difference in result.differences:
        sys.stdout.write(f"  {difference}\n")
    return 0 if result.is_equal else 1


def _heading(options: SimulateOptions, cost: StepCost | LearnedCost, num_requests: int) -> str:
    speedup = f", {options.speedup:g} times as fast" if options.speedup != 1 else ""
    return f"{options.requests}: {num_requests} requests{speedup}; a step takes {cost.describe()}\n\n"


def _document(
    command: str,
    options: SimulateOptions,
    runs: Mapping[str, SchedulerConfig],
    summaries: Mapping[str, Summary],
    wall_s: float,
) -> dict[str, Any]:
    chosen = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(options).items()}
    num_request_steps = sum(summary.num_request_steps for summary in summaries.values())
    return {
        "schema": SCHEMA,
        "command": command,
        "wall_s": round(wall_s, 3),
        "request_steps_per_minute": round(60 * num_request_steps / wall_s),
        "options": chosen,
        "runs": {
            name: {"scheduler": asdict(runs[name]), "summary": asdict(summary)} for name, summary in summaries.items()
        },
    }
