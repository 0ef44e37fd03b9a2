"""The engine: one thread that runs the steps, and the calls by which other threads reach it.

Theory of operation. One thread owns scheduler, runner and step loop; all others send it something.

    commands   a queue of calls, applied between two steps, in order; the idle thread sleeps on it
    questions  reads of the state, answered at once: the state does not change while a step is computed (``StateLock``)
    aborts     ends of requests; applied between two steps, and also when a step was computed but its result not yet
               taken, so that an abort wins over the result of the running step
    outputs    news for the event loops: collected during a step, handed over in one ``call_soon_threadsafe``

A request whose client has left is a request whose stream was closed, and that is an abort.

**Invariant:** every accepted request gets exactly one end, whatever fails: the runner (the requests of that batch end
with an error), the scheduler (all do), or the thread (all do, and nothing is accepted any more).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from hotseat.core.batch import Batch, RequestUpdate, Runner, StepOutput
from hotseat.core.events import EventSink, SchedulerStats, StepRecord
from hotseat.core.explain import Explanation, FinishedRequest, explain_arriving
from hotseat.core.request import FinishReason, Request, RequestId
from hotseat.core.scheduler import Scheduler
from hotseat.engine.clock import Clock, MonotonicClock
from hotseat.engine.commands import Command, CommandQueue
from hotseat.engine.health import Health, Watchdog
from hotseat.engine.outputs import OutputQueue
from hotseat.engine.records import FinishedRing, StepRing
from hotseat.engine.state_lock import StateLock
from hotseat.engine.step_loop import StepLoop
from hotseat.engine.stream import RequestQueue, UpdateStream
from hotseat.errors import HotseatError

__all__ = ["Engine"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
NUM_FINISHED = 256  # sequences that can be asked about after their end
# At most so long until the next look after a step that could do nothing: a batching mode waits for more requests.
MAX_IDLE_WAIT_S = 1.0


class _OpenRunner:
    """A runner during whose steps the state, which does not change then, can be read.

    ``on_pause`` is told the seconds between two steps while there is work.
    """

    def __init__(self, runner: Runner, state: StateLock, clock: Clock, on_pause: Callable[[float], None]) -> None:
        self._runner = runner
        self._state = state
        self._clock = clock
        self._on_pause = on_pause
        self._ended_at: float | None = None  # the last step; None when there was nothing to do since
        self.close = runner.close

    def execute(self, batch: Batch) -> StepOutput:
        if self._ended_at is not None and batch.chunks:
            self._on_pause(self._clock.now() - self._ended_at)
        try:
            with self._state.released():
                return self._runner.execute(batch)
        finally:
            self._ended_at = self._clock.now()

    def rest(self) -> None:
        """Note that there is nothing to do: the time until the next step is no pause."""
        self._ended_at = None


class Engine:
    """Run ``scheduler`` and ``runner`` in a thread of their own and stream updates to asyncio.

    ``submit``, ``explain`` and ``reset_prefix_cache`` are for coroutines, the other public methods for any thread; the
    private ones run in the engine thread. The engine owns both objects from now on; the runner is closed when the
    thread ends. ``on_pause`` is told, in the engine thread, how long each pause between two steps with work left was.
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
        on_pause: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.clock = clock or MonotonicClock()
        self._scheduler = scheduler
        self._stats = scheduler.stats()
        self._records = StepRing(num_step_records)
        self._finished = FinishedRing(NUM_FINISHED)
        self._watchdog = Watchdog(self.clock, stall_timeout_s)
        self._commands = CommandQueue(closed_because="the engine was not started")
        self._outputs = OutputQueue(on_lost=self.abort)
        self._state = StateLock()
        self._runner = _OpenRunner(runner, self._state, self.clock, on_pause)
        self._loop = StepLoop(
            scheduler,
            self._runner,
            clock=self.clock,
            sinks=[self._records, self._finished, *sinks],
            before_update=self._apply_known_aborts,
        )
        self._queues: dict[RequestId, RequestQueue] = {}  # of the accepted requests that have not ended
        self._arriving: dict[RequestId, Request] = {}  # submitted, not yet accepted or refused
        self._stop_at: float | None = None
        self._is_broken = False
        self._thread = threading.Thread(target=self._run, name="hotseat-engine", daemon=True)

    def start(self) -> None:
        """Start the engine thread; once."""
        self._commands.open()
        self._thread.start()

    def stop(self, drain_s: float = 0.0) -> None:
        """Refuse new requests, let the others run for up to ``drain_s``, abort what is left; returns when all is done.

        Idempotent; a later call can only shorten the time. It blocks: while streams are being read, call it from
        another thread than the event loop's.
        """
        stop_at = self.clock.now() + drain_s
        self._stop_at = stop_at if self._stop_at is None else min(self._stop_at, stop_at)
        self._commands.close("the engine is stopped")
        if self._thread.ident is not None:
            self._thread.join()

    async def submit(self, requests: Sequence[Request]) -> UpdateStream:
        """Hand in ``requests``, all or none, and return one stream of the updates of all.

        Raises:
            InvalidRequestError: one of them can never run, or its id is in use.
            QueueFullError: the waiting queue is at its limit.
            EngineStoppedError: the engine takes no requests.
        """
        loop = asyncio.get_running_loop()
        queue = RequestQueue((request.id for request in requests), loop)
        accepted: asyncio.Future[None] = loop.create_future()
        self._arriving.update((request.id, request) for request in requests)
        try:
            self._commands.send(partial(self._accept, requests, queue, accepted))
            await accepted
        except asyncio.CancelledError:
            self._commands.send_always(partial(self._abort_all, queue.close()))
            raise
        finally:
            for request in requests:
                self._arriving.pop(request.id, None)
        return UpdateStream(queue, self.abort)

    def abort(self, request_id: RequestId) -> None:
        """End a request now; wins over the step that is being computed. Any thread, any time, idempotent."""
        self._commands.abort(request_id, FinishReason.ABORT)

    def finish(self, request_id: RequestId, reason: FinishReason) -> None:
        """End a request now for ``reason``; otherwise as ``abort``."""
        self._commands.abort(request_id, reason)

    async def explain(self, request_id: RequestId) -> Explanation | None:
        """Return the state of a request and what it waits for, at once, also while a step is computed.

        ``None`` when it is unknown or has ended.
        """
        return await self._state.ask(partial(self._explain, request_id))

    def is_known(self, request_id: RequestId) -> bool:
        """Tell whether a request was submitted and has not ended."""
        return request_id in self._queues or request_id in self._arriving

    def finished(self, request_id: RequestId) -> FinishedRequest | None:
        """Return the history of a request; ``None`` when it has not ended, or is not among the last that did."""
        return self._finished.get(request_id)

    def finished_ids(self) -> list[RequestId]:
        """Return the ids of the requests that ended last, oldest first."""
        return self._finished.ids()

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached content; false when blocks are still in use by running requests."""
        return await self._ask(self._scheduler.reset_prefix_cache)

    def stats(self) -> SchedulerStats:
        """Return the scheduler's numbers as they were after the last step or command."""
        return self._stats

    def step_records(self, since: int = -1, limit: int | None = None) -> list[StepRecord]:
        """Return the kept records of steps after number ``since``, oldest first; with ``limit``, only the newest."""
        return self._records.since(since, limit)

    def health(self) -> Health:
        """Tell whether requests are taken and make progress."""
        reason = self._commands.closed_because
        if reason is not None and not self._thread.is_alive():
            return Health(alive=False, reason=reason)
        return self._watchdog.read()

    async def _ask(self, question: Callable[[], T]) -> T:
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._commands.send(partial(self._answer, question, answer))
        return await answer

    def _explain(self, request_id: RequestId) -> Explanation | None:
        """Read the state, which the caller has locked."""
        now = self.clock.now()
        explanation = self._scheduler.explain(request_id, now)
        if explanation is None:
            request = self._arriving.get(request_id)
            return None if request is None else explain_arriving(request, now, self._stats)
        if self._commands.is_aborted(request_id):
            return replace(explanation, reason="ends: aborted; seat and blocks are free when the present step ends")
        return explanation

    # From here on: in the engine thread, and but for ``_run`` and ``_run_once`` with the state locked.

    def _run(self) -> None:
        """Work until told to stop or broken; on return every request has ended and the runner is closed."""
        goes_on = True
        while goes_on and not self._is_broken:
            try:
                goes_on = self._run_once()
            except Exception as error:
                with self._state:
                    self._recover(error)
        with self._state:
            self._drain()

    def _run_once(self) -> bool:
        """Apply what was sent and run one step; sleeps when there is nothing to do. False when it is time to go."""
        has_work = self._loop.has_work
        if not has_work:
            self._runner.rest()
        if not has_work or not self._commands.is_empty:
            # Told to stop after this look, it is woken: stop() sets the time before it closes the queue, which wakes.
            is_idle = not has_work and self._stop_at is None
            commands = list(self._commands.take_commands(wait_s=None if is_idle else 0.0))
            with self._state:
                self._apply(commands)
            has_work = self._loop.has_work
        if self._stop_at is not None and (not has_work or self.clock.now() >= self._stop_at):
            return False
        if has_work:
            with self._state:
                self._step()
            if self._loop.has_work and not self._loop.has_progressed:
                self._wait_for_event()
        return True

    def _wait_for_event(self) -> None:
        """Sleep after a step that could do nothing, until time or a command changes something."""
        self._runner.rest()
        next_event_at = self._scheduler.next_event_at()
        wait_s = MAX_IDLE_WAIT_S if next_event_at is None else next_event_at - self.clock.now()
        commands = list(self._commands.take_commands(wait_s=min(max(wait_s, 0.0), MAX_IDLE_WAIT_S)))
        with self._state:
            self._apply(commands)

    def _step(self) -> None:
        updates = self._loop.step()
        has_work, has_progressed = self._loop.has_work, self._loop.has_progressed
        can_progress = has_work and not self._scheduler.is_gathering
        self._watchdog.note_step(self._loop.failure, has_progressed=has_progressed, has_work=can_progress)
        self._publish(updates)

    def _recover(self, error: Exception) -> None:
        """Answer every client after a bug; go on if it came with a request and the scheduler, now empty, is sound."""
        reason = f"the scheduler failed: {type(error).__name__}: {error}"
        logger.error("%s; every request ends with an error", reason, exc_info=error)
        updates = self._loop.fail_all(reason)
        if not updates or not self._loop.check():
            self._is_broken = True
            self._commands.close(reason)
        self._watchdog.note_step(reason, has_progressed=False, has_work=False)
        self._publish(updates)

    def _publish(self, updates: Sequence[RequestUpdate]) -> None:
        """Send news to the streams. A reader that acts on them finds stats and health as they are after the step."""
        known_error, self._stats = self._stats.policy_error, self._scheduler.stats()
        if self._stats.policy_error != known_error:
            logger.error("%s; requests are now ordered as under fcfs", self._stats.policy_error)
        for update in updates:
            queue = self._queues.get(update.request_id)
            if queue is None:
                continue
            self._outputs.put_update(queue, update)
            if update.finish_reason is not None:
                del self._queues[update.request_id]
        self._outputs.flush()

    def _apply(self, commands: Sequence[Command]) -> None:
        """Carry out ``commands`` and the aborts that were sent."""
        for command in commands:
            command()
        updates = [self._loop.finish(request_id, reason) for request_id, reason in self._commands.take_aborts()]
        self._publish([update for update in updates if update is not None])

    def _apply_known_aborts(self) -> None:
        """Apply the aborts of accepted requests; others may still wait in the queue of commands."""
        for request_id, reason in self._commands.take_aborts():
            if request_id not in self._loop:
                self._commands.put_back(request_id, reason)
            elif (update := self._loop.finish(request_id, reason)) is not None:
                self._publish([update])

    def _accept(self, requests: Sequence[Request], queue: RequestQueue, accepted: asyncio.Future[None]) -> None:
        """Add all of ``requests`` or none, and resolve or refuse ``accepted``."""
        try:
            self._commands.check_open()
            self._add_all(requests)
        except Exception as error:
            if not isinstance(error, HotseatError):
                logger.exception("the scheduler failed to take a request")
            self._outputs.refuse(accepted, error)
            return
        self._queues.update((request.id, queue) for request in requests)
        self._outputs.resolve(accepted)
        self._watchdog.start_work()

    def _answer(self, question: Callable[[], T], answer: asyncio.Future[T]) -> None:
        """Resolve ``answer`` with the result of ``question``, asked after all aborts that were sent before."""
        try:
            self._apply_known_aborts()
            self._outputs.resolve(answer, question())
        except Exception as error:
            self._outputs.refuse(answer, error)

    def _abort_all(self, request_ids: Sequence[RequestId]) -> None:
        """Abort those of ``request_ids`` that are accepted and have not ended."""
        for request_id in request_ids:
            update = self._loop.abort(request_id)
            if update is not None:
                self._publish([update])

    def _add_all(self, requests: Sequence[Request]) -> None:
        added: list[RequestId] = []
        try:
            for request in requests:
                self._loop.add(request)
                added.append(request.id)
        except BaseException:
            self._abort_all(added)
            raise

    def _drain(self) -> None:
        """End what is left, answer what was sent too late, close the runner."""
        self._commands.close("the engine is stopped")
        try:
            self._abort_all(self._loop.request_ids)
            if self._loop.has_work and not self._is_broken:
                self._loop.step()  # passes the news of the aborts on to runner and sinks
        except Exception as error:
            self._recover(error)
        self._apply(list(self._commands.take_commands()))  # new requests are refused, aborts find nothing
        try:
            self._loop.close()
        except Exception:
            logger.exception("the runner could not be closed")
