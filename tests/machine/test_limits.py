"""Limits of control groups, in folders written as the kernel writes them."""

from pathlib import Path

import pytest

from hotseat.machine import Cpus, cpu_quota, free_memory, usable_cpus
from hotseat.machine.cgroups import CgroupLimit

MEMINFO = {"proc/meminfo": "MemTotal: 16000 kB\nMemAvailable:    8000 kB\n"}


def write(root: Path, files: dict[str, str]) -> tuple[Path, Path]:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root / "proc", root / "cg"


def memory(root: Path, files: dict[str, str]) -> int:
    return free_memory(*write(root, files)).num_bytes


def test_free_memory_is_what_the_kernel_says(tmp_path: Path) -> None:
    assert memory(tmp_path, MEMINFO) == 8000 * 1024


def test_a_container_limit_counts(tmp_path: Path) -> None:
    files = {"cg/memory.max": "3000000\n", "cg/memory.current": "1000000\n", "cg/memory.stat": "inactive_file 250000\n"}
    assert memory(tmp_path, MEMINFO | files) == 2_250_000


def test_an_unlimited_container_does_not_count(tmp_path: Path) -> None:
    files = {"cg/memory.max": "max\n", "cg/memory.current": "1000000\n"}
    assert memory(tmp_path, MEMINFO | files) == 8000 * 1024


def test_memory_above_which_a_group_is_slowed_down_counts_as_its_limit(tmp_path: Path) -> None:
    files = {"cg/memory.max": "5000000\n", "cg/memory.high": "2000000\n", "cg/memory.current": "500000\n"}
    found = free_memory(*write(tmp_path, MEMINFO | files))
    assert (found.num_bytes, found.limited_by) == (1_500_000, tmp_path / "cg/memory.high")
    assert str(found) == f"1 MiB free within {tmp_path}/cg/memory.high"


def test_limits_of_outer_groups_count_too(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/outer/inner\n",
        "cg/outer/memory.max": "500000\n",
        "cg/outer/memory.current": "100000\n",
        "cg/outer/inner/memory.max": "max\n",
        "cg/outer/inner/memory.current": "100000\n",
    }
    assert memory(tmp_path, MEMINFO | files) == 400_000


def test_the_old_kind_of_control_group_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/docker/x\n3:cpu:/docker/x\n",
        "cg/memory/docker/x/memory.limit_in_bytes": "700000\n",
        "cg/memory/docker/x/memory.usage_in_bytes": "100000\n",
    }
    assert memory(tmp_path, MEMINFO | files) == 600_000


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"cg/cpu.max": "max 100000\n"}, None),
        ({"cg/cpu.max": "150000 100000\n"}, 1.5),
        # version 2, the limit in the process's own group or in one around it
        ({"proc/self/cgroup": "0::/system.slice/hotseat\n", "cg/system.slice/hotseat/cpu.max": "200000 100000\n"}, 2),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "cg/a/cpu.max": "100000 50000\n",
                "cg/a/b/cpu.max": "300000 100000\n",
            },
            2,
        ),
        # version 1, as Docker and Kubernetes mount it
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/kubepods/pod1\n0::/\n",
                "cg/cpu,cpuacct/kubepods/pod1/cpu.cfs_quota_us": "765000\n",
                "cg/cpu,cpuacct/kubepods/pod1/cpu.cfs_period_us": "100000\n",
            },
            7.65,
        ),
        # in a container the path is the host's, and the mount's root is the group
        (
            {
                "proc/self/cgroup": "1:cpu:/docker/abc\n",
                "cg/cpu/cpu.cfs_quota_us": "50000\n",
                "cg/cpu/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        ({"cg/cpu/cpu.cfs_quota_us": "-1\n", "cg/cpu/cpu.cfs_period_us": "100000\n"}, None),
    ],
)
def test_the_smallest_quota_of_all_groups_holds(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    found = cpu_quota(*write(tmp_path, files))
    assert (found.value if found else None) == quota


@pytest.mark.parametrize(("quota", "num_threads", "num_at_once"), [(None, 4, 8), (6.5, 4, 6), (2.5, 2, 2), (0.5, 1, 1)])
def test_threads_are_as_many_as_cores_and_quota_allow(quota: float | None, num_threads: int, num_at_once: int) -> None:
    limit = None if quota is None else CgroupLimit(quota, Path("cpu.max"))
    cpus = Cpus(num_logical=8, num_cores=4, quota=limit)
    assert (cpus.num_threads, cpus.num_at_once) == (num_threads, num_at_once)


def test_the_log_names_the_file_that_limits() -> None:
    cpus = Cpus(num_logical=8, num_cores=4, quota=CgroupLimit(1.5, Path("/sys/fs/cgroup/a/cpu.max")))
    assert str(cpus) == "4 cores, 8 logical CPUs, 1.5 CPUs granted by /sys/fs/cgroup/a/cpu.max"
    assert str(Cpus(num_logical=1, num_cores=1, quota=None)) == "1 cores, 1 logical CPUs"


def test_this_machine_has_memory_and_cpus() -> None:
    assert free_memory().num_bytes > 0
    assert 1 <= usable_cpus().num_threads <= usable_cpus().num_logical
