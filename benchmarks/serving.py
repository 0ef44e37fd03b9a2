"""Measure Hotseat through HTTP at several concurrencies and print one line of a Markdown table for each.

python benchmarks/serving.py --concurrency 1 8 32 --save int8 -- --dtype int8
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from server_process import running_server

RESULTS = Path(__file__).resolve().parent / "results"
REQUESTS_PER_PLACE = {1: 16, 8: 8}  # so that a run takes about a minute; 6 elsewhere


def measure(url: str, concurrency: int, path: Path) -> dict[str, object]:
    count = concurrency * REQUESTS_PER_PLACE.get(concurrency, 6)
    command = [sys.executable, "-m", "hotseat", "bench", "serve", "--url", url, "--output-json", os.path.relpath(path)]
    command += ["--max-concurrency", str(concurrency), "--num-prompts", str(count), "--num-warmups", "2"]
    subprocess.run(command, check=True, stdout=sys.stderr)
    summary: dict[str, object] = json.loads(path.read_text())["summary"]
    return summary


def row(concurrency: int, summary: dict[str, object]) -> str:
    def milliseconds(name: str, key: str) -> str:
        values = summary[name]
        assert isinstance(values, dict), "a distribution"
        return f"{values[key]:.1f}"

    cells = [str(concurrency), f"{summary['output_throughput']:.0f}", f"{summary['total_throughput']:.0f}"]
    cells += [milliseconds("ttft", "p50_ms"), milliseconds("ttft", "p99_ms")]
    cells += [milliseconds("tpot", "p50_ms"), milliseconds("itl", "p99_ms")]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--save", metavar="NAME", help="keep the raw results as results/serving-NAME-cN.json")
    parser.add_argument("options", nargs="*", help="options of the server, after --")
    chosen = parser.parse_args()
    lines = ["| in flight | output tokens/s | all tokens/s | TTFT p50 ms | p99 | TPOT p50 ms | ITL p99 ms |"]
    lines.append("|---:" * 7 + "|")
    with tempfile.TemporaryDirectory() as scratch, running_server(chosen.options) as server:
        for concurrency in chosen.concurrency:
            folder = RESULTS if chosen.save else Path(scratch)
            path = folder / f"serving-{chosen.save}-c{concurrency}.json"
            lines.append(row(concurrency, measure(server.url, concurrency, path)))
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
