"""The step loop: schedule, execute, update, record.

    batch   = scheduler.schedule(now)          the decision
    output  = runner.execute(batch)            the tokens
    updates = scheduler.update(batch, output)  news of each request
    record  → sinks                            a log of the step

The loop runs in its caller's thread and knows no other: the engine's thread, ``LLM`` and the simulator all drive this
one. It is the only place that pairs the scheduler with the sinks, so that each accepted request ends once in both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Sequence

from hotseat.core.batch import Batch, RequestUpdate, Runner, StepOutput
from hotseat.core.events import EventSink, StepRecord
from hotseat.core.request import FinishReason, Request, RequestId
from hotseat.core.scheduler import Scheduler
from hotseat.engine.clock import Clock
from hotseat.engine.constraints import ConstrainedRequests
from hotseat.errors import HotseatError, InvalidRequestError, QueueFullError

__all__ = ["StepLoop"]

logger = logging.getLogger(__name__)


class StepLoop:
    """Drive ``scheduler`` and ``runner`` step by step and tell ``sinks`` about it.

    ``before_update`` is called when the runner has computed a step and the scheduler has not yet taken its result:
    the instant for an abort to win over that result.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        clock: Clock,
        sinks: Sequence[EventSink] = (),
        before_update: Callable[[], None] | None = None,
    ) -> None:
        self.clock = clock
        self.failure: str | None = None  # what the runner raised in the last step
        self.has_progressed = False  # whether the last step computed a token or ended a request
        self._scheduler = scheduler
        self._runner = runner
        self._sinks = list(sinks)
        self._before_update = before_update
        self._requests: dict[RequestId, Request] = {}  # accepted and not ended
        self._constrained = ConstrainedRequests()  # those of them with a grammar
        self._ended: list[tuple[RequestId, FinishReason]] = []  # since the last record, outside of update
        self._num_failures_in_a_row = 0
        self._seated_ids: set[RequestId] = set()  # what the runner may hold
        self._unheard_releases: list[RequestId] = []  # for the next batch: the runner may not have heard of them

    @property
    def has_work(self) -> bool:
        """Tell whether a step has anything to do: requests, or an end that runner and sinks have not heard of.

        So one step with no chunks follows the last end; its record shows the blocks that are free again.
        """
        return self._scheduler.has_work or self._scheduler.has_releases or bool(self._ended)

    @property
    def request_ids(self) -> list[RequestId]:
        """The accepted requests that have not ended, in order of arrival."""
        return list(self._requests)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._requests

    def add(self, request: Request) -> None:
        """Hand ``request`` to the scheduler.

        Raises:
            InvalidRequestError: it can never run, or its id is in use.
            QueueFullError: the waiting queue is at its limit.
        """
        now = self.clock.now()
        try:
            if request.id in self._requests:
                raise InvalidRequestError(f"a request with the id {request.id!r} is running", param="request_id")
            self._scheduler.add(request, now)
        except HotseatError as error:
            rejection = error
            self._tell(lambda sink: sink.on_rejected(request, rejection, now))
            raise
        self._requests[request.id] = request
        self._constrained.add(request)
        self._tell(lambda sink: sink.on_arrived(request, now))

    def abort(self, request_id: RequestId) -> RequestUpdate | None:
        """End a request at once; ``None`` when it is unknown or has ended. Idempotent."""
        return self.finish(request_id, FinishReason.ABORT)

    def finish(self, request_id: RequestId, reason: FinishReason, error: str | None = None) -> RequestUpdate | None:
        """End a request at once and say why; ``None`` when it is unknown or has ended."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        now = self.clock.now()
        if reason is FinishReason.ABORT:
            self._scheduler.abort(request_id, now)
        else:
            self._scheduler.finish(request_id, reason, now)
        del self._requests[request_id]
        return self._end_outside_update(request, reason, error, now)

    def step(self) -> list[RequestUpdate]:
        """Run one step and return its news, at most one update per request.

        A runner that raises costs the requests of its batch, which end with ``FinishReason.ERROR``. An exception of
        the scheduler is a bug and passes through; see ``fail_all``.
        """
        self.failure, self.has_progressed = None, False
        start_s = self.clock.now()
        batch = self._scheduler.schedule(start_s)
        formed_s = self.clock.now()
        if self._unheard_releases:
            batch.released_ids[:0] = self._unheard_releases
            self._unheard_releases = []
        output = self._execute(batch)
        if self._before_update is not None:
            self._before_update()
        now = self.clock.now()
        updates = self._with_ended_by_schedule(batch, self._scheduler.update(batch, output, now))
        self._report(batch, updates, (start_s, formed_s, now))
        return updates

    def run(self, requests: Iterable[Request]) -> Generator[list[RequestUpdate]]:
        """Run ``requests`` to their ends in this thread and yield the updates of each step.

        When the waiting queue is bounded, requests enter as it empties. Leaving early aborts those that have not ended.

        Raises:
            InvalidRequestError: one of them can never run; the others are aborted.
        """
        own: set[RequestId] = set()
        source = iter(requests)
        pending = next(source, None)
        try:
            while pending is not None or own & self._requests.keys():
                while pending is not None and self._add_if_room(pending):
                    own.add(pending.id)
                    pending = next(source, None)
                self._scheduler.flush()  # no other request comes before the next step
                yield self.step()
                assert self.has_progressed, "a step with work outstanding computes a token or ends a request"
        finally:
            for request_id in own:
                self.abort(request_id)
            if self.has_work and not self._requests:
                self.step()

    def fail_all(self, message: str) -> list[RequestUpdate]:
        """End every request with an error after the scheduler broke, and return the updates for their clients.

        Ask ``check`` before the next step.
        """
        self._unheard_releases = list(self._seated_ids)  # the scheduler's own list may have been lost with a batch
        return [self._fail(request_id, message) for request_id in self.request_ids]

    def check(self) -> bool:
        """Tell whether the scheduler, emptied by ``fail_all``, can be trusted with new requests."""
        try:
            self._scheduler.check_invariants()
            return not self._scheduler.has_work and self._scheduler.reset_prefix_cache()
        except Exception:
            logger.exception("the scheduler cannot be used any more")
            return False

    def close(self) -> None:
        """Abort what runs and close the runner; idempotent."""
        for request_id in self.request_ids:
            self.abort(request_id)
        self._runner.close()

    def _add_if_room(self, request: Request) -> bool:
        try:
            self.add(request)
        except QueueFullError:
            if not self._requests:
                raise  # nothing that runs will make room
            return False
        return True

    def _execute(self, batch: Batch) -> StepOutput:
        if not (batch.chunks or batch.released_ids):
            return StepOutput(sampled=[])
        try:
            if self._constrained:
                self._constrained.mask(batch)
            output = self._runner.execute(batch)
            if self._constrained:
                self._constrained.accept(output)
        except Exception as error:
            return self._failed_output(batch, error)
        except BaseException:  # Ctrl-C in a caller that runs inline: leave nothing half done
            self._unheard_releases = batch.released_ids
            self._scheduler.update(batch, _all_failed(batch, "interrupted"), self.clock.now())
            raise
        if batch.chunks:
            self._num_failures_in_a_row = 0
        self._seated_ids.difference_update(batch.released_ids)
        self._seated_ids.update([seating.request_id for seating in batch.new_requests])
        return output

    def _failed_output(self, batch: Batch, error: Exception) -> StepOutput:
        self.failure = f"the runner failed: {type(error).__name__}: {error}"
        self._num_failures_in_a_row += 1
        self._seated_ids.update([seating.request_id for seating in batch.new_requests])
        self._unheard_releases = batch.released_ids
        logger.error(
            "step %d failed; its %d requests end with an error: %s",
            batch.step,
            len(batch.chunks),
            self.failure,
            exc_info=error if self._num_failures_in_a_row == 1 else None,  # one traceback is enough
        )
        return _all_failed(batch, self.failure)

    def _report(self, batch: Batch, updates: list[RequestUpdate], times: tuple[float, float, float]) -> None:
        """Write the step's record and tell the sinks."""
        ended = [
            (self._requests.pop(update.request_id), update, reason)
            for update in updates
            if (reason := update.finish_reason)
        ]
        self.has_progressed = bool(batch.chunks or ended or self._ended)
        finished = self._ended + [(request.id, reason) for request, _, reason in ended]
        now, record = times[2], _record(batch, finished, times)
        self._ended = []
        self._tell(lambda sink: sink.on_step(record, updates))
        for request, update, _ in ended:
            self._constrained.remove(request)
            self._tell_end(request, update, now)

    def _with_ended_by_schedule(self, batch: Batch, updates: list[RequestUpdate]) -> list[RequestUpdate]:
        return [*batch.ended, *updates] if batch.ended else updates

    def _end_outside_update(
        self, request: Request, reason: FinishReason, error: str | None, now: float
    ) -> RequestUpdate:
        self._constrained.remove(request)
        self._ended.append((request.id, reason))
        update = RequestUpdate(
            request_id=request.id,
            new_token_ids=[],
            finish_reason=reason,
            error=error,
            num_cached_tokens=request.num_cached_tokens,
            num_draft_tokens=request.num_draft_tokens,
            num_accepted_tokens=request.num_accepted_tokens,
        )
        self._tell_end(request, update, now)
        return update

    def _fail(self, request_id: RequestId, message: str) -> RequestUpdate:
        request = self._requests.pop(request_id)
        now = self.clock.now()
        try:
            self._scheduler.finish(request_id, FinishReason.ERROR, now)
        except Exception:  # the client gets its answer all the same
            logger.exception("the scheduler could not end %s", request_id)
        return self._end_outside_update(request, FinishReason.ERROR, message, now)

    def _tell_end(self, request: Request, update: RequestUpdate, now: float) -> None:
        self._tell(lambda sink: sink.on_finished(request, update, now))

    def _tell(self, tell: Callable[[EventSink], None]) -> None:
        for sink in tuple(self._sinks):
            try:
                tell(sink)
            except Exception:  # an observer never hurts a request
                logger.exception("%s raised and is not told anything any more", type(sink).__name__)
                self._sinks.remove(sink)


def _all_failed(batch: Batch, message: str) -> StepOutput:
    return StepOutput(sampled=[], failed={chunk.request_id: message for chunk in batch.chunks})


def _record(
    batch: Batch, finished: list[tuple[RequestId, FinishReason]], times: tuple[float, float, float]
) -> StepRecord:
    """Return the record of a step that began, had its batch and was computed at ``times``."""
    start_s, formed_s, end_s = times
    return StepRecord(
        step=batch.step,
        start_s=start_s,
        duration_s=end_s - start_s,
        chunks=batch.chunks,
        num_decodes=batch.num_decodes,
        prefill_totals=batch.prefill_totals,
        admitted=batch.admitted_ids,
        finished=finished,
        preempted=batch.preempted,
        deferred=batch.deferred,
        waiting=batch.num_waiting,
        blocks_used=batch.blocks_used,
        blocks_cached=batch.blocks_cached,
        blocks_free=batch.blocks_free,
        budget=batch.budget,
        drafts=[
            (draft.request_id, len(draft.token_ids), num_accepted)
            for draft, num_accepted in zip(batch.drafts, batch.num_accepted, strict=True)
        ],
        schedule_s=formed_s - start_s,
    )
