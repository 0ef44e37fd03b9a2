"""Step records and counts, which metrics, timeline, traces and simulator read, and the interface of these readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from hotseat.core.batch import Chunk, Deferral, Preemption, RequestUpdate
from hotseat.core.request import FinishReason, Request, RequestId

__all__ = ["EventSink", "Scheduled", "SchedulerStats", "StepRecord"]


class Scheduled(NamedTuple):
    """A chunk, as a reader of the record wants it."""

    seat: int
    request_id: RequestId
    start: int
    end: int
    phase: str  # "prefill" or "decode"
    total: int  # tokens that were known of the request; what it lacks after the step is total - end
    num_drafts: int = 0  # of the chunk's tokens, and those of them that were found true
    num_accepted: int = 0


class StepRecord(NamedTuple):
    """One step. ``blocks_used + blocks_free`` is the whole pool; ``blocks_cached`` of the free ones can be hit."""

    step: int
    start_s: float
    duration_s: float
    chunks: list[Chunk]  # the first num_decodes of them are decodes
    num_decodes: int
    prefill_totals: list[int]  # parallel to chunks[num_decodes:]: tokens known
    admitted: list[RequestId]
    finished: list[tuple[RequestId, FinishReason]]  # in this step, or aborted since the step before
    preempted: list[Preemption]
    deferred: list[Deferral]
    waiting: int
    blocks_used: int
    blocks_cached: int
    blocks_free: int
    budget: int  # tokens offered
    schedule_s: float = 0.0  # of duration_s: until the batch was formed; the rest computes it
    drafts: Sequence[tuple[RequestId, int, int]] = ()  # of decodes: tokens that they verified, and those found true

    @property
    def num_tokens(self) -> int:
        """Return the tokens computed, at most ``budget``."""
        return sum(chunk.end - chunk.start for chunk in self.chunks)

    def scheduled(self) -> Iterator[Scheduled]:
        """Yield the computed chunks, decodes first."""
        drafts = {request_id: counts for request_id, *counts in self.drafts}
        for chunk in self.chunks[: self.num_decodes]:
            counts = drafts.get(chunk.request_id, (0, 0))
            yield Scheduled(chunk.seat, chunk.request_id, chunk.start, chunk.end, "decode", chunk.end, *counts)
        for chunk, total in zip(self.chunks[self.num_decodes :], self.prefill_totals, strict=True):
            yield Scheduled(chunk.seat, chunk.request_id, chunk.start, chunk.end, "prefill", total)


class SchedulerStats(NamedTuple):
    """The scheduler's present counts, and its totals since it was made. A tuple, because every step makes one."""

    num_running: int
    num_waiting: int
    num_queued_tokens: int  # prompt tokens of the requests that never had a seat
    num_seats: int
    blocks_used: int  # blocks_used + blocks_free is the whole pool
    blocks_cached: int  # of the free ones: can be hit
    blocks_free: int
    num_preemptions: int
    num_evictions: int
    num_steps: int
    num_prompt_tokens: int  # of the requests that were admitted, and how many of these came from the prefix cache
    num_cached_tokens: int
    num_missed_deadlines: int  # deadline: requests whose first token could not be in time any more
    step_time_error: float | None  # with a latency target: mean of |predicted - taken| / taken
    policy_error: str | None = None  # the fault of a user's policy that fcfs replaced


class EventSink(Protocol):
    """An observer, called on the thread that runs the steps; must be quick and must not keep an update.

    Every method has a default that does nothing: subclass and override what is of interest.

    For one accepted request: ``on_arrived``, any number of ``on_step``, exactly one ``on_finished``. A step that ends a
    request calls ``on_step`` first.
    """

    def on_arrived(self, request: Request, now: float) -> None:
        """Take note that ``request`` was accepted and waits."""
        return

    def on_rejected(self, request: Request, error: Exception, now: float) -> None:
        """Take note that ``request`` was refused and never entered the queue."""
        return

    def on_step(self, record: StepRecord, updates: Sequence[RequestUpdate]) -> None:
        """Take note of a step; ``updates`` hold the tokens that it gave."""
        return

    def on_finished(self, request: Request, update: RequestUpdate, now: float) -> None:
        """Take note that ``request`` ended with ``update.finish_reason``."""
        return
