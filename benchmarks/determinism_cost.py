"""Measure what it costs that a request's bits do not depend on its batch.

Builds the kernels a second time without the rules that keep the order of operations (decision 003): the compiler may
fuse multiplications and additions as it likes, and attention restarts its sums every 1,024 positions instead of every
256. Whole steps of both builds are timed in turns. What else the rules forbid (splitting K over threads, choosing a
kernel by the number of rows) has no faster counterpart here: the kernels were written with the rules in mind.

python benchmarks/determinism_cost.py --save determinism-cost
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from saving import add_option, save

ROOT = Path(__file__).resolve().parent.parent
FREEDOMS = (
    ("CMakeLists.txt", "-ffp-contract=off", "-ffp-contract=fast"),
    ("csrc/kernels/table.h", "inline constexpr int kSpan = 256;", "inline constexpr int kSpan = 1024;"),
)


def build(target: Path, freedoms: tuple[tuple[str, str, str], ...]) -> None:
    """Copy the project to ``target``, apply ``freedoms`` and compile it there."""
    for name in ("csrc", "src", "CMakeLists.txt", "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "_native*"))
        else:
            shutil.copy(source, target / name)
    for name, old, new in freedoms:
        text = (target / name).read_text()
        if text.count(old) != 1:
            raise SystemExit(f"{name} holds {old!r} {text.count(old)} times, not once: this benchmark is out of date")
        (target / name).write_text(text.replace(old, new))
    configure = ["cmake", "-G", "Ninja", "-S", str(target), "-B", str(target / "build")]
    subprocess.run([*configure, f"-DPython_EXECUTABLE={sys.executable}"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", str(target / "build")], check=True, stdout=subprocess.DEVNULL)
    for module in (target / "build").glob("_native*.so"):
        shutil.copy(module, target / "src" / "hotseat" / "runner" / module.name)


def measure(tree: Path, chosen: argparse.Namespace) -> dict[str, float]:
    """Return the seconds of the best repetition of each point."""
    command = [sys.executable, "-m", "hotseat", "bench", "step", "--statistic", "best", "--num-rounds", "1"]
    command += ["--dtype", chosen.dtype, "--batch", chosen.batch, "--prefill", chosen.prefill]
    command += ["--context", str(chosen.context), "--json", str(tree / "out.json")]
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    points: list[dict[str, Any]] = json.loads((tree / "out.json").read_text())["points"]
    return {f"{point['dtype']} {point['kind']} {point['size']}": point["chosen"]["total_s"] for point in points}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7, help="of each build, in turns")
    parser.add_argument("--dtype", default="int8,fp32")
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--prefill", default="512")
    parser.add_argument("--context", type=int, default=600)
    add_option(parser)
    chosen = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {"fixed order": [], "free order": []}
    with tempfile.TemporaryDirectory() as directory:
        trees = {name: Path(directory) / name.replace(" ", "-") for name in runs}
        for name, tree in trees.items():
            tree.mkdir()
            build(tree, FREEDOMS if name == "free order" else ())
        for _ in range(chosen.runs):
            for name, tree in trees.items():
                runs[name].append(measure(tree, chosen))
    sys.stdout.write("| step | fixed order ms | free order ms | cost |\n|---|---|---|---|\n")
    for point in runs["fixed order"][0]:
        # Memory may be fast for one process and slow for the next, by where its pages lie: compare the best runs.
        fixed, free = (min(run[point] for run in runs[name]) for name in ("fixed order", "free order"))
        sys.stdout.write(f"| {point} | {1000 * fixed:.2f} | {1000 * free:.2f} | {fixed / free - 1:+.1%} |\n")
    if chosen.save:
        save(chosen.save, chosen, runs=runs)


if __name__ == "__main__":
    main()
