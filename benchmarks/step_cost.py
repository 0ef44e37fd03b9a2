"""Fit `hotseat simulate --step-cost` to the steps that a server recorded.

hotseat serve --record steps.jsonl        # and some load: short and long prompts, few and many at a time
python benchmarks/step_cost.py steps.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

NUM_ROUNDS = 100
QUANTILE = 0.25  # a machine that does something else makes steps longer, never shorter


def features(record: dict) -> tuple[float, int, int]:
    sizes = [(chunk["end"] - chunk["start"], chunk["start"] + 1 + chunk["end"]) for chunk in record["scheduled"]]
    return 1.0, sum(size for size, _ in sizes), sum(size * ends // 2 for size, ends in sizes)


def fit(rows: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Return the coefficients of the relative quantile regression, none of them negative."""
    active = list(range(rows.shape[1]))
    while True:
        weights = 1 / seconds
        for _ in range(NUM_ROUNDS):
            found = np.linalg.lstsq(rows[:, active] * weights[:, None], seconds * weights, rcond=None)[0]
            errors = (seconds - rows[:, active] @ found) / seconds
            pull = np.where(errors > 0, QUANTILE, 1 - QUANTILE) / np.maximum(np.abs(errors), 1e-3)
            weights = np.sqrt(pull) / seconds
        if (found >= 0).all():
            coefficients = np.zeros(rows.shape[1])
            coefficients[active] = found
            return coefficients
        del active[int(np.argmin(found))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+")
    paths = parser.parse_args().records
    records = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    records = [record for record in records if record["scheduled"] and record["duration_s"] > 0]
    if len(records) < 20:
        sys.exit(f"only {len(records)} steps with work: too few to fit")
    rows = np.array([features(record) for record in records])
    seconds = np.array([record["duration_s"] for record in records])
    base, per_token, per_context = fit(rows, seconds)
    errors = np.abs(seconds - rows @ (base, per_token, per_context)) / seconds
    sys.stdout.write(f"--step-cost {base:.3g},{per_token:.3g},{per_context:.3g}\n")
    sys.stdout.write(
        f"{len(records)} steps; relative error: median {100 * np.median(errors):.0f} %, "
        f"p90 {100 * np.percentile(errors, 90):.0f} %\n"
    )


if __name__ == "__main__":
    main()
