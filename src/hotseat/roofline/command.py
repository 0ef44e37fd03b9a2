"""The commands ``hotseat bench kernels`` and ``bench step``: load the model, print tables, write JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hotseat import models
from hotseat.errors import ConfigError
from hotseat.roofline.config import KernelBenchOptions, RooflineOptions, StepBenchOptions

__all__ = ["COMMANDS", "RooflineCommand"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineCommand:
    """A command line's words, and what is behind them."""

    name: str
    help: str
    options: type[RooflineOptions]

    def run(self, options: RooflineOptions, *, command: str, machine: Mapping[str, Any]) -> int:
        """Measure, print the tables, write the JSON file if one is wanted; return the exit status.

        ``command`` and ``machine`` are quoted in the output.

        Raises:
            HotseatError: an option does not fit the machine or the model, or there is no such model.
        """
        if options.json is not None:
            _write(options.json, "")  # an error now is better than one after minutes
        started_at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        model = models.load(options.model, cache_dir=options.cache_dir)
        sys.stdout.write(f"{model.name}; {machine['cpu']}; {_describe_statistic(options)}\n")
        text, results = _measure(model, options)
        sys.stdout.write(text)
        if options.json is not None:
            document = {
                "schema": f"hotseat.bench.{self.name}/1",
                "command": command,
                "started_at": started_at,
                "model": model.name,
                "machine": dict(machine),
                "options": _quoted(options),
            }
            _write(options.json, json.dumps(document | results) + "\n")
            sys.stdout.write(f"written to {options.json}\n")
        return 0


COMMANDS = {
    command.name: command
    for command in (
        RooflineCommand(
            name="kernels",
            help="Measure the kernels of a model's shapes against the limits of this machine.",
            options=KernelBenchOptions,
        ),
        RooflineCommand(
            name="step",
            help="Measure whole steps of a model and where their time goes.",
            options=StepBenchOptions,
        ),
    )
}


def _measure(model: models.LoadedModel, options: RooflineOptions) -> tuple[str, dict[str, Any]]:
    """Return the tables for people and the results for the file."""
    try:
        if isinstance(options, KernelBenchOptions):
            from hotseat.roofline import kernels

            return kernels.measure(model, options).report(options.statistic)
        from hotseat.roofline import step

        assert isinstance(options, StepBenchOptions), "there are two commands"
        times = step.measure(model, options)
        text, results = times.report(options.statistic)
        if options.step_cost is not None and times.cost is not None:
            times.cost.save(options.step_cost)
            text += f"{options.step_cost}: {times.cost.describe()}\n"
        return text, results
    except ImportError as error:
        raise ConfigError(f"this needs the native extension, which cannot be loaded: {error}") from error


def _quoted(options: RooflineOptions) -> dict[str, str]:
    """Return the options that say what was measured, not where things lie on this machine."""
    return {
        name: str(value)
        for name, value in asdict(options).items()
        if value is not None and name not in ("model", "cache_dir", "json")
    }


def _describe_statistic(options: RooflineOptions) -> str:
    assert isinstance(options, KernelBenchOptions | StepBenchOptions), "there are two commands"
    return f"{options.statistic} of {options.num_rounds} rounds"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"json {str(path)!r} cannot be written: {error}") from None
