"""Threads beside the event loop in which prompts are tokenized: short ones pass long ones."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["TokenizerThreads"]

T = TypeVar("T")

# In characters, or token ids. Below the first, tokenizing takes less time than the way to another thread and back;
# above the second, it takes seconds at worst, and what it leaves of memory in the allocator is given back.
INLINE_SIZE = 256
LONG_SIZE = 256 * 1024
NUM_THREADS = 2


class TokenizerThreads:
    """A pool for usual prompts and one thread for long ones, which so wait for each other alone."""

    def __init__(self) -> None:
        self._usual = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="hotseat-tokenizer")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="hotseat-long-tokenizer")

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """Return what ``work``, on a prompt of ``size`` characters or ids, returns or raises."""
        if size <= INLINE_SIZE:
            return work()
        loop = asyncio.get_running_loop()
        if size <= LONG_SIZE:
            return await loop.run_in_executor(self._usual, work)
        return await loop.run_in_executor(self._long, _run_and_trim, work)

    def close(self) -> None:
        """Let the threads end; idempotent."""
        for pool in (self._usual, self._long):
            pool.shutdown(wait=False, cancel_futures=True)


def _run_and_trim(work: Callable[[], T]) -> T:
    try:
        return work()
    finally:
        _trim_memory()


def _trim_memory() -> None:
    """Return freed memory to the system, where the C library is glibc; it would keep the peak for ever."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)  # ctypes releases the GIL
