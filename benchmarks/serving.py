"""Measure Hotseat through HTTP at several concurrencies and print one line of a Markdown table for each.

Every line has prompts of its own, so the prefix cache gives the head of the chat template alone; the last line repeats
the prompts of another and shows what the cache is worth.

python benchmarks/serving.py --concurrency 1 8 32 --save serving-int8 -- --dtype int8
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from saving import add_option, save
from server_process import running_server

REQUESTS_PER_PLACE = {1: 16, 8: 8}  # so that a run takes about a minute; 6 elsewhere


def measure(url: str, concurrency: int, seed: int, scratch: Path) -> dict[str, Any]:
    """Return what ``hotseat bench serve`` reports for the prompts of ``seed``."""
    path = scratch / "report.json"
    count = concurrency * REQUESTS_PER_PLACE.get(concurrency, 6)
    command = [sys.executable, "-m", "hotseat", "bench", "serve", "--url", url, "--output-json", str(path)]
    command += ["--max-concurrency", str(concurrency), "--num-prompts", str(count), "--seed", str(seed)]
    subprocess.run([*command, "--num-warmups", "2"], check=True, stdout=sys.stderr)
    report: dict[str, Any] = json.loads(path.read_text())
    return {key: report[key] for key in ("command", "model", "server", "config", "summary", "requests")}


def row(name: str, summary: dict[str, Any]) -> str:
    cells = [name, f"{summary['output_throughput']:.0f}", f"{summary['total_throughput']:.0f}"]
    cells += [f"{100 * summary['num_cached_tokens'] / summary['num_prompt_tokens']:.0f} %"]
    values = [("ttft", "p50_ms"), ("ttft", "p99_ms"), ("tpot", "p50_ms"), ("itl", "p99_ms")]
    cells += [f"{summary[distribution][key]:.1f}" for distribution, key in values]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument(
        "--cached", type=int, default=8, help="repeat the prompts of this concurrency at the end; 0: of none"
    )
    add_option(parser)
    parser.add_argument("options", nargs="*", help="options of the server, after --")
    chosen = parser.parse_args()
    lines = [(str(concurrency), concurrency) for concurrency in chosen.concurrency]
    if chosen.cached in chosen.concurrency:
        lines.append((f"{chosen.cached}, prompts seen before", chosen.cached))
    sys.stdout.write("| in flight | output tokens/s | all tokens/s | prompt from the cache | TTFT p50 ms | p99 ")
    sys.stdout.write("| TPOT p50 ms | ITL p99 ms |\n" + "|---:" * 8 + "|\n")
    runs = {}
    with tempfile.TemporaryDirectory() as scratch, running_server(chosen.options) as server:
        for name, concurrency in lines:
            runs[name] = measure(server.url, concurrency, concurrency, Path(scratch))  # a seed for each concurrency
            sys.stdout.write(row(name, runs[name]["summary"]) + "\n")
            sys.stdout.flush()
    if chosen.save:
        save(chosen.save, chosen, runs=runs)


if __name__ == "__main__":
    main()
