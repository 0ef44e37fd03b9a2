"""CPUs that this process may use: its affinity mask, their physical cores, the quota of its control groups."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hotseat.machine.cgroups import CgroupLimit, cpu_quota

__all__ = ["Cpus", "usable_cpus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpus:
    """Logical CPUs and physical cores of the affinity mask, and the quota in CPUs, if there is one."""

    num_logical: int
    num_cores: int
    quota: CgroupLimit | None

    @property
    def num_at_once(self) -> int:
        """Threads that can run at the same time; at least one. Half a CPU is none: its thread would be throttled."""
        return self._within_quota(self.num_logical)

    @property
    def num_threads(self) -> int:
        """Threads that computing gains from: two on one core share its arithmetic units."""
        return self._within_quota(self.num_cores)

    def _within_quota(self, number: int) -> int:
        return number if self.quota is None else max(1, min(number, int(self.quota.value)))

    def __str__(self) -> str:
        text = f"{self.num_cores} cores, {self.num_logical} logical CPUs"
        return text if self.quota is None else f"{text}, {self.quota.value:g} CPUs granted by {self.quota.file}"


def usable_cpus() -> Cpus:
    """Return what this process may use now."""
    mask = os.sched_getaffinity(0)
    return Cpus(num_logical=len(mask), num_cores=len({_core_of(cpu) for cpu in mask}), quota=cpu_quota())


def _core_of(cpu: int) -> tuple[str, str]:
    """Return what distinguishes the physical core of a logical CPU."""
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        return (topology / "physical_package_id").read_text().strip(), (topology / "core_id").read_text().strip()
    except OSError:
        return "cpu", str(cpu)
