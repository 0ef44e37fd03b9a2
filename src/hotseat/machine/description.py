"""The machine and the software on it, for reports of measurements."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

import hotseat

__all__ = ["Machine", "describe_machine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine and the software on it, as results of benchmarks name them."""

    cpu: str
    num_cores: int
    memory_gib: float
    system: str
    python: str
    hotseat: str
    commit: str | None  # of the working directory, "+" when it has changes


def describe_machine() -> Machine:
    """Return what this machine is."""
    return Machine(
        cpu=_first_value("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gib=round(int((_first_value("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) / 2**20, 1),
        system=platform.platform(),
        python=platform.python_version(),
        hotseat=hotseat.__version__,
        commit=_commit(),
    )


def _first_value(path: str, key: str) -> str | None:
    """Return the value of the first ``key : value`` line of a file under /proc."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), None)


def _commit() -> str | None:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None
