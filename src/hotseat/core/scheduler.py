"""Decide what every step computes.

Theory of operation
-------------------
A request is a counter catching up: ``num_computed_tokens`` chases ``num_tokens``. A step hands out a budget of tokens:

    1  end what is overdue
    2  grow      each decode whose blocks are full gets one more; when there is none, the least urgent gets up
    3  urgency   waiting requests of strictly higher urgency take seats and blocks (policies that preempt)
    4  decode    one token for every request that lacks exactly one
    5  prefill   the rest of the budget: last tokens first, then the share for short prompts beside a long one, then
                 running prefills and admissions, merged in the policy's order

All who get up do so in 2 and 3, before anybody is given a token, so nothing has ever to be taken back and nobody is
skipped: whoever still runs after 3 gets its decode token, a chunk, or a line in ``Batch.deferred``.

Who: ``policy``. How many: the budget, in ``plan``. Where: ``block_pool``. Whether: ``admission``.

Ownership   request in  waiting  ──sit──►  running  ──ends──►  nowhere, its id in the next batch's released_ids
                            ▲                 │
                            └────preempt──────┘

Progress: a step with work outstanding computes a token or ends a request. An empty running set leaves all blocks free,
and nobody outgrows all blocks: a sequence that would has reached its length limit. A running set that cannot grow loses
its least urgent member, down to one. The only exception is a closed gate of a batching mode that waits for more
requests.

Cost: a decoding request is touched twice a step, for its chunk and for its token; for blocks only when its last one
is full. What has nothing to do is not even called: after a step's computation no code is left in the caches of the CPU.
"""

from __future__ import annotations

from hotseat.core.admission import Admission
from hotseat.core.batch import Batch, Deferral, RequestUpdate, StepOutput
from hotseat.core.block_pool import BlockPool
from hotseat.core.budget import Budget
from hotseat.core.config import SchedulerConfig
from hotseat.core.explain import Explanation, QueueClock, explain_running, explain_waiting
from hotseat.core.invariants import check_invariants
from hotseat.core.limits import Limits
from hotseat.core.plan import Plan
from hotseat.core.policies import Deadline, policy_for
from hotseat.core.policy import Observing, Policy
from hotseat.core.request import FinishReason, Request, RequestId, RequestStatus
from hotseat.core.results import Results, final_update
from hotseat.core.running import RunningSet
from hotseat.core.stats import SchedulerStats
from hotseat.core.waiting import WaitingQueue
from hotseat.errors import InvalidRequestError

__all__ = ["Explanation", "Scheduler", "SchedulerStats"]


