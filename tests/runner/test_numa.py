"""The warning about NUMA nodes, with the kernel's files written by hand."""

import logging
from pathlib import Path

import pytest

from hotseat.runner.numa import cpus_by_node, warn_if_spread


def machine(root: Path, **cpulists: str) -> Path:
    for node, cpulist in cpulists.items():
        (root / node).mkdir(parents=True)
        (root / node / "cpulist").write_text(cpulist)
    return root


@pytest.fixture
def two_nodes(tmp_path: Path) -> Path:
    return machine(tmp_path, node0="0-3,8-11\n", node1="4-7,12-15\n")


def test_cpus_are_found_on_their_nodes(two_nodes: Path) -> None:
    assert cpus_by_node(range(16), two_nodes) == {0: [0, 1, 2, 3, 8, 9, 10, 11], 1: [4, 5, 6, 7, 12, 13, 14, 15]}
    assert cpus_by_node({2, 9}, two_nodes) == {0: [2, 9]}


def test_single_cpus_nodes_of_memory_alone_and_strange_files_are_read(tmp_path: Path) -> None:
    root = machine(tmp_path, node0="0\n", node2="1,3\n", node10="\n", node11="what?\n", nodes="4\n")
    (root / "node12").mkdir()
    assert cpus_by_node(range(8), root) == {0: [0], 2: [1, 3]}
    assert cpus_by_node(range(8), tmp_path / "nothing") == {}


def test_one_warning_names_the_nodes_and_how_to_stay_on_one(two_nodes: Path, caplog: pytest.LogCaptureFixture) -> None:
    warn_if_spread({2, 4, 5, 6, 12}, 4, two_nodes)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "NUMA nodes 0, 1" in record.getMessage()
    assert "`numactl --cpunodebind=1 --membind=1`" in record.getMessage()
    assert "`taskset --cpu-list 4-6,12`" in record.getMessage()


@pytest.mark.parametrize(("cpus", "num_threads"), [({0, 1, 8}, 3), (set(range(16)), 1)])
def test_threads_on_one_node_and_a_single_thread_are_not_warned_about(
    cpus: set[int], num_threads: int, two_nodes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warn_if_spread(cpus, num_threads, two_nodes)
    assert not caplog.records
