"""What the engine thread does: take commands, run a step, tell the streams."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from hotseat.core.batch import RequestUpdate, Runner
from hotseat.core.request import FinishReason, Request, RequestId
from hotseat.core.scheduler import Scheduler
from hotseat.engine.health import Pulse
from hotseat.engine.inbox import Inbox
from hotseat.engine.outbox import Outbox
from hotseat.engine.ports import Clock, EventSink
from hotseat.engine.step_loop import StepLoop
from hotseat.engine.stream import Mailbox
from hotseat.errors import HotseatError

__all__ = ["Worker"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
# At most so long until the next look after a step that could do nothing: a batching mode waits for more requests.
MAX_FRUITLESS_WAIT_S = 1.0


class Worker:
    """Owns scheduler, runner and streams; every method but ``__init__`` and ``ask_to_stop`` runs in its thread.

    **Invariant:** every admitted request gets exactly one end, whatever fails: the runner (the requests of that batch
    end with an error), the scheduler (all do), or this thread (all do, and nothing is admitted any more).
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        clock: Clock,
        sinks: Sequence[EventSink],
        inbox: Inbox,
        pulse: Pulse,
    ) -> None:
        self.stats = scheduler.stats()
        self._scheduler = scheduler
        self._clock = clock
        self._inbox = inbox
        self._pulse = pulse
        self._loop = StepLoop(scheduler, runner, clock=clock, sinks=sinks, before_update=self._apply_known_ends)
        self._mailboxes: dict[RequestId, Mailbox] = {}  # of the admitted requests that have not ended
        self._outbox = Outbox(on_lost=lambda request_id: inbox.end(request_id, FinishReason.ABORT))
        self._stop_at: float | None = None
        self._is_broken = False

    def ask_to_stop(self, stop_at: float) -> None:
        """Let ``run`` return when nothing runs any more, at ``stop_at`` at the latest; from any thread."""
        self._stop_at = stop_at if self._stop_at is None else min(self._stop_at, stop_at)

    def run(self) -> None:
        """Work until told to stop or broken; on return every request has ended and the runner is closed."""
        goes_on = True
        while goes_on and not self._is_broken:
            try:
                goes_on = self._turn()
            except Exception as error:
                self._recover(error)
        self._wind_up()

    def _turn(self) -> bool:
        """Apply what was sent and run one step; sleeps when there is nothing to do. False when it is time to go."""
        has_work = self._loop.has_work
        if not has_work or not self._inbox.is_empty:
            # Told to stop after this look, it is woken: ask_to_stop comes before the inbox is closed, which wakes.
            is_idle = not has_work and self._stop_at is None
            self._apply_commands(wait_s=None if is_idle else 0.0)
            has_work = self._loop.has_work
        if self._stop_at is not None and (not has_work or self._clock.now() >= self._stop_at):
            return False
        if has_work:
            self._step()
        return True

    def _step(self) -> None:
        updates = self._loop.step()
        has_work, has_progressed = self._loop.has_work, self._loop.has_progressed
        can_progress = has_work and not self._scheduler.is_gathering
        self._pulse.note_step(self._loop.failure, has_progressed=has_progressed, has_work=can_progress)
        self._publish(updates)
        if has_work and not has_progressed:
            self._wait_for_a_change()

    def _wait_for_a_change(self) -> None:
        next_event_at = self._scheduler.next_event_at()
        wait_s = MAX_FRUITLESS_WAIT_S if next_event_at is None else next_event_at - self._clock.now()
        self._apply_commands(wait_s=min(max(wait_s, 0.0), MAX_FRUITLESS_WAIT_S))

    def _recover(self, error: Exception) -> None:
        """Answer every client after a bug; go on if it came with a request and the scheduler, now empty, is sound."""
        reason = f"the scheduler failed: {type(error).__name__}: {error}"
        logger.error("%s; every request ends with an error", reason, exc_info=error)
        updates = self._loop.fail_all(reason)
        if not updates or not self._loop.is_sound():
            self._is_broken = True
            self._inbox.close(reason)
        self._pulse.note_step(reason, has_progressed=False, has_work=False)
        self._publish(updates)

    def _publish(self, updates: Sequence[RequestUpdate]) -> None:
        """Send news to the streams. Whoever acts on them finds ``stats`` and health as they are after the step."""
        known_error, self.stats = self.stats.policy_error, self._scheduler.stats()
        if self.stats.policy_error != known_error:
            logger.error("%s; requests are now ordered as under fcfs", self.stats.policy_error)
        for update in updates:
            mailbox = self._mailboxes.get(update.request_id)
            if mailbox is None:
                continue
            self._outbox.put_update(mailbox, update)
            if update.finish_reason is not None:
                del self._mailboxes[update.request_id]
        self._outbox.flush()

    def _apply_commands(self, *, wait_s: float | None) -> None:
        for command in self._inbox.take_commands(wait_s=wait_s):
            command()
        updates = [self._loop.finish(request_id, reason) for request_id, reason in self._inbox.take_ends()]
        self._publish([update for update in updates if update is not None])

    def _apply_known_ends(self) -> None:
        """Apply the ends of admitted requests; the admission of others may still be in the queue."""
        for request_id, reason in self._inbox.take_ends():
            if request_id not in self._loop:
                self._inbox.put_back(request_id, reason)
            elif (update := self._loop.finish(request_id, reason)) is not None:
                self._publish([update])

    def admit(self, requests: Sequence[Request], mailbox: Mailbox, accepted: asyncio.Future[None]) -> None:
        """Add all of ``requests`` or none, and resolve or refuse ``accepted``."""
        try:
            self._inbox.check_open()
            self._add_all(requests)
        except Exception as error:
            if not isinstance(error, HotseatError):
                logger.exception("the scheduler failed to take a request")
            self._outbox.refuse(accepted, error)
            return
        self._mailboxes.update((request.id, mailbox) for request in requests)
        self._outbox.resolve(accepted)
        self._pulse.start_work()

    def answer(self, question: Callable[[], T], answer: asyncio.Future[T]) -> None:
        """Resolve ``answer`` with what ``question``, asked after all ends that were sent before, returns or raises."""
        try:
            self._apply_known_ends()
            self._outbox.resolve(answer, question())
        except Exception as error:
            self._outbox.refuse(answer, error)

    def abort_all(self, request_ids: Sequence[RequestId]) -> None:
        """Abort those of ``request_ids`` that are admitted and have not ended."""
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
            self.abort_all(added)
            raise

    def _wind_up(self) -> None:
        """End what is left, answer what was sent too late, close the runner."""
        self._inbox.close("the engine is stopped")
        try:
            self.abort_all(self._loop.request_ids)
            if self._loop.has_work and not self._is_broken:
                self._loop.step()  # passes the news of the aborts on to runner and sinks
        except Exception as error:
            self._recover(error)
        self._apply_commands(wait_s=0.0)  # admissions are refused, ends concern nobody any more
        try:
            self._loop.close()
        except Exception:
            logger.exception("the runner could not be closed")
