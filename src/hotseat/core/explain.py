"""Explanations: the state of a request, what it waits for and how long it has waited for each reason.

A waiting request is not touched to note that it still waits. The reason of the queue as a whole is kept in one
``WaitTimes``; a request notes its totals when it is enqueued, and the difference is its share. Only a request with a
reason of its own (its blocks do not fit, a prefix is in flight) has a span of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotseat.core.events import SchedulerStats
from hotseat.core.request import BlockReason, FinishReason, Request, RequestId, RequestStatus, Wait

__all__ = [
    "Explanation",
    "FinishedRequest",
    "WaitTimes",
    "explain_arriving",
    "explain_compiling",
    "explain_finished",
    "explain_running",
    "explain_waiting",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The state of a request that waits or runs."""

    request_id: RequestId
    status: RequestStatus
    reason: str  # one sentence: what binds it now
    seat: int | None
    num_prompt_tokens: int
    num_output_tokens: int
    num_computed_tokens: int
    num_cached_tokens: int
    num_ahead: int | None  # waiting requests before it in the policy's order; None when it runs
    needs_blocks: int | None  # to be admitted, where that is what it waits for
    blocks_free: int
    num_free_seats: int
    waited_s: dict[str, float]  # by reason, over all its waits
    times_passed: int
    passed_by: tuple[RequestId, ...]  # the last ones
    num_preemptions: int
    preempted_by: tuple[str, ...]  # the last causes
    num_draft_tokens: int = 0  # guessed and verified
    num_accepted_tokens: int = 0  # of these, found true


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """The history of a request that ended. Instants are those of the step records' clock."""

    request_id: RequestId
    status: RequestStatus
    finish_reason: FinishReason
    error: str | None
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    arrived_at: float
    admitted_at: float | None  # None: it never had a seat
    first_token_at: float | None
    finished_at: float
    ttft_s: float | None
    waited_s: dict[str, float]  # by reason, over all its waits
    times_passed: int
    passed_by: tuple[RequestId, ...]  # the last ones
    num_preemptions: int
    preempted_by: tuple[str, ...]  # the last causes
    num_draft_tokens: int = 0  # guessed and verified
    num_accepted_tokens: int = 0  # of these, found true


class WaitTimes:
    """Accounting of waiting times: the seconds that the queue as a whole has waited for each reason."""

    def __init__(self) -> None:
        self.reason = BlockReason.NEXT_STEP
        self._since = 0.0
        self._spent: dict[str, float] = {}

    def set_reason(self, reason: BlockReason, now: float) -> None:
        """Note what the queue waits for from ``now`` on."""
        if reason is not self.reason:
            self._spent = self.totals(now)
            self.reason, self._since = reason, now

    def totals(self, now: float) -> dict[str, float]:
        """Return the seconds of each reason until ``now``."""
        spent = dict(self._spent)
        spent[self.reason.value] = spent.get(self.reason.value, 0.0) + now - self._since
        return spent

    def start(self, wait: Wait, now: float, reason: BlockReason | None = None) -> None:
        """Start a span of ``wait``: for a ``reason`` of its own, or for whatever the queue waits for."""
        wait.reason, wait.since, wait.detail = reason, now, ""
        wait.baseline = {} if reason else self.totals(now)

    def stop(self, wait: Wait, now: float) -> None:
        """Add the present span of ``wait`` to what it has spent."""
        wait.spent = self.spent(wait, now)
        wait.since, wait.baseline = now, self.totals(now)

    def spent(self, wait: Wait, now: float) -> dict[str, float]:
        """Return the seconds that ``wait`` has spent by reason, the present span included."""
        spent = dict(wait.spent)
        if wait.reason:
            spent[wait.reason.value] = spent.get(wait.reason.value, 0.0) + now - wait.since
            return spent
        for reason, seconds in self.totals(now).items():
            share = seconds - wait.baseline.get(reason, 0.0)
            if share > 0:
                spent[reason] = spent.get(reason, 0.0) + share
        return spent


