"""Batch formation: continuous, or static and dynamic as servers did it before, for comparison.

Continuous batching offers seats to every waiting request at every step. Static and dynamic batching form a batch: when
no request runs and ``batch_size`` of them wait (dynamic: or the oldest waited for ``max_delay_s``), the first ones in
the policy's order are its members, and no other is admitted until the last of them has ended. A preempted member may
resume at any time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice

from hotseat.core.config import SchedulerConfig
from hotseat.core.deferred import DeferredRequests
from hotseat.core.policy import Policy, overrides
from hotseat.core.request import Request
from hotseat.core.running import RunningSet
from hotseat.core.step_builder import StepBuilder
from hotseat.core.waiting import WaitingQueue

__all__ = ["BatchFormer"]


class BatchFormer:
    """Choose which waiting request is offered a seat next."""

    def __init__(
        self,
        config: SchedulerConfig,
        policy: Policy,
        waiting: WaitingQueue,
        running: RunningSet,
        deferred: DeferredRequests,
    ) -> None:
        self.is_continuous = config.batching == "continuous"
        self._batch_size = config.batch_size or config.max_num_seqs
        self._max_delay_s = config.max_delay_ms / 1000 if config.batching == "dynamic" else math.inf
        self._members: dict[int, Request] = {}  # of the present batch, not admitted yet, by serial
        self._is_flushing = False  # no other request will come: an incomplete batch starts at once
        self._may_pass = policy.may_pass if overrides(policy, "may_pass") else None
        self._waiting = waiting
        self._running = running
        self._deferred = deferred

    @property
    def is_gathering(self) -> bool:
        """Tell whether a batching mode waits for more requests before it admits any."""
        is_closed = not (self.is_continuous or self._members)
        return is_closed and bool(len(self._waiting)) and not (self._running.requests or self._deferred.preempted)

    def note_arrival(self) -> None:
        """Note that a request came: others may follow, so an incomplete batch is worth waiting for again."""
        self._is_flushing = False

    def flush(self) -> None:
        """Note that no other request will come for now."""
        self._is_flushing = True

    def remove(self, request: Request) -> None:
        """Note that ``request`` was admitted or ended."""
        self._members.pop(request.serial, None)

    def form(self, now: float, oldest_at: float | None) -> None:
        """Form the next batch when the last one has ended and it is time.

        ``oldest_at`` is the arrival of the oldest request that never had a seat; ``None`` without any.
        """
        if self._running.requests or self._deferred.preempted or self._members or not len(self._waiting):
            return
        is_late = oldest_at is not None and now >= self.opens_at(oldest_at)
        if len(self._waiting) >= self._batch_size or is_late or self._is_flushing:
            first = islice(sorted(self._waiting, key=self._waiting.rank), self._batch_size)
            self._members = {request.serial: request for request in first}

    def opens_at(self, oldest_at: float) -> float:
        """Return when a request that arrived at ``oldest_at`` need not wait for more to come."""
        return oldest_at + self._max_delay_s

    def first(self, step: StepBuilder) -> Request | None:
        """Return the first request in the order that may be offered a seat."""
        return self._first(step, short_only=False)

    def first_short(self, step: StepBuilder) -> Request | None:
        """Return the first of the short ones, if it may pass beside the long prompts that are computed."""
        request, may_pass = self._first(step, short_only=True), self._may_pass
        if request is not None and may_pass is not None:
            long = [other for other in self._running.prefilling.values() if other.is_long]
            return request if all(may_pass(request, other) for other in long) else None
        return request

    def _first(self, step: StepBuilder, *, short_only: bool) -> Request | None:
        waiting, closed = self._waiting, step.closed_buckets
        if self.is_continuous:
            first = waiting.first(step.now, closed_buckets=closed, short_only=short_only)
        else:
            first = self._first_of(self._members, step, short_only=short_only)
        if not self._deferred.preempted:
            return first
        preempted = self._first_of(self._deferred.preempted, step, short_only=short_only)
        if preempted is None or first is None:
            return preempted or first
        return preempted if self._deferred.resumes_before(preempted, first) else first

    def _first_of(self, requests: Mapping[int, Request], step: StepBuilder, *, short_only: bool) -> Request | None:
        waiting = self._waiting
        offered = [
            request
            for request in requests.values()
            if waiting.is_offered(request)
            and request.wait.bucket not in step.closed_buckets
            and (waiting.is_short(request) or not short_only)
        ]
        return min(offered, key=waiting.rank, default=None)
