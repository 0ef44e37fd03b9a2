"""The engine's loop in virtual time: arrivals and aborts come when they are due, steps take what they are said to.

deliver   what is due: arrivals, then aborts
step      StepLoop.step; while it computes, aborts fall due as well and win over its result
skip      nothing runs: on to the next thing that can happen
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

from hotseat.core.batch import Batch, RequestUpdate
from hotseat.core.config import SchedulerConfig
from hotseat.core.events import EventSink
from hotseat.core.policy import Policy
from hotseat.core.request import RequestId
from hotseat.core.scheduler import Scheduler
from hotseat.engine import StepLoop, VirtualClock
from hotseat.errors import InvalidRequestError, QueueFullError
from hotseat.simulator.arrivals import Arrival, Script
from hotseat.simulator.runner import SimulatedRunner

__all__ = ["Simulation"]


class Simulation:
    """Run ``arrivals`` through a scheduler; ``sinks`` are told what happens, as in the engine.

    ``cost`` is how long a batch takes, ``between`` how long after a step of so many sequences the next one begins.
    A request that can never fit, or finds the queue full, is refused (``EventSink.on_rejected``); the others go on.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        arrivals: Iterable[Arrival],
        *,
        cost: Callable[[Batch], float],
        between: Callable[[int], float] | None = None,
        policy: Policy | None = None,
        sinks: Sequence[EventSink] = (),
    ) -> None:
        self.clock = VirtualClock()
        self.scheduler = Scheduler(config, policy)
        self._runner = SimulatedRunner(self.clock, cost)
        self.loop = StepLoop(
            self.scheduler, self._runner, clock=self.clock, sinks=sinks, before_update=self._deliver_aborts
        )
        self._pending = sorted(arrivals, key=lambda arrival: arrival.due_s)[::-1]  # the next one is the last
        self._aborts: list[tuple[float, int, RequestId]] = []  # a heap, of those who arrived: instant, rank
        self._num_added = 0
        self._between = between

    def run(self) -> None:
        """Go on until every request has ended."""
        while True:
            self.deliver()
            if self.loop.has_work:
                self.step()
                if self.loop.has_work and not self.loop.has_progressed:
                    self._skip()
            elif self._pending:
                self.clock.advance_to(self._pending[-1].due_s)
            else:
                return

    def deliver(self) -> None:
        """Let happen what is due by now."""
        now, pending = self.clock.now(), self._pending
        while pending and pending[-1].due_s <= now:
            self._add(pending.pop())
        self._deliver_aborts()

    def step(self) -> list[RequestUpdate]:
        """Run one step."""
        updates = self.loop.step()
        if self._between is not None:
            self.clock.advance(self._between(self._runner.num_sequences))
        assert self.loop.failure is None, f"the simulated runner failed: {self.loop.failure}"
        for update in updates:
            if update.finish_reason is not None:
                self._runner.forget(update.request_id)
        return updates

    def _add(self, arrival: Arrival) -> None:
        serial, self._num_added = self._num_added, self._num_added + 1
        request = arrival.to_request(serial)
        try:
            self.loop.add(request)
        except (InvalidRequestError, QueueFullError):
            return  # the sinks know
        self._runner.learn(request.id, Script(arrival, serial))
        if arrival.abort_at_s is not None:
            heapq.heappush(self._aborts, (arrival.abort_at_s, arrival.abort_rank, request.id))

    def _deliver_aborts(self) -> None:
        now = self.clock.now()
        while self._aborts and self._aborts[0][0] <= now:
            request_id = heapq.heappop(self._aborts)[2]
            if self.loop.abort(request_id) is not None:
                self._runner.forget(request_id)

    def _skip(self) -> None:
        """Advance to the next thing that can change anything: a batching mode waits for it."""
        events = [self.scheduler.next_event_at()]
        events += [self._pending[-1].due_s] if self._pending else []
        events += [self._aborts[0][0]] if self._aborts else []
        next_at = min((at for at in events if at is not None), default=None)
        if next_at is None:
            self.scheduler.flush()  # no request is left to come: an incomplete batch starts
            self.step()
            assert self.loop.has_progressed, "requests wait, nothing runs and nothing will change that"
        else:
            assert next_at > self.clock.now(), "something is due and nothing came of it"
            self.clock.advance_to(next_at)