def explain_waiting(
    request: Request, now: float, times: WaitTimes, *, num_ahead: int, blocks_free: int, num_free_seats: int
) -> Explanation:
    """Explain a request that holds no seat."""
    wait = request.wait
    queue = f"the queue waits for: {times.reason.value}"
    needs_blocks = wait.needs_blocks or None
    if wait.owner is not None:
        reason = wait.own_reason
    elif needs_blocks:
        reason = f"blocks: needs {needs_blocks}, {blocks_free} free; {queue}"
    elif request.num_preemptions:
        reason = f"preempted: resumes before all that are not strictly more urgent; {queue}"
    else:
        reason = f"policy: {num_ahead} ahead; {queue}" if num_ahead else f"first in the queue; {queue}"
    return _explanation(request, reason, num_ahead, needs_blocks, blocks_free, num_free_seats, times.spent(wait, now))


def explain_arriving(request: Request, now: float, stats: SchedulerStats) -> Explanation:
    """Explain a request that came while a step is computed; it enters the queue when the step ends."""
    reason, waited_s = BlockReason.NEXT_STEP.value, now - request.arrived_at
    text = f"{reason}: it enters the queue when the present one ends"
    return _outside_queue(request.id, text, {reason: waited_s}, stats, request.num_prompt_tokens)


def explain_compiling(request_id: RequestId, waited_s: float, stats: SchedulerStats) -> Explanation:
    """Explain a request whose grammar is being compiled; it is not in the queue yet."""
    reason = BlockReason.GRAMMAR.value
    return _outside_queue(request_id, f"{reason}: it is being compiled", {reason: waited_s}, stats, 0)


def _outside_queue(
    request_id: RequestId, reason: str, waited_s: dict[str, float], stats: SchedulerStats, num_prompt_tokens: int
) -> Explanation:
    return Explanation(
        request_id=request_id,
        status=RequestStatus.WAITING,
        reason=reason,
        seat=None,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=0,
        num_computed_tokens=0,
        num_cached_tokens=0,
        num_ahead=None,
        needs_blocks=None,
        blocks_free=stats.blocks_free,
        num_free_seats=stats.num_seats - stats.num_running,
        waited_s=waited_s,
        times_passed=0,
        passed_by=(),
        num_preemptions=0,
        preempted_by=(),
    )


def explain_running(request: Request, *, blocks_free: int, num_free_seats: int) -> Explanation:
    """Explain a request that holds a seat."""
    lacks = request.num_tokens - request.num_computed_tokens
    reason = "runs: decodes one token a step" if lacks == 1 else f"runs: {lacks} tokens to prefill"
    return _explanation(request, reason, None, None, blocks_free, num_free_seats, dict(request.wait.spent))


def explain_finished(request: Request, reason: FinishReason, error: str | None, now: float) -> FinishedRequest:
    """Explain a request that ended at ``now``."""
    first_at = request.first_token_at
    return FinishedRequest(
        request_id=request.id,
        status=RequestStatus.FINISHED,
        finish_reason=reason,
        error=error,
        num_prompt_tokens=request.num_prompt_tokens,
        num_output_tokens=len(request.output_token_ids),
        num_cached_tokens=request.num_cached_tokens,
        arrived_at=request.arrived_at,
        admitted_at=request.admitted_at,
        first_token_at=first_at,
        finished_at=now,
        ttft_s=None if first_at is None else first_at - request.arrived_at,
        waited_s=dict(request.wait.spent),
        times_passed=request.wait.num_passed,
        passed_by=tuple(request.wait.passed_by),
        num_preemptions=request.num_preemptions,
        preempted_by=tuple(request.wait.preempted_by),
        num_draft_tokens=request.num_draft_tokens,
        num_accepted_tokens=request.num_accepted_tokens,
    )


def _explanation(
    request: Request,
    reason: str,
    num_ahead: int | None,
    needs_blocks: int | None,
    blocks_free: int,
    num_free_seats: int,
    waited_s: dict[str, float],
) -> Explanation:
    return Explanation(
        request_id=request.id,
        status=request.status,
        reason=reason,
        seat=request.seat,
        num_prompt_tokens=request.num_prompt_tokens,
        num_output_tokens=len(request.output_token_ids),
        num_computed_tokens=request.num_computed_tokens,
        num_cached_tokens=request.num_cached_tokens,
        num_ahead=num_ahead,
        needs_blocks=needs_blocks,
        blocks_free=blocks_free,
        num_free_seats=num_free_seats,
        waited_s=waited_s,
        times_passed=request.wait.num_passed,
        passed_by=tuple(request.wait.passed_by),
        num_preemptions=request.num_preemptions,
        preempted_by=tuple(request.wait.preempted_by),
        num_draft_tokens=request.num_draft_tokens,
        num_accepted_tokens=request.num_accepted_tokens,
    )
