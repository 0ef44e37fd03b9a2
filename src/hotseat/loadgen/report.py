"""The report of a run: a table to read, a JSON file to compute with."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

from hotseat.errors import ConfigError
from hotseat.loadgen.config import BenchConfig
from hotseat.loadgen.measure import Measurement, Summary
from hotseat.machine import Machine

__all__ = ["format_errors", "format_table", "write_json"]

SCHEMA = "hotseat.bench.serve/1"


def describe_load(config: BenchConfig) -> str:
    """Say in words how requests arrive."""
    limit = f"at most {config.max_concurrency} in flight" if config.max_concurrency else "any number in flight"
    if math.isinf(config.request_rate):
        return f"closed loop, {limit}" if config.max_concurrency else "all at once"
    return f"Poisson arrivals, {config.request_rate:g}/s, {limit}"


def format_table(config: BenchConfig, measurement: Measurement, machine: Machine) -> str:
    summary = measurement.summary
    lines = [
        f"{measurement.model} at {config.url} ({config.endpoint})",
        f"{config.dataset} prompts, seed {config.seed}, {describe_load(config)}",
        f"{machine.cpu}, {machine.num_cores} cores",
        "",
        f"{'requests':<22}{summary.completed:>10} completed, {summary.failed} failed",
        f"{'duration':<22}{summary.duration_s:>10.2f} s",
        f"{'prompt tokens':<22}{summary.num_prompt_tokens:>10} (mean {summary.mean_prompt_tokens:g}"
        f", {summary.num_cached_tokens} from the cache)",
        f"{'output tokens':<22}{summary.num_output_tokens:>10} (mean {summary.mean_output_tokens:g})",
        f"{'output throughput':<22}{summary.output_throughput:>10.1f} tokens/s",
        f"{'total throughput':<22}{summary.total_throughput:>10.1f} tokens/s",
        f"{'request throughput':<22}{summary.request_throughput:>10.2f} requests/s",
        f"{'peak concurrency':<22}{summary.peak_concurrency:>10}",
        "",
        f"{'milliseconds':<22}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}",
    ]
    for name, values in [
        ("time to first token", summary.ttft),
        ("time per output token", summary.tpot),
        ("inter-token latency", summary.itl),
        ("whole answer", summary.e2e),
    ]:
        cells = (values.mean_ms, values.p50_ms, values.p90_ms, values.p99_ms, values.max_ms)
        lines.append(f"{name:<22}" + "".join(f"{'-' if cell is None else f'{cell:.2f}':>10}" for cell in cells))
    if not summary.counted_by_server and summary.completed:
        lines.append("the server sent no usage: output tokens are counted as chunks, prompt tokens not at all")
    return "\n".join(lines) + "\n" + format_errors(summary)


def format_errors(summary: Summary) -> str:
    """Return a line for each kind of failure."""
    return "".join(f"failed {count}x: {message}\n" for message, count in summary.errors.items())


def write_json(config: BenchConfig, measurement: Measurement, machine: Machine, command: str) -> None:
    """Write configuration, machine, summary and the raw times of each request to ``config.output_json``.

    Raises:
        ConfigError: the file cannot be written.
    """
    assert config.output_json is not None, "the caller checks that a file is wanted"
    begin = min((result.sent_at for result in measurement.results if result.sent_at), default=0.0)
    options = asdict(config) | {"api_key": None}  # a secret has no place in a report
    if math.isinf(config.request_rate):
        options["request_rate"] = None
    document = {
        "schema": SCHEMA,
        "command": command,
        "started_at": measurement.started_at,
        "model": measurement.model,
        "server": measurement.server,
        "machine": asdict(machine),
        "config": options,
        "summary": asdict(measurement.summary),
        "requests": [
            {
                "index": result.index,
                "sent_s": round(result.sent_at - begin, 6) if result.sent_at else None,
                "chunks_s": [round(instant - begin, 6) for instant in result.chunk_times],
                "prompt_tokens": result.num_prompt_tokens,
                "output_tokens": result.num_output_tokens,
                "finish_reason": result.finish_reason,
                "error": result.error,
            }
            for result in measurement.results
        ],
    }
    try:
        Path(config.output_json).write_text(json.dumps(document) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"output_json cannot be written: {error}") from None
