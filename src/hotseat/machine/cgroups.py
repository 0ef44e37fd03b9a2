"""Limits of this process's control groups, version 1 and 2, nested ones included: the smallest of all holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["CGROUP_ROOT", "PROC", "CgroupLimit", "cpu_quota", "memory_left"]

PROC = Path("/proc")
CGROUP_ROOT = Path("/sys/fs/cgroup")


class CgroupLimit(NamedTuple):
    """A limit and the file that says so."""

    value: float
    file: Path


def cpu_quota(proc: Path = PROC, root: Path = CGROUP_ROOT) -> CgroupLimit | None:
    """Return how many CPUs' time the groups grant, ``None`` without a limit."""
    quotas = []
    for folder in _groups("cpu", proc, root):
        if quota := _quota_of_version_2(folder) or _quota_of_version_1(folder):
            quotas.append(quota)
    return min(quotas, default=None)


def memory_left(proc: Path = PROC, root: Path = CGROUP_ROOT) -> CgroupLimit | None:
    """Return how many bytes the groups still grant, ``None`` without a limit.

    File cache counts as used, but the kernel gives it up when memory is needed. Above ``memory.high`` a process is
    not ended but slowed down until it stands still, so it is a limit like ``memory.max``.
    """
    limits = []
    for folder in _groups("memory", proc, root):
        for limit_name, used_name in [
            ("memory.max", "memory.current"),
            ("memory.high", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ]:
            limit, used = _read_number(folder / limit_name), _read_number(folder / used_name)
            if limit is not None and used is not None:
                left = limit - used + _inactive_file_bytes(folder / "memory.stat")
                limits.append(CgroupLimit(max(0, left), folder / limit_name))
    return min(limits, default=None)


def _groups(controller: str, proc: Path, root: Path) -> Iterator[Path]:
    """Yield the folders of all groups of this process that may limit ``controller``, from the mount's root inwards.

    In a container the process's path may be that of the host, whose folders are not there, and the mount's root is
    then the group itself; so every folder that exists counts.
    """
    for mount, inner in {(root, ""), (root / controller, ""), *_memberships(controller, proc, root)}:
        path = mount
        yield path
        for part in Path(inner.lstrip("/")).parts:
            path /= part
            if path.is_dir():
                yield path


def _memberships(controller: str, proc: Path, root: Path) -> Iterator[tuple[Path, str]]:
    """Yield mounts and paths within them from lines such as ``0::/a/b`` and ``4:cpu,cpuacct:/a/b``."""
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, inner = line.split(":", 2)
        if not controllers:  # version 2, alone or beside version 1
            yield root, inner
            yield root / "unified", inner
        elif controller in controllers.split(","):
            yield root / controllers, inner
            yield root / controller, inner


def _quota_of_version_2(folder: Path) -> CgroupLimit | None:
    file = folder / "cpu.max"
    try:
        quota, period = map(int, file.read_text(encoding="ascii").split())
    except (OSError, ValueError):  # absent, or the word "max"
        return None
    return CgroupLimit(quota / period, file)


def _quota_of_version_1(folder: Path) -> CgroupLimit | None:
    file = folder / "cpu.cfs_quota_us"
    quota, period = _read_number(file), _read_number(folder / "cpu.cfs_period_us")
    if quota is None or quota < 0 or not period:  # -1 is no limit
        return None
    return CgroupLimit(quota / period, file)


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # absent, or the word "max"
        return None


def _inactive_file_bytes(path: Path) -> int:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == ["inactive_file"]), 0)
