"""A Hotseat server for one benchmark: started on a free port, ended with it."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

START_TIMEOUT_S = 120.0
POLL_INTERVAL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    url: str
    pid: int
    process: subprocess.Popen[bytes]
    ready_s: float  # from the start of the process until /health answers


@contextlib.contextmanager
def running_server(options: Sequence[str]) -> Iterator[Server]:
    """Start ``hotseat serve`` with ``options`` on a free port, wait until it is healthy, and stop it at the end."""
    port = _free_port()
    command = [sys.executable, "-m", "hotseat", "serve", *options, "--port", str(port), "--disable-access-log"]
    started_at = time.monotonic()
    process = subprocess.Popen(command)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_healthy(process, url, started_at + START_TIMEOUT_S)
        yield Server(url=url, pid=process.pid, process=process, ready_s=time.monotonic() - started_at)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, give_up_at: float) -> None:
    while process.poll() is None and time.monotonic() < give_up_at:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        time.sleep(POLL_INTERVAL_S)
    raise SystemExit(f"the server did not become healthy (exit status {process.poll()})")
