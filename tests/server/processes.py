"""Server processes."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

TESTS = Path(__file__).resolve().parents[1]
TIMEOUT_S = 20
START_TIMEOUT_S = 90  # imports and packing beside other work on two cores


class Process:
    """A server that says on stderr where it listens; a thread reads its log, so that no full pipe blocks it."""

    def __init__(self, module: str, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])}
        command = [sys.executable, "-m", module, *arguments]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.log: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._ready.wait(START_TIMEOUT_S), "".join(self.log)
        (self.url,) = re.findall(r"at (http://\S+)", "".join(self.log))

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line)
            if "ready in" in line:
                self._ready.set()
        self._process.stderr.close()

    def connect(self) -> socket.socket:
        """Open a connection that gives up after a while."""
        parts = urlsplit(self.url)
        return socket.create_connection((parts.hostname, parts.port), timeout=TIMEOUT_S)

    def signal(self, number: int = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        code = self._process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        return code

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
