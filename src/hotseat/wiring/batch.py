"""``hotseat batch``: a file of requests answered by the server's application, without a server."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from hotseat.errors import ConfigError
from hotseat.server import ServerConfig, create_app
from hotseat.server.batch import BatchFiles, run_batch
from hotseat.wiring.components import make_components
from hotseat.wiring.engine_args import EngineArgs
from hotseat.wiring.server import ObserverOptions, make_services

__all__ = ["BatchOptions", "run_batch_files"]

PER_SEAT = 2  # requests in flight: those that sit, and as many that wait for a seat to become free


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """Files of a batch."""

    input_file: Path | None = field(
        default=None,
        metadata={
            "help": "requests to run, a JSON line each: custom_id, method, url, body, as OpenAI's batches have them",
            "short": "-i",
        },
    )
    output_file: Path | None = field(
        default=None,
        metadata={
            "help": "answers, a JSON line each, written as they finish; where it exists, what it has is not run again",
            "short": "-o",
        },
    )
    served_model_name: tuple[str, ...] = field(
        default=(), metadata={"help": "name or names that the model has in the requests; by default its own"}
    )


def run_batch_files(args: EngineArgs, chosen: BatchOptions) -> int:
    """Answer what has no answer yet, with a bar on a terminal; return the exit status.

    Raises:
        ConfigError: a file is missing or cannot be used, or an option does not fit the model or the machine.
        ModelError: the model cannot be loaded.
    """
    if chosen.input_file is None or chosen.output_file is None:
        raise ConfigError("input and output are needed: hotseat batch MODEL -i requests.jsonl -o answers.jsonl")
    files = BatchFiles(chosen.input_file, chosen.output_file)
    num_failed = _run(args, chosen, files) if any(files.left()) else 0
    num_new = files.num_lines - files.num_answered
    sys.stderr.write(
        f"{num_new} of {files.num_lines} requests were run, {num_failed} of them with an error; "
        f"{files.num_answered} had an answer.\n"
    )
    return 0


def _run(args: EngineArgs, chosen: BatchOptions, files: BatchFiles) -> int:
    config = ServerConfig(served_model_name=chosen.served_model_name, disable_access_log=True)
    services = make_services(
        make_components(args), config, ObserverOptions(disable_log_stats=True), {}, time.monotonic()
    )
    num_at_once = PER_SEAT * services.max_num_seqs
    if services.max_num_queued_reqs is not None:
        num_at_once = min(num_at_once, services.max_num_seqs + services.max_num_queued_reqs)
    services.engine.start()
    try:
        # Where nobody looks, no bar: a file would get a line for each of its states.
        with tqdm(
            total=files.num_lines, initial=files.num_answered, unit="request", disable=None, dynamic_ncols=True
        ) as bar:
            return asyncio.run(run_batch(create_app(services, config), files, num_at_once, _noted_on(bar)))
    finally:
        services.engine.stop()
        services.generator.close()


def _noted_on(bar: Any) -> Callable[[bool], object]:
    num_failed = 0

    def note(is_well: bool) -> None:
        nonlocal num_failed
        num_failed += not is_well
        if num_failed:
            bar.set_postfix_str(f"{num_failed} with an error", refresh=False)
        bar.update(1)

    return note
