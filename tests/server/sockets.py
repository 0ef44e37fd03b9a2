"""The whole of ``run_app`` in a process of its own, on a real socket, with a runner that computes nothing."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

from hotseat.core.batch import Batch, StepOutput
from hotseat.server import ServerConfig, ServerServices, run_app
from server.fakes import FakeRunner, FakeServer


class SlowRunner(FakeRunner):
    """Takes some time for each step, as a real one does."""

    def execute(self, batch: Batch) -> StepOutput:
        time.sleep(0.005)
        return super().execute(batch)


def services(**options: Any) -> ServerServices:
    """Return services whose engine was not started."""
    values = {"max_model_len": 4096, "num_kv_blocks": 4096, "services": {"tick": tick}}
    return FakeServer(runner=SlowRunner(), starts=False, **(values | options)).services


def tick(now: float) -> None:
    logging.getLogger(__name__).info("tick %d", now > 0)


def main(port: str, shutdown_timeout_s: str, host: str = "127.0.0.1", *keys: str) -> int:
    connections = [int(key.partition("=")[2]) for key in keys if key.startswith("--max-connections=")]
    timeouts = [float(key.partition("=")[2]) for key in keys if key.startswith("--receive-timeout-s=")]
    config = ServerConfig(
        host=host,
        port=int(port),
        shutdown_timeout_s=float(shutdown_timeout_s),
        api_key=tuple(key for key in keys if not key.startswith("--")),
        max_connections=connections[0] if connections else None,
        receive_timeout_s=timeouts[0] if timeouts else 60.0,
    )
    return run_app(services, config)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
