"""The engine as everybody else sees it: submit, stream, abort.

Theory of operation. One thread owns the scheduler (``worker``); everybody else sends it something.

    commands   a queue of calls, applied between two steps, in order; the idle thread sleeps on it
    ends       aborts and finishes; applied between two steps, and also when a step was computed but its result not yet
               taken, so that an abort wins over the result of the running step
    outbox     what the event loops are told: collected during a step, handed over in one ``call_soon_threadsafe``

A request whose client has left is a request whose stream was closed, and that is an abort.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from hotseat.core.batch import Runner
from hotseat.core.events import SchedulerStats, StepRecord
from hotseat.core.explain import Explanation, FinishedRequest
from hotseat.core.request import FinishReason, Request, RequestId
from hotseat.core.scheduler import Scheduler
from hotseat.engine.health import Health, Pulse
from hotseat.engine.inbox import Inbox
from hotseat.engine.ports import Clock, EventSink, MonotonicClock
from hotseat.engine.records import FinishedRing, StepRing
from hotseat.engine.stream import Mailbox, RequestStream, UpdateStream
from hotseat.engine.worker import Worker

__all__ = ["Engine"]

T = TypeVar("T")
NUM_FINISHED = 256  # sequences that can be asked about after their end


class Engine:
    """Run ``scheduler`` and ``runner`` in a thread of their own and stream updates to asyncio.

    ``submit``, ``submit_all``, ``explain`` and ``reset_prefix_cache`` are for coroutines, the rest for any thread.
    The engine owns both objects from now on; the runner is closed when the thread ends.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        clock: Clock | None = None,
        sinks: Sequence[EventSink] = (),
        stall_timeout_s: float = 60.0,
        num_step_records: int = 4096,
    ) -> None:
        self.clock = clock or MonotonicClock()
        self._scheduler = scheduler
        self._records = StepRing(num_step_records)
        self._finished = FinishedRing(NUM_FINISHED)
        self._pulse = Pulse(self.clock, stall_timeout_s)
        self._inbox = Inbox(closed_because="the engine was not started")
        self._worker = Worker(
            scheduler,
            runner,
            clock=self.clock,
            sinks=[self._records, self._finished, *sinks],
            inbox=self._inbox,
            pulse=self._pulse,
        )
        self._thread = threading.Thread(target=self._worker.run, name="hotseat-engine", daemon=True)

    def start(self) -> None:
        """Start the engine thread; once."""
        self._inbox.open()
        self._thread.start()

    def stop(self, drain_s: float = 0.0) -> None:
        """Refuse new requests, let the others run for up to ``drain_s``, abort what is left; returns when all is done.

        Idempotent; a later call can only shorten the time. It blocks: while streams are being read, call it from
        another thread than the event loop's.
        """
        self._worker.ask_to_stop(self.clock.now() + drain_s)
        self._inbox.close("the engine is stopped")
        if self._thread.ident is not None:
            self._thread.join()

    async def submit(self, request: Request) -> RequestStream:
        """Hand in ``request`` and return the stream of its updates.

        Raises:
            InvalidRequestError: it can never run, or its id is in use.
            QueueFullError: the waiting queue is at its limit.
            EngineStoppedError: the engine takes no requests.
        """
        return RequestStream(request.id, await self.submit_all([request]))

    async def submit_all(self, requests: Sequence[Request]) -> UpdateStream:
        """Hand in ``requests``, all or none, and return one stream of the updates of all; raises as ``submit``."""
        loop = asyncio.get_running_loop()
        mailbox = Mailbox((request.id for request in requests), loop)
        accepted: asyncio.Future[None] = loop.create_future()
        self._inbox.send(partial(self._worker.admit, requests, mailbox, accepted))
        try:
            await accepted
        except asyncio.CancelledError:
            self._inbox.send_behind(partial(self._worker.abort_all, mailbox.close()))
            raise
        return UpdateStream(mailbox, self.abort)

    def abort(self, request_id: RequestId) -> None:
        """End a request now; wins over the step that is being computed. Any thread, any time, idempotent."""
        self._inbox.end(request_id, FinishReason.ABORT)

    def finish(self, request_id: RequestId, reason: FinishReason) -> None:
        """End a request now for ``reason``; otherwise as ``abort``."""
        self._inbox.end(request_id, reason)

    async def explain(self, request_id: RequestId) -> Explanation | None:
        """Say where a request is and what it waits for; ``None`` when it is unknown or has ended."""
        return await self._ask(lambda: self._scheduler.explain(request_id, self.clock.now()))

    def finished(self, request_id: RequestId) -> FinishedRequest | None:
        """Say what became of a request; ``None`` when it has not ended, or is not among the last that did."""
        return self._finished.get(request_id)

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached content; false when blocks are still in use by running requests."""
        return await self._ask(self._scheduler.reset_prefix_cache)

    def stats(self) -> SchedulerStats:
        """Return the scheduler's numbers as they were after the last step or command."""
        return self._worker.stats

    def step_records(self, since: int = -1, limit: int | None = None) -> list[StepRecord]:
        """Return the kept records of steps after number ``since``, oldest first; with ``limit``, only the newest."""
        return self._records.since(since, limit)

    def health(self) -> Health:
        """Tell whether requests are taken and make progress."""
        reason = self._inbox.closed_because
        if reason is not None and not self._thread.is_alive():
            return Health(alive=False, reason=reason)
        return self._pulse.read()

    async def _ask(self, question: Callable[[], T]) -> T:
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._inbox.send(partial(self._worker.answer, question, answer))
        return await answer
