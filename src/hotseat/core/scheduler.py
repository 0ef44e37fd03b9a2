"""The scheduler: what every step computes.

Theory of operation
-------------------
A request is a counter catching up: ``num_computed_tokens`` chases ``num_tokens``. A step hands out a budget of tokens:

    1  time out  requests that waited or lived too long end
    2  grow      each decode whose blocks are full gets one more; when none is free, the least urgent is preempted
    3  urgency   waiting requests of strictly higher urgency take seats and blocks (policies that preempt)
    4  decode    one token for every request that lacks exactly one
    5  prefill   the rest of the budget: last tokens first, then the share for short prompts beside a long one, then
                 running prefills and admissions, merged in the policy's order
    6  drafts    of what is left of budget and blocks, tokens that decodes may verify; see ``speculation``

All preemption happens in 2 and 3, before any token is given, so nothing has ever to be taken back: a request that
still runs after 3 gets its decode token, a chunk, or a line in ``Batch.deferred``.

``policy`` orders, the budget in ``step_builder`` bounds, ``block_pool`` places, ``admission`` decides.

Ownership   request in  waiting  ──admit──►  running  ──end──►  nowhere, its id in the next batch's released_ids
                            ▲                   │
                            └─────preempt───────┘

Progress: a step with work outstanding computes a token or ends a request. An empty running set leaves all blocks free,
and no sequence outgrows all blocks: one that would has reached its length limit. A running set that cannot grow loses
its least urgent member, down to one. The only exception is a batching mode that waits for more requests.

Short beside long: while a prompt longer than a step is prefilled, short ones have a share S of the budget, a constant
part of what is left when every seat decodes. One is admitted while the rests of the running short ones and its own
length are at most 2·S, and they are served in order of admission, at most S tokens a step. So each has its first token
within two steps, and the long prompt loses at most S of every step.

Cost: a decoding request is touched twice a step, for its chunk and for its token; for blocks only when its last one
is full. What has nothing to do is not even called: after a step's computation no code is left in the caches of the CPU.
"""

from __future__ import annotations

from hotseat.core.admission import Admission
from hotseat.core.batch import Batch, Deferral, RequestUpdate, StepOutput
from hotseat.core.block_pool import BlockPool
from hotseat.core.budget import Budget
from hotseat.core.config import SchedulerConfig
from hotseat.core.events import SchedulerStats
from hotseat.core.explain import Explanation, WaitTimes, explain_running, explain_waiting
from hotseat.core.invariants import check_invariants
from hotseat.core.limits import Limits
from hotseat.core.output_processor import OutputProcessor, final_update
from hotseat.core.policies import policy_for
from hotseat.core.policy import Policy, UserPolicy, overrides
from hotseat.core.request import FinishReason, Request, RequestId, RequestStatus
from hotseat.core.running import RunningSet
from hotseat.core.speculation import Speculation
from hotseat.core.step_builder import StepBuilder
from hotseat.core.waiting import WaitingQueue
from hotseat.errors import InvalidRequestError

__all__ = ["Scheduler"]


