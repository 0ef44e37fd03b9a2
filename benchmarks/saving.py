"""Write what a benchmark measured to benchmarks/results, with its command, options and machine."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hotseat.machine import describe_machine
from hotseat.options.command_line import quote

__all__ = ["RESULTS", "add_option", "save"]

RESULTS = Path(__file__).resolve().parent / "results"


def add_option(parser: argparse.ArgumentParser) -> None:
    """Give a benchmark its ``--save NAME``."""
    parser.add_argument("--save", metavar="NAME", help="keep the results as benchmarks/results/NAME.json")


def save(name: str, chosen: argparse.Namespace, **content: Any) -> None:
    """Write ``content`` to NAME.json; the options are ``chosen``, as the parser read them."""
    command = quote([f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    options = {key: value for key, value in vars(chosen).items() if key != "save"}
    if "options" in options:
        options["options"] = quote(options["options"])  # the server's, which may have a key among them
    record = {"command": command, "options": options, "machine": asdict(describe_machine()), **content}
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")
    sys.stdout.write(f"\nwritten to {path.relative_to(RESULTS.parent.parent)}\n")
