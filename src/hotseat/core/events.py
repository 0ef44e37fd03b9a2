"""What happened in a step: one compact value, read by metrics, timeline, traces and simulator alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hotseat.core.batch import Chunk, Deferral, Preemption
from hotseat.core.request import FinishReason, RequestId

__all__ = ["Scheduled", "StepRecord"]


class Scheduled(NamedTuple):
    """A chunk, as a reader of the record wants it."""

    seat: int
    request_id: RequestId
    start: int
    end: int
    phase: str  # "prefill" or "decode"
    total: int  # tokens that were known of the request; what it lacks after the step is total - end


class StepRecord(NamedTuple):
    """One step. ``blocks_used + blocks_free`` is the whole pool; ``blocks_cached`` of the free ones hold content."""

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

    @property
    def num_tokens(self) -> int:
        """Return the tokens computed, at most ``budget``."""
        return sum(chunk.end - chunk.start for chunk in self.chunks)

    def scheduled(self) -> Iterator[Scheduled]:
        """Yield who computed what, decodes first."""
        for chunk in self.chunks[: self.num_decodes]:
            yield Scheduled(chunk.seat, chunk.request_id, chunk.start, chunk.end, "decode", chunk.end)
        for chunk, total in zip(self.chunks[self.num_decodes :], self.prefill_totals, strict=True):
            yield Scheduled(chunk.seat, chunk.request_id, chunk.start, chunk.end, "prefill", total)