class Scheduler:
    """Owns every request from ``add`` to its end, the seats and the blocks. Not thread-safe.

    ``schedule`` and ``update`` alternate; ``add``, ``abort`` and ``finish`` may come at any point between them.
    ``policy``, any object with some of ``Policy``'s methods, replaces the configured one.
    """

    def __init__(
        self, config: SchedulerConfig, policy: object | None = None, speculation: Speculation | None = None
    ) -> None:
        self.config = config
        self.speculation = speculation
        self.policy = policy_for(config) if policy is None else _guarded(policy)
        self._requests: dict[RequestId, Request] = {}
        self._pool = BlockPool(config.num_kv_blocks)
        self._waiting = WaitingQueue(self.policy, config.short_prefill_tokens)
        self._running = RunningSet(self._pool, config)
        self._limits = Limits(config)
        self._times = WaitTimes()
        self._admission = Admission(
            config,
            self.policy,
            pool=self._pool,
            waiting=self._waiting,
            running=self._running,
            limits=self._limits,
            times=self._times,
        )
        self._budget = Budget(config)
        self._output = OutputProcessor(self._running, self._admission, self.policy, self._end, config.block_size)
        self._tell_ended = self.policy.ended if overrides(self.policy, "ended") else None
        self._tell_stepped = self.policy.stepped if overrides(self.policy, "stepped") else None
        self._released_ids: list[RequestId] = []
        self._num_steps = 0
        self._num_added = 0
        self._short_share = 0  # tokens of this step for short prompts beside a long one
        self._scheduled_at = 0.0
        self._policy_error: str | None = None

    # Arrival and end

    def add(self, request: Request, now: float) -> None:
        """Enqueue ``request``.

        Raises:
            PromptTooLongError: it can never fit.
            InvalidRequestError: its prompt is empty, or its id is in use.
            QueueFullError: the waiting queue is at its limit.
        """
        if request.id in self._requests:
            raise InvalidRequestError(f"a request with the id {request.id!r} is running", param="request_id")
        assert request.serial < 0, f"{request.id} was added before"
        self._limits.check_fits(request)
        self._limits.check_room(request, self._running.num_free_seats)
        params, num_prompt = request.params, request.num_prompt_tokens
        request.serial, self._num_added = self._num_added, self._num_added + 1
        # A sequence beyond the KV cache could not resume after a preemption; the newest token needs no slot.
        max_len = min(self.config.max_model_len, self.config.max_cached_tokens + 1)
        request.end_at = max_len if params.max_tokens is None else min(max_len, num_prompt + params.max_tokens)
        # A complete grammar leaves nothing but an end, whatever the client thinks of ends.
        ignores_eos = params.ignore_eos and not request.has_grammar
        eos = frozenset() if ignores_eos else request.eos_token_ids
        request.ends_on = eos.union(params.stop_token_ids)
        request.collected_logprobs = None if params.prompt_logprobs is None else []
        self._requests[request.id] = request
        self._limits.add(request)
        self._admission.batches.note_arrival()
        self._admission.enqueue(request, now)

    def abort(self, request_id: RequestId, now: float) -> RequestUpdate | None:
        """End a request that is not wanted any more; ``None`` when it is unknown or has ended.

        Seat and blocks are free at once. Between ``schedule`` and ``update`` it wins over the step's result.
        """
        return self.finish(request_id, FinishReason.ABORT, now)

    def finish(self, request_id: RequestId, reason: FinishReason, now: float) -> RequestUpdate | None:
        """End a request for a reason found elsewhere, like a stop string; otherwise as ``abort``."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        self._end(request, reason, now)
        return final_update(request)

    def flush(self) -> None:
        """Tell that no other request will come for now, so that a batching mode need not wait for a full batch."""
        self._admission.batches.flush()

    # A step

    def schedule(self, now: float) -> Batch:
        """Form the next batch. An empty one computes nothing, but may carry ``released_ids`` and ``ended``."""
        step = self._begin_step(now)
        if self._limits.has_timeouts:
            self._end_timed_out(step)
        if self._running.full:
            self._grow_decodes(step)
        self._admission.begin_look(step)
        self._admission.admit_urgent(step)
        step.decode(self._running.decoding.values())
        if self._running.prefilling or step.block_reason is None:
            self._prefill_last_tokens(step)
            self._prefill_short_beside_long(step)
            self._prefill_and_admit(step)
        if self.speculation is not None:
            self.speculation.extend(step, self._running, self._num_spare_blocks())
        self._admission.end_look(step)
        return self._end_step(step)

    def update(self, batch: Batch, output: StepOutput, now: float) -> list[RequestUpdate]:
        """Apply a step's output: append tokens, index blocks, end what is done. At most one update per request."""
        duration_s = now - self._scheduled_at
        self._budget.learn(batch, duration_s)
        updates = self._output.process(batch, output, now)
        if self.speculation is not None:
            self.speculation.learn(batch, self._running.decoding, duration_s)
        if self._tell_stepped is not None:
            self._tell_stepped(batch, duration_s)
        return updates

    # State

    @property
    def has_work(self) -> bool:
        """Tell whether a request waits or runs."""
        return bool(self._requests)

    @property
    def has_releases(self) -> bool:
        """Tell whether the runner still holds requests that ended; the next batch tells it, even an empty one."""
        return bool(self._released_ids)

    @property
    def is_gathering(self) -> bool:
        """Tell whether a batching mode waits for more requests before it admits any: no work is stuck."""
        return self._admission.batches.is_gathering

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def next_event_at(self) -> float | None:
        """Return when time alone changes something: a time-out, or a batching mode that stops waiting."""
        times = [self._limits.next_at()]
        oldest_at = self._limits.oldest_queued_at()
        if oldest_at is not None and self._admission.batches.is_gathering:
            times.append(self._admission.batches.opens_at(oldest_at))
        return min((at for at in times if at is not None), default=None)

    def explain(self, request_id: RequestId, now: float) -> Explanation | None:
        """Return the state of a request and what binds it; ``None`` when it is unknown or has ended.

        O(log waiting), and O(tenants) more under ``fair``.
        """
        request = self._requests.get(request_id)
        if request is None:
            return None
        blocks_free, num_free_seats = self._pool.num_free, self._running.num_free_seats
        if request.status is RequestStatus.RUNNING:
            return explain_running(request, blocks_free=blocks_free, num_free_seats=num_free_seats)
        return explain_waiting(
            request,
            now,
            self._times,
            num_ahead=self._waiting.num_ahead(request),
            blocks_free=blocks_free,
            num_free_seats=num_free_seats,
        )

    def stats(self) -> SchedulerStats:
        """Return counts of the present moment."""
        pool, admission = self._pool, self._admission
        return SchedulerStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_queued_tokens=self._limits.num_queued_tokens,
            num_seats=self.config.max_num_seqs,
            blocks_used=pool.num_used,
            blocks_cached=pool.num_evictable,
            blocks_free=pool.num_free,
            num_preemptions=admission.num_preemptions,
            num_evictions=pool.num_evictions,
            num_steps=self._num_steps,
            num_prompt_tokens=admission.num_prompt_tokens,
            num_cached_tokens=admission.num_cached_tokens,
            num_missed_deadlines=self.policy.num_missed_deadlines,
            step_time_error=None if self._budget.predictor is None else self._budget.predictor.error,
            policy_error=self.policy.error,
        )

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes, unless blocks are in use: then nothing is changed. Return whether it was done."""
        if self._pool.num_used:
            return False
        self._pool.clear_index()
        return True

    def check_invariants(self) -> None:
        """Assert that all books agree; slow, for tests and for after a failure."""
        check_invariants(self._requests, self._waiting, self._running, self._pool, self._admission.cache)
        self._admission.deferred.check_invariants()

    # The phases of schedule

    def _begin_step(self, now: float) -> StepBuilder:
        if self.policy.error is not self._policy_error:  # from now on the keys are those of fcfs
            self._policy_error = self.policy.error
            self._rekey(now)
        tokens, self._short_share, time = self._budget.next(self._running)
        batch = Batch(step=self._num_steps, chunks=[], budget=tokens)
        self._num_steps += 1
        self._scheduled_at = now
        return StepBuilder(batch, self._running, now, self.config.long_prefill_token_threshold or tokens, time)

    def _rekey(self, now: float) -> None:
        """Order all requests anew: the policy's keys have changed their meaning."""
        self._waiting.rekey(now)
        for request in self._running.requests.values():
            request.wait.key = self.policy.key(request, now)
        self._admission.deferred.rekeyed()

    def _end_timed_out(self, step: StepBuilder) -> None:
        for request, why in self._limits.timed_out(step.now):
            if request.status is not RequestStatus.FINISHED:
                self._end(request, FinishReason.TIMEOUT, step.now)
                step.batch.ended.append(final_update(request, error=f"{request.id} {why}"))

    def _grow_decodes(self, step: StepBuilder) -> None:
        """Give every request whose blocks are full one more: decodes, and prefills for want of window blocks."""
        full, self._running.full = self._running.full, []
        for request in full:
            if request.status is RequestStatus.RUNNING and request.num_computed_tokens == request.capacity:
                self._grow(request, step)

    def _grow(self, request: Request, step: StepBuilder) -> None:
        """Append a block to the table of ``request``; as long as none is free, preempt the least urgent running one."""
        while (growth := self._running.grow(request)) is None:
            assert len(self._running) > 1, f"{request.id} is alone and outgrew the KV cache without an end"
            needed, num_free = self._running.num_lacking(request), self._pool.num_free
            cause = f"blocks: {request.id} needed {needed}, {num_free} free"
            victim = self._admission.preempt_least_urgent(cause, step)
            if victim is request:
                return
        step.append_blocks(request, growth.blocks, growth.window_blocks)

    def _prefill_last_tokens(self, step: StepBuilder) -> None:
        """Serve the prefills that lack a single token, like decodes."""
        for request in self._running.prefilling.values():
            if request.num_seated_tokens - request.num_computed_tokens == 1:
                step.prefill(request, 1)

    def _prefill_short_beside_long(self, step: StepBuilder) -> None:
        """While a prompt longer than a step is computed, serve short ones first, from their share of the budget."""
        share = room = self._short_share
        if not (self._running.num_long and share):
            return
        room *= 2
        for request in list(self._running.prefilling.values()):  # in order of admission: an older one is never delayed
            if self._waiting.is_short(request) and request.id not in step.served:
                room -= request.num_seated_tokens - request.num_computed_tokens
                share -= step.prefill(request, share) if share else 0
        self._admission.admit_short(step, share, room)

    def _prefill_and_admit(self, step: StepBuilder) -> None:
        """Spend what is left of the budget on running prefills and on new ones, in the policy's order."""
        for request in sorted(self._running.prefilling.values(), key=self._admission.deferred.inherited_rank):
            if request.id in step.served:
                continue
            self._admission.admit(step, before=request)
            if not step.prefill(request, step.left):
                step.batch.deferred.append(Deferral(request.id, step.reason_of_no_chunk(request)))
        self._admission.admit(step)

    def _num_spare_blocks(self) -> int:
        """Return how many blocks drafts may take: such as nobody waits for and no decode may need before long."""
        if len(self._waiting):
            return 0
        num_free = self._pool.num_free - self._running.windows.num_reserved
        layout = self.config.kv_layout
        num_next = len(self._running) * (layout.num_full + layout.num_window)
        return num_free - self.config.watermark_blocks - 2 * num_next

    def _end_step(self, step: StepBuilder) -> Batch:
        batch, pool = step.batch, self._pool
        batch.released_ids += self._released_ids
        self._released_ids = []
        batch.block_appends = list(step.block_appends.values())
        batch.num_tokens = batch.budget - step.left
        batch.num_waiting = len(self._waiting)
        batch.blocks_used, batch.blocks_cached, batch.blocks_free = pool.num_used, pool.num_evictable, pool.num_free
        return batch

    def _end(self, request: Request, reason: FinishReason, now: float) -> None:
        """Forget ``request``; its seat and its blocks are free when this returns."""
        del self._requests[request.id]
        if request.status is RequestStatus.RUNNING:
            self._admission.release(request, RequestStatus.FINISHED, now)
            self._released_ids.append(request.id)
        else:
            self._admission.dequeue(request, now)
            if request.admitted_at is None:
                self._limits.left_queue(request)
            request.move_to(RequestStatus.FINISHED)
            self._admission.deferred.has_changed = True
        self._limits.ended()
        request.finish_reason = reason
        request.finished_at = now
        if self._tell_ended is not None:
            self._tell_ended(request)
        if self.speculation is not None:
            self.speculation.ended(request)


def _guarded(policy: object) -> Policy:
    is_built_in = isinstance(policy, Policy) and type(policy).__module__.startswith("hotseat.core.")
    return policy if is_built_in else UserPolicy(policy)  # type: ignore[return-value]
