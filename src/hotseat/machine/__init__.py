"""Read what the machine is, and what it and its control groups allow this process: CPUs and memory.

Must not know: models, runners, what the numbers are used for.
"""

from hotseat.machine.cgroups import CgroupLimit, cpu_quota, memory_left
from hotseat.machine.cpus import Cpus, usable_cpus
from hotseat.machine.description import Machine, describe_machine
from hotseat.machine.memory import FreeMemory, free_memory

__all__ = [
    "CgroupLimit",
    "Cpus",
    "FreeMemory",
    "Machine",
    "cpu_quota",
    "describe_machine",
    "free_memory",
    "memory_left",
    "usable_cpus",
]
