"""Say once when threads are spread over memory that is not equally near to all of them."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

__all__ = ["cpus_by_node", "warn_if_spread"]

logger = logging.getLogger(__name__)

SYSFS_NODES = Path("/sys/devices/system/node")


def warn_if_spread(cpus: Collection[int], num_threads: int, root: Path = SYSFS_NODES) -> None:
    """Warn when threads may run on more than one NUMA node, and say how to bind them to one."""
    nodes = cpus_by_node(cpus, root)
    if num_threads < 2 or len(nodes) < 2:
        return
    largest = max(nodes, key=lambda node: len(nodes[node]))
    logger.warning(
        "the CPUs of this process lie on NUMA nodes %s, and memory of another node is slow to reach: "
        "bind it to one, for example with `numactl --cpunodebind=%d --membind=%d` or `taskset --cpu-list %s`",
        ", ".join(map(str, nodes)),
        largest,
        largest,
        _listed(nodes[largest]),
    )


def cpus_by_node(cpus: Collection[int], root: Path = SYSFS_NODES) -> dict[int, list[int]]:
    """Return those of ``cpus`` that each node has, nodes without any left out; empty where the system does not say."""
    nodes = {}
    for path in root.glob("node[0-9]*/cpulist"):
        try:
            present = _parsed(path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        if here := sorted(present.intersection(cpus)):
            nodes[int(path.parent.name.removeprefix("node"))] = here
    return dict(sorted(nodes.items()))


def _parsed(cpulist: str) -> set[int]:
    """Read a list as the kernel writes it, ``0-3,8-11``; it may be empty."""
    cpus: set[int] = set()
    for part in cpulist.split(",") if cpulist.strip() else ():
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def _listed(cpus: list[int]) -> str:
    """Write sorted CPUs as the kernel does."""
    ranges: list[list[int]] = []
    for cpu in cpus:
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
