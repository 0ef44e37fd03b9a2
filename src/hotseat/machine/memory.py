"""Memory that this process may still take: the machine's, or less in a control group with a limit."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hotseat.machine.cgroups import CGROUP_ROOT, PROC, memory_left

__all__ = ["FreeMemory", "free_memory"]


class FreeMemory(NamedTuple):
    """Free bytes, and the file of the control group that sets this limit, if it is not the machine itself."""

    num_bytes: int
    limited_by: Path | None

    def __str__(self) -> str:
        text = f"{self.num_bytes / 2**20:.0f} MiB free"
        return text if self.limited_by is None else f"{text} within {self.limited_by}"


def free_memory(proc: Path = PROC, cgroup_root: Path = CGROUP_ROOT) -> FreeMemory:
    """Return what is free now."""
    available = _available_bytes(proc / "meminfo")
    limit = memory_left(proc, cgroup_root)
    if limit is None or available <= limit.value:
        return FreeMemory(available, None)
    return FreeMemory(int(limit.value), limit.file)


def _available_bytes(path: Path) -> int:
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
    except (OSError, StopIteration):
        return 2 * 2**30  # not Linux: assume a small machine
