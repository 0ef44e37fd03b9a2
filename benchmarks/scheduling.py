"""Compare batching modes and policies in the simulator, on a trace that is scaled to what the simulated machine can do.

python benchmarks/scheduling.py AzureLLMInferenceTrace_conv.csv --profile accelerator --save azure-conv

1. All requests at once: requests per second at saturation.
2. The trace at 85 % of that rate: continuous, dynamic and static batching.
3. The trace at 120 % of that rate: policies.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from saving import save

SCHEMA = "hotseat.benchmarks.scheduling/1"
UNKNOWN_LENGTH = ["--max-tokens", "2048"]  # what every request asks for: the length of an answer is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A machine with a model, and what its users expect."""

    what: str
    options: tuple[str, ...]
    slo: str
    deadline_ms: str


PROFILES = {
    "accelerator": Profile(
        what="about one 80 GB accelerator with 8 billion 16-bit weights: 10 ms to read them, 40 µs a token to compute",
        options=(
            *("--step-cost", "0.01,0.00004,1e-8", "--max-num-seqs", "256", "--max-num-batched-tokens", "2048"),
            *("--num-kv-blocks", "30000"),
        ),
        slo="ttft:1000,tpot:100",
        deadline_ms="1000",
    ),
    "default-model": Profile(
        what="about the default model on two cores of a server CPU; everything else is the simulator's default",
        options=("--step-cost", "0.004,0.0004,5e-7"),
        slo="ttft:2000,tpot:250",
        deadline_ms="2000",
    ),
}


def simulate(trace: Path, *words: str) -> dict[str, Any]:
    """Run ``hotseat simulate`` and return its document; the command line in it names the trace without its folder."""
    command = ["hotseat", "simulate", "--requests", str(trace), "--json", *words]
    out = subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.PIPE).stdout
    document: dict[str, Any] = json.loads(out)
    document["command"] = shlex.join(command).replace(str(trace), trace.name)
    document["options"]["requests"] = trace.name
    return document


def summaries(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: run["summary"] for name, run in document["runs"].items()}


def print_row(name: str, summary: dict[str, Any], base: float) -> None:
    whole = summary["all"]
    goodput, ttft, tpot = whole["goodput"], whole["ttft_ms"], whole["tpot_ms"]
    ratio = f"{goodput / base:.1f}×" if base else "-"
    cells = [name, f"{goodput:.3f}", ratio, f"{100 * whole['slo_attainment']:.1f} %"]
    cells += [f"{ttft['p50']:.0f}", f"{ttft['p99']:.0f}", f"{tpot['p50']:.0f}", f"{tpot['p99']:.0f}"]
    sys.stdout.write("| " + " | ".join(cells) + " |\n")
    sys.stdout.flush()


def print_head(title: str) -> None:
    heads = ["", "goodput/s", "ratio", "met the SLO", "TTFT p50 ms", "p99", "TPOT p50 ms", "p99"]
    sys.stdout.write(f"\n{title}\n\n| " + " | ".join(heads) + " |\n|---|" + "---:|" * (len(heads) - 1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--profile", choices=list(PROFILES), default="accelerator")
    parser.add_argument("--limit", type=int, help="take only so many requests")
    parser.add_argument("--save", metavar="NAME", help="keep everything as results/scheduling-NAME-PROFILE.json")
    chosen = parser.parse_args()
    profile = PROFILES[chosen.profile]
    words = [*profile.options, *UNKNOWN_LENGTH, *(["--limit", str(chosen.limit)] if chosen.limit else [])]
    sys.stdout.write(f"{profile.what}\nSLO {profile.slo}\n")

    at_once = simulate(chosen.trace, *words, "--speedup", "1000000")
    (whole,) = summaries(at_once).values()
    saturation = whole["all"]["request_throughput"]
    span_s = arrival_span_s(chosen.trace, chosen.limit)
    rate = whole["all"]["num_requests"] / span_s
    sys.stdout.write(f"the trace has {rate:.3f} requests/s, saturation is at {saturation:.3f} requests/s\n")
    documents = [at_once]

    def compare(share: float, *more: str) -> dict[str, dict[str, Any]]:
        speedup = f"{share * saturation / rate:.4g}"
        document = simulate(chosen.trace, *words, "--slo", profile.slo, "--speedup", speedup, *more)
        documents.append(document)
        return summaries(document)

    print_head("85 % of saturation")
    modes = compare(0.85, "--compare", "continuous,dynamic,static")
    for name, summary in modes.items():
        print_row(name, summary, modes["dynamic"]["all"]["goodput"])
    print_head("120 % of saturation")
    deadline = ("--default-deadline-ms", profile.deadline_ms)
    policies = compare(1.2, "--compare-policy", "fcfs,sjf,deadline", *deadline)
    for name, summary in policies.items():
        print_row(name, summary, policies["fcfs"]["all"]["goodput"])
    if chosen.save:
        save(
            f"scheduling-{chosen.save}-{chosen.profile}",
            chosen,
            schema=SCHEMA,
            trace=chosen.trace.name,
            profile={"name": chosen.profile, **asdict(profile)},
            trace_rate=rate,
            saturation_rate=saturation,
            runs=documents,
        )


def arrival_span_s(trace: Path, limit: int | None) -> float:
    """Return the seconds from the first arrival to the last."""
    from hotseat.simulator import read_arrivals

    arrivals = read_arrivals(trace, block_size=16, limit=limit)
    return arrivals[-1].arrival_s - arrivals[0].arrival_s


if __name__ == "__main__":
    main()
