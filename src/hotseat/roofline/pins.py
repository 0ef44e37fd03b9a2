"""Keep threads on CPUs of their own while something is measured.

A kernel that has other work to do as well may put two threads of a team on one CPU for a while, which halves their
speed and says nothing about them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

__all__ = ["Pins"]

T = TypeVar("T")

_TASKS = Path("/proc/self/task")


class Pins:
    """The CPUs of this process: the calling thread takes the first one, other members of a team the following ones."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled and hasattr(os, "sched_setaffinity") and _TASKS.is_dir()
        self._cpus = sorted(os.sched_getaffinity(0)) if self._enabled else []

    def start(self, make: Callable[[], T]) -> T:
        """Return what ``make`` returns: the owner of one team, whose threads then stay on their CPUs."""
        before = _thread_ids()
        made = make()
        if self._enabled:
            for index, thread_id in enumerate(sorted(_thread_ids() - before), start=1):
                os.sched_setaffinity(thread_id, {self._cpus[index % len(self._cpus)]})
        return made

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the calling thread on the first CPU."""
        if not self._enabled:
            yield
            return
        os.sched_setaffinity(0, {self._cpus[0]})
        try:
            yield
        finally:
            os.sched_setaffinity(0, self._cpus)


def _thread_ids() -> set[int]:
    return {int(path.name) for path in _TASKS.iterdir()} if _TASKS.is_dir() else set()
