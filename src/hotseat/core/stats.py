"""Counts of one moment."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SchedulerStats"]


class SchedulerStats(NamedTuple):
    """What the scheduler holds, and what it did since it was made. A tuple, because every step makes one."""

    num_running: int
    num_waiting: int
    num_queued_tokens: int  # prompt tokens of the requests that never had a seat
    num_seats: int
    blocks_used: int  # blocks_used + blocks_free is the whole pool
    blocks_cached: int  # of the free ones: hold content that can be hit
    blocks_free: int
    num_preemptions: int
    num_evictions: int
    num_steps: int
    num_prompt_tokens: int  # of the requests that were admitted, and how many of these came from the prefix cache
    num_cached_tokens: int
    num_hopeless: int  # deadline: requests whose first token could not be in time any more
    step_time_error: float | None  # with a latency target: mean of |predicted - taken| / taken
