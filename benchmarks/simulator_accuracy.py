"""Compare the simulator's prediction with what was measured, for several loads on the real server.

One run teaches the step cost of this model on this machine. Every other load is measured through HTTP, and simulated
with that cost from its arrival times, lengths and shared prefixes alone; errors are predicted / measured - 1.

python benchmarks/simulator_accuracy.py --seconds 25 --save simulator-accuracy -- --dtype int8
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hotseat.core.config import SchedulerConfig
from hotseat.simulator.calibration import LearnedCost
from hotseat.simulator.config import SimulateOptions
from hotseat.simulator.observer import Observer
from hotseat.simulator.prediction import chosen_cost, simulate_with
from hotseat.simulator.trace_files import read_arrivals
from saving import add_option, save
from server_process import running_server

SEATS, BUDGET, BLOCKS = 32, 512, 4096
SERVER = ["--max-num-seqs", str(SEATS), "--max-num-batched-tokens", str(BUDGET), "--num-kv-blocks", str(BLOCKS)]
NUM_SHORTEST = 24  # requests of a load at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    name: str
    share: float | None = None  # of the rate at which the server is saturated; None: a closed loop
    concurrency: int | None = None
    policy: str = "fcfs"
    bench: tuple[str, ...] = ()


LOADS = (
    Load(name="rate 0.3", share=0.3),
    Load(name="rate 0.6", share=0.6),
    Load(name="rate 0.9", share=0.9),
    Load(name="rate 1.3", share=1.3),
    Load(name="8 in flight", concurrency=8),
    Load(name="long beside short", share=0.5, bench=("--input-len", "300~1.2")),
    Load(name="rate 1.3, sjf", share=1.3, policy="sjf"),
)


def run(load: Load, rate: float, seconds: float, folder: Path, options: list[str], seed: int) -> dict[str, Any]:
    """Measure one load; its records stay in ``folder``."""
    folder.mkdir()
    files = ["--record", str(folder / "steps.jsonl"), "--record-requests", str(folder / "requests.jsonl")]
    command = [sys.executable, "-m", "hotseat", "bench", "serve", "--output-json", str(folder / "report.json")]
    if load.share is None:
        command += ["--max-concurrency", str(load.concurrency)]
        count = rate * seconds
    else:
        command += ["--request-rate", f"{load.share * rate:.4f}"]
        count = load.share * rate * seconds
    command += ["--num-prompts", str(max(NUM_SHORTEST, round(count))), "--seed", str(seed), *load.bench]
    with running_server([*SERVER, *files, "--scheduling-policy", load.policy, *options]) as server:
        subprocess.run([*command, "--url", server.url], check=True, stdout=sys.stderr)
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def measured(report: dict[str, Any]) -> dict[str, float]:
    good = [one for one in report["requests"] if one["error"] is None]
    first = min(one["sent_s"] for one in good)
    seconds = max(one["chunks_s"][-1] for one in good) - first
    ttft = [one["chunks_s"][0] - one["sent_s"] for one in good]
    tpot = [(one["chunks_s"][-1] - one["chunks_s"][0]) / (one["output_tokens"] - 1) for one in good]
    return _numbers(sum(one["output_tokens"] for one in good) / seconds, ttft, tpot)


def predicted(folder: Path, load: Load, cost: LearnedCost) -> dict[str, float]:
    arrivals = read_arrivals(folder / "requests.jsonl", block_size=16)
    config = SchedulerConfig(
        max_model_len=min(8192, BLOCKS * 16),
        num_kv_blocks=BLOCKS,
        max_num_seqs=SEATS,
        max_num_batched_tokens=BUDGET,
        scheduling_policy=load.policy,
    )
    observer = Observer()
    simulate_with(config, arrivals, cost, sinks=[observer])
    outcomes = [outcome for outcome in observer.outcomes if outcome.is_completed]
    seconds = max(one.finished_at for one in outcomes) - min(one.arrived_at for one in outcomes)
    tokens = sum(one.num_output_tokens for one in outcomes)
    tpot = [one.tpot_s for one in outcomes if one.tpot_s is not None]
    return _numbers(tokens / seconds, [one.ttft_s for one in outcomes], tpot)


def _numbers(throughput: float, ttft: list[float], tpot: list[float]) -> dict[str, float]:
    numbers = {"tokens/s": throughput}
    for name, values in (("TTFT", sorted(ttft)), ("TPOT", sorted(tpot))):
        for percent in (50, 99):
            numbers[f"{name} p{percent} ms"] = 1e3 * values[min(len(values) - 1, len(values) * percent // 100)]
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=25.0, help="about how long each load lasts")
    parser.add_argument("--output-len", default="117~0.6", help="output tokens, as `hotseat bench serve` takes them")
    add_option(parser)
    parser.add_argument("options", nargs="*", help="options of the server, after --")
    chosen = parser.parse_args()
    lengths = ("--output-len", chosen.output_len)
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        closed = Load(name="saturation", concurrency=SEATS, bench=lengths)
        saturation = run(closed, 3.0, 12.0, base / "saturation", chosen.options, 1)["summary"]["request_throughput"]
        teacher = Load(name="teacher", share=0.8, bench=lengths)
        run(teacher, saturation, 1.5 * chosen.seconds, base / "teacher", chosen.options, 2)
        files = {"calibrate": "steps.jsonl", "calibrate_requests": "requests.jsonl", "calibrate_bench": "report.json"}
        cost = chosen_cost(SimulateOptions(**{name: base / "teacher" / file for name, file in files.items()}))
        assert isinstance(cost, LearnedCost)
        sys.stdout.write(f"saturated at {saturation:.2f} requests/s; the cost is {cost.describe()}\n\n")
        rows = []
        for number, load in enumerate(LOADS):
            folder = base / str(number)
            load = replace(load, bench=(*load.bench, *lengths))
            report = run(load, saturation, chosen.seconds, folder, chosen.options, 10 + number)
            truth, guess = measured(report), predicted(folder, load, cost)
            errors = {name: guess[name] / truth[name] - 1 for name in truth}
            rows.append({"load": load.name, "measured": truth, "predicted": guess, "errors": errors})
            if number == 0:
                sys.stdout.write("| load | " + " | ".join(truth) + " |\n|---" + "|---:" * len(truth) + "|\n")
            cells = [f"{truth[name]:.1f} ({100 * errors[name]:+.0f} %)" for name in truth]
            sys.stdout.write(f"| {load.name} | " + " | ".join(cells) + " |\n")
            sys.stdout.flush()
        busy = os.getloadavg()
    if chosen.save:
        learned = {"num_steps": cost.num_steps, "median_error": cost.median_error, "p90_error": cost.p90_error}
        learned |= {"entry_s": cost.entry_s, "coefficients": cost.coefficients}
        save(chosen.save, chosen, saturation=saturation, cost=learned, load_average=busy, loads=rows)


if __name__ == "__main__":
    main()