class Scheduler:
    """Owns every request from ``add`` to its end, the seats and the blocks. Not thread-safe.

    ``schedule`` and ``update`` alternate; ``add``, ``abort`` and ``finish`` may come at any point between them.
    ``policy`` replaces the configured one.
    """

    def __init__(self, config: SchedulerConfig, policy: Policy | None = None) -> None:
        self.config = config
        self.policy = policy or policy_for(config)
        self._observer = self.policy if isinstance(self.policy, Observing) else None
        self._requests: dict[RequestId, Request] = {}
        self._pool = BlockPool(config.num_kv_blocks)
        self._waiting = WaitingQueue(self.policy, config.short_prefill_tokens)
        self._running = RunningSet(config.max_num_seqs, self._pool, config.block_size)
        self._limits = Limits(config)
        self._clock = QueueClock()
        self._admission = Admission(
            config,
            self.policy,
            pool=self._pool,
            waiting=self._waiting,
            running=self._running,
            limits=self._limits,
            clock=self._clock,
        )
        self._budget = Budget(config)
        self._results = Results(self._running, self._admission, self._observer, self._end)
        self._released_ids: list[RequestId] = []
        self._num_steps = 0
        self._num_added = 0
        self._short_debt = 0  # tokens that short prompts had beyond their share
        self._scheduled_at = 0.0

    # Coming and going

    def add(self, request: Request, now: float) -> None:
        """Let ``request`` wait for a seat.

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
        # Whoever outgrows the KV cache could not resume after a preemption; the newest token needs no slot.
        max_len = min(self.config.max_model_len, self.config.num_kv_blocks * self.config.block_size + 1)
        request.end_at = max_len if params.max_tokens is None else min(max_len, num_prompt + params.max_tokens)
        eos = frozenset() if params.ignore_eos else request.eos_token_ids
        request.ends_on = eos.union(params.stop_token_ids)
        request.gathered_logprobs = None if params.prompt_logprobs is None else []
        self._requests[request.id] = request
        self._limits.joined(request)
        self._admission.entrance.arrived()
        self._admission.join(request, now)

    def abort(self, request_id: RequestId, now: float) -> RequestUpdate | None:
        """End a request because nobody wants it any more; ``None`` when it is unknown or has ended.

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
        """Tell that nobody else will come for now, so that a batching mode need not wait for a full batch."""
        self._admission.entrance.flush()

    # A step

    def schedule(self, now: float) -> Batch:
        """Form the next batch. An empty one computes nothing, but may carry ``released_ids`` and ``ended``."""
        plan = self._begin_step(now)
        if self._limits.has_timeouts:
            self._end_overdue(plan)
        if self._running.full:
            self._grow_decodes(plan)
        self._admission.begin_look(plan)
        self._admission.admit_urgent(plan)
        plan.decode(self._running.decoding.values())
        if self._running.prefilling or not plan.held_up:
            self._prefill_last_tokens(plan)
            self._prefill_short_beside_long(plan)
            self._prefill_and_admit(plan)
        self._admission.end_look(plan)
        return self._end_step(plan)

    def update(self, batch: Batch, output: StepOutput, now: float) -> list[RequestUpdate]:
        """Take a step's result: append tokens, index blocks, end who is done. At most one update per request."""
        duration_s = now - self._scheduled_at
        self._budget.learn(batch, duration_s)
        updates = self._results.take(batch, output, now)
        if self._observer is not None:
            self._observer.stepped(batch, duration_s)
        return updates

    # Being asked

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
        """Tell whether a batching mode waits for more requests before it lets anybody sit down: no work is stuck."""
        return self._admission.entrance.is_gathering

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
        if oldest_at is not None and self._admission.entrance.is_gathering:
            times.append(self._admission.entrance.gate.opens_at(oldest_at))
        return min((at for at in times if at is not None), default=None)

    def explain(self, request_id: RequestId, now: float) -> Explanation | None:
        """Say where a request is and what binds it; ``None`` when it is unknown or has ended. O(waiting)."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        blocks_free, num_free_seats = self._pool.num_free, self._running.num_free_seats
        if request.status is RequestStatus.RUNNING:
            return explain_running(request, blocks_free=blocks_free, num_free_seats=num_free_seats)
        rank = self._waiting.rank(request)
        num_ahead = sum(self._waiting.rank(other) < rank for other in self._waiting)
        return explain_waiting(
            request, now, self._clock, num_ahead=num_ahead, blocks_free=blocks_free, num_free_seats=num_free_seats
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
            blocks_cached=pool.num_cached,
            blocks_free=pool.num_free,
            num_preemptions=admission.num_preemptions,
            num_evictions=pool.num_evictions,
            num_steps=self._num_steps,
            num_prompt_tokens=admission.num_prompt_tokens,
            num_cached_tokens=admission.num_cached_tokens,
            num_hopeless=self.policy.num_hopeless if isinstance(self.policy, Deadline) else 0,
            step_time_error=None if self._budget.predictor is None else self._budget.predictor.error,
        )

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content. True if every block is blank now; blocks in use stay with their owners."""
        self._pool.forget_all()
        return self._pool.num_used == 0

    def check_invariants(self) -> None:
        """Assert that all books agree; slow, for tests and for after a failure."""
        check_invariants(self._requests, self._waiting, self._running, self._pool, self._admission.cache)
        self._admission.check_invariants()

    # The phases of schedule

    def _begin_step(self, now: float) -> Plan:
        budget, time = self._budget.next(self._running)
        batch = Batch(step=self._num_steps, chunks=[], budget=budget)
        self._num_steps += 1
        self._scheduled_at = now
        if not self._running.num_long:
            self._short_debt = 0
        return Plan(batch, now, self.config.long_prefill_token_threshold or budget, time)

    def _end_overdue(self, plan: Plan) -> None:
        for request, why in self._limits.overdue(plan.now):
            if request.status is not RequestStatus.FINISHED:
                self._end(request, FinishReason.TIMEOUT, plan.now)
                plan.batch.ended.append(final_update(request, error=f"{request.id} {why}"))

    def _grow_decodes(self, plan: Plan) -> None:
        """Give every decode whose blocks are full one more."""
        full, self._running.full = self._running.full, []
        for request in full:
            if request.status is RequestStatus.RUNNING and request.num_computed_tokens == request.capacity:
                self._grow(request, plan)

    def _grow(self, request: Request, plan: Plan) -> None:
        """Append a block to the table of ``request``; as long as none is free, the least urgent running one gets up."""
        while (block := self._running.grow(request)) is None:
            assert len(self._running) > 1, f"{request.id} is alone and outgrew the KV cache without an end"
            victim = self._admission.least_urgent()
            self._admission.preempt(victim, f"blocks: {request.id} needed 1, 0 free", plan)
            if victim is request:
                return
        plan.grow(request, block.id)

    def _prefill_last_tokens(self, plan: Plan) -> None:
        """Serve the prefills that lack a single token, like decodes."""
        for request in self._running.prefilling.values():
            if request.num_seated_tokens - request.num_computed_tokens == 1:
                plan.prefill(request, 1)

    def _prefill_short_beside_long(self, plan: Plan) -> None:
        """While a prompt longer than a step is computed, serve short ones first, from their share of the budget.

        Those that sit get all they lack, as was promised when they sat down; what that takes beyond the share is a debt
        to the long ones, which later short ones pay.
        """
        share = self.config.short_prefill_share
        if not (self._running.num_long and share and plan.left > 0):
            return
        per_step = max(1, int(plan.left * share))
        allowance = per_step - self._short_debt
        for request in self._prefilling_in_order():
            if self._waiting.is_short(request) and request.id not in plan.served:
                allowance -= plan.prefill(request, plan.left)
        allowance = self._admission.admit_short(plan, allowance, per_step)
        self._short_debt = max(0, -allowance)

    def _prefill_and_admit(self, plan: Plan) -> None:
        """Spend what is left of the budget on running prefills and on new ones, in the policy's order."""
        for request in self._prefilling_in_order():
            if request.id in plan.served:
                continue
            self._admission.admit(plan, before=self._waiting.rank(request))
            if not plan.prefill(request, plan.left):
                plan.batch.deferred.append(Deferral(request.id, "budget"))
        self._admission.admit(plan)

    def _prefilling_in_order(self) -> list[Request]:
        return sorted(self._running.prefilling.values(), key=self._waiting.rank)

    def _end_step(self, plan: Plan) -> Batch:
        batch, pool = plan.batch, self._pool
        batch.released_ids += self._released_ids
        self._released_ids = []
        batch.new_blocks = list(plan.grown.values())
        batch.num_tokens = batch.budget - plan.left
        batch.num_waiting = len(self._waiting)
        batch.blocks_used, batch.blocks_cached, batch.blocks_free = pool.num_used, pool.num_cached, pool.num_free
        return batch

    # Ends

    def _end(self, request: Request, reason: FinishReason, now: float) -> None:
        """Forget ``request``; its seat and its blocks are free when this returns."""
        del self._requests[request.id]
        if request.status is RequestStatus.RUNNING:
            self._admission.get_up(request, RequestStatus.FINISHED, now)
            self._released_ids.append(request.id)
        else:
            self._admission.leave(request, now)
            if request.admitted_at is None:
                self._limits.left_queue(request)
            request.move_to(RequestStatus.FINISHED)
            self._admission.notice()
        self._limits.ended()
        request.finish_reason = reason
        request.finished_at = now
        if self._observer is not None:
            self._observer.ended(request)
