"""Memory that this process may still take: the machine's, or less in a control group with a limit."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import NamedTuple

from hotseat.machine.cgroups import CGROUP_ROOT, PROC, memory_left

__all__ = ["FreeMemory", "free_memory"]


class FreeMemory(NamedTuple):
    """Free bytes, and what sets this limit, if it is not the machine itself: a control group's file, or ulimit."""

    num_bytes: int
    limited_by: Path | str | None

    def __str__(self) -> str:
        text = f"{self.num_bytes / 2**20:.0f} MiB free"
        return text if self.limited_by is None else f"{text} within {self.limited_by}"


def free_memory(proc: Path = PROC, cgroup_root: Path = CGROUP_ROOT) -> FreeMemory:
    """Return what is free now."""
    available = _available_bytes(proc / "meminfo")
    limit, addresses = memory_left(proc, cgroup_root), _addresses_left(proc / "self" / "statm")
    found = [FreeMemory(available, None)]
    if limit is not None:
        found.append(FreeMemory(int(limit.value), limit.file))
    if addresses is not None:
        found.append(FreeMemory(addresses, "the limit of address space (ulimit -v)"))
    return min(found, key=lambda one: one.num_bytes)


def _addresses_left(path: Path) -> int | None:
    """Return the bytes of address space that the process may still take; ``None``: as many as it likes."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return None
    try:
        taken = int(path.read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None
    return max(0, soft - taken)


def _available_bytes(path: Path) -> int:
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
    except (OSError, StopIteration):
        return 2 * 2**30  # not Linux: assume a small machine
