"""Who is offered a seat next: everybody who waits, or behind the gate of a batching mode the present batch."""

from __future__ import annotations

from hotseat.core.batching import Gate
from hotseat.core.plan import Plan
from hotseat.core.policy import Passing, Policy
from hotseat.core.request import Request, RequestId
from hotseat.core.running import RunningSet
from hotseat.core.waiting import WaitingQueue

__all__ = ["Entrance"]


class Entrance:
    """The queue as admission sees it. ``preempted`` are those who wait to resume: no gate keeps them out."""

    def __init__(
        self,
        gate: Gate,
        policy: Policy,
        waiting: WaitingQueue,
        running: RunningSet,
        preempted: dict[RequestId, Request],
    ) -> None:
        self.gate = gate
        self._passing = policy if isinstance(policy, Passing) else None
        self._waiting = waiting
        self._running = running
        self._preempted = preempted

    @property
    def is_continuous(self) -> bool:
        return self.gate.is_continuous

    @property
    def is_gathering(self) -> bool:
        """Tell whether a batching mode waits for more requests before it lets anybody sit down."""
        return bool(len(self._waiting)) and not (self._running.requests or self._preempted or self.gate.is_open)

    def arrived(self) -> None:
        """Note that somebody came: others may follow, so an incomplete batch is worth waiting for again."""
        self.gate.is_flushing = False

    def flush(self) -> None:
        """Note that nobody else will come for now."""
        self.gate.is_flushing = True

    def look(self, now: float, oldest_at: float | None) -> None:
        """Form the next batch when the last one has ended and it is time; ``oldest_at`` as ``Gate.is_due`` has it."""
        if self._running.requests or self._preempted or self.gate.members:
            return
        if self.gate.is_due(now, len(self._waiting), oldest_at):
            self.gate.let_in(sorted(self._waiting, key=self._waiting.rank))

    def first(self, plan: Plan) -> Request | None:
        """Return the first request in the order that may be offered a seat."""
        return self._first(plan, short_only=False)

    def first_short(self, plan: Plan) -> Request | None:
        """Return the first of the short ones, if it may pass beside the long prompts that are computed."""
        request, passing = self._first(plan, short_only=True), self._passing
        if request is not None and passing is not None:
            long = [other for other in self._running.prefilling.values() if other.is_long]
            return request if all(passing.may_pass(request, other) for other in long) else None
        return request

    def _first(self, plan: Plan, *, short_only: bool) -> Request | None:
        waiting, closed_lanes = self._waiting, plan.closed_lanes
        if self.gate.is_continuous:
            return waiting.first(plan.now, closed_lanes=closed_lanes, short_only=short_only)
        offered = [
            request
            for request in (*self.gate.members.values(), *self._preempted.values())
            if waiting.is_offered(request)
            and request.wait.lane not in closed_lanes
            and (waiting.is_short(request) or not short_only)
        ]
        return min(offered, key=waiting.rank, default=None)
