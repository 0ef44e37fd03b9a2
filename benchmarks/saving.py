"""Write what a benchmark measured to benchmarks/results, with its command, options and machine."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hotseat.machine import describe_machine

RESULTS = Path(__file__).resolve().parent / "results"


def save(name: str, chosen: argparse.Namespace, **content: Any) -> None:
    """Write ``content`` to NAME.json."""
    command = " ".join([f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    options = {key: value for key, value in vars(chosen).items() if key != "save"}
    record = {"command": command, "options": options, "machine": asdict(describe_machine()), **content}
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
