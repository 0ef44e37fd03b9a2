"""Limits of this machine, and the least time that they allow for a piece of work.

A piece of work needs bytes that lie in memory and operations of one kind; a multiplication and an addition are two
operations. Both can go on at the same time, so the larger of the two times is the limit (a roofline).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotseat.runner import _native

__all__ = ["LimitMeter", "Limits", "Work", "arithmetic_of", "cold_bytes", "last_level_cache_bytes"]

_DEFAULT_CACHE_BYTES = 32 << 20  # where the system does not say
_TIMES = 4  # a measurement takes a millisecond or two
_CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Bytes that have to come from memory, and operations of a dtype: int8, bf16 or fp32."""

    num_bytes: int
    num_operations: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The best that was seen of this machine, with all threads."""

    bytes_per_s: float
    operations_per_s: Mapping[str, Mapping[str, float]]  # by instruction set, then dtype

    def least_seconds(self, work: Work, isa: str, bytes_per_s: float) -> float:
        """Return the time that ``work`` takes at the limit, when memory gives ``bytes_per_s``."""
        operations_s = work.num_operations / self.operations_per_s[isa][work.dtype]
        return max(work.num_bytes / bytes_per_s, operations_s)


class LimitMeter:
    """Measures the limits again and again, between other measurements.

    Of the arithmetic the best counts. The bandwidth of memory changes with what else goes on in the machine, and in a
    virtual one with where its CPUs are, so that each measurement is compared with the bandwidth of its moment.
    """

    def __init__(self, *, isas: Sequence[str], dtypes: Sequence[str], threads: int) -> None:
        self._probe = _native.LimitProbe(threads=threads, buffer_bytes=2 * cold_bytes())
        self._bytes_per_s = 0.0
        self._operations_per_s = {isa: dict.fromkeys(dtypes, 0.0) for isa in isas}

    def measure_arithmetic(self) -> None:
        """Measure each peak a few times more; takes some milliseconds."""
        for isa, peaks in self._operations_per_s.items():
            for dtype in peaks:
                peaks[dtype] = max(peaks[dtype], *(self._probe.peak(isa, dtype) for _ in range(_TIMES)))

    def measure_memory(self) -> float:
        """Return the bytes a second that are read now: the best of a few measurements of a millisecond."""
        isa = list(self._operations_per_s)[-1]
        bytes_per_s = max(self._probe.read_bandwidth(isa) for _ in range(_TIMES))
        self._bytes_per_s = max(self._bytes_per_s, bytes_per_s)
        return bytes_per_s

    def limits(self) -> Limits:
        """Return what was the best so far."""
        assert self._bytes_per_s > 0, "memory was not measured"
        return Limits(bytes_per_s=self._bytes_per_s, operations_per_s=self._operations_per_s)


def arithmetic_of(dtype: str) -> str:
    """Return the dtype whose instructions multiply weights of ``dtype``: GGUF's codes are small integers."""
    return "int8" if dtype == "gguf" else dtype


def cold_bytes() -> int:
    """Return how much must be read in turns so that nothing of it is still in a cache when its turn comes again."""
    return 4 * last_level_cache_bytes()


def last_level_cache_bytes(cpus: Path = _CPUS) -> int:
    """Return the size of all last-level caches together."""
    sizes = dict(_last_level_caches(cpus))
    return sum(sizes.values()) or _DEFAULT_CACHE_BYTES


def _last_level_caches(cpus: Path) -> Iterable[tuple[str, int]]:
    """Yield who shares the last level of each CPU, and its size."""
    for directory in cpus.glob("cpu[0-9]*/cache"):
        levels = []
        for index in directory.glob("index*"):
            try:
                level, size = int((index / "level").read_text()), (index / "size").read_text().strip()
                levels.append((level, (index / "shared_cpu_list").read_text().strip(), int(size.rstrip("K")) << 10))
            except (OSError, ValueError):
                continue
        if levels:
            _, shared_by, num_bytes = max(levels)
            yield shared_by, num_bytes
