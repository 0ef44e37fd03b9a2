"""Admission control and preemption.

Theory of operation
-------------------
*Admission reserves by allocating.* A request that is admitted gets the blocks of its whole present sequence at once
(``no_evict``: of all that it may generate), so two long prompts can never be admitted together and preempt each other
later. It must leave ``headroom`` blocks free: a watermark, and when it resumes after a preemption, or passes one that
waits to resume, one more for each running request, so that the next step does not preempt again. With none running
there is no headroom to leave.

*A request that does not fit is skipped* for the rest of the step, and the next one is looked at; after ``LOOKAHEAD``
of about the same length that size bucket is closed. The reservation of ``deferred`` bounds how often it is passed.

*A request whose prefix is being computed* waits until its owner has computed what they share. A step defers at most
``MAX_PREFIX_LOOKS`` of them, so its cost does not grow with the queue.

*A look is repeated only after a change.* ``StepBuilder.block_reason`` says why a step admits no more. When that was
seats or blocks, the next look waits for a change: an arrival, a seat or a block that comes free, a prefix that is
there. So 100,000 waiting requests cost a step nothing.
"""

from __future__ import annotations

import math

from hotseat.core.batch import Deferral, Preemption
from hotseat.core.batching import BatchFormer
from hotseat.core.block_pool import BlockPool
from hotseat.core.config import SchedulerConfig
from hotseat.core.deferred import DeferredRequests
from hotseat.core.explain import WaitTimes
from hotseat.core.limits import Limits
from hotseat.core.policy import Policy, overrides
from hotseat.core.prefix import Match, PrefixCache
from hotseat.core.request import BlockReason, Request, RequestStatus
from hotseat.core.running import RunningSet
from hotseat.core.step_builder import StepBuilder
from hotseat.core.victims import choose_victims, least_urgent
from hotseat.core.waiting import WaitingQueue

__all__ = ["Admission"]

_NO_MATCH = Match([], [])
LOOKAHEAD = 4  # requests of about the same length that may turn out not to fit before a step gives up on that length
MAX_PREFIX_LOOKS = 16  # requests that one step defers because their prefix is being computed


class Admission:
    """Moves requests from the waiting queue to seats and back."""

    def __init__(
        self,
        config: SchedulerConfig,
        policy: Policy,
        *,
        pool: BlockPool,
        waiting: WaitingQueue,
        running: RunningSet,
        limits: Limits,
        times: WaitTimes,
    ) -> None:
        self.cache = PrefixCache(pool, running.windows, config)
        self.deferred = DeferredRequests(waiting, times, policy, config.max_times_passed)
        self.batches = BatchFormer(config, policy, waiting, running, self.deferred)
        self.num_preemptions = 0
        self.num_prompt_tokens = 0  # of all that were admitted
        self.num_cached_tokens = 0  # of these, found in the prefix cache
        self._config = config
        self._policy = policy
        self._charge = policy.charge if overrides(policy, "charge") else None
        self._pool = pool
        self._waiting = waiting
        self._running = running
        self._limits = limits
        self._times = times

    # Queue and seats

    def enqueue(self, request: Request, now: float) -> None:
        """Let a request wait that arrived or was preempted."""
        self._waiting.enqueue(request, now)
        self._times.start(request.wait, now)
        self.deferred.has_changed = True

    def dequeue(self, request: Request, now: float) -> None:
        """Remove a waiting request that is admitted or ended."""
        self._waiting.dequeue(request)
        self.batches.remove(request)
        self.deferred.remove(request)
        self._times.stop(request.wait, now)
        request.wait.reason = None

    def release(self, request: Request, status: RequestStatus, now: float) -> None:
        """Take seat and blocks from a running request, and offer those again that waited for its prefix."""
        self.deferred.requeue(self.cache.release(request), now)
        self._running.release(request, status)
        self.deferred.has_changed = True

    def preempt(self, victim: Request, cause: str, step: StepBuilder) -> None:
        """Send a running request back to the queue; it keeps its arrival and its output and recomputes the rest."""
        self.release(victim, RequestStatus.WAITING, step.now)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        victim.wait.preempted_by.append(cause)
        if victim.collected_logprobs is not None:
            victim.collected_logprobs = []
        self.enqueue(victim, step.now)
        self.num_preemptions += 1
        self.deferred.preempted[victim.serial] = victim
        step.block_appends.pop(victim.id, None)
        step.victims.append(victim)
        step.batch.released_ids.append(victim.id)
        step.batch.preempted.append(Preemption(victim.id, cause))

    def preempt_least_urgent(self, cause: str, step: StepBuilder) -> Request:
        """Preempt the running request that is last in the order, and return it."""
        victim = least_urgent(list(self._running.requests.values()), self._waiting.rank)
        self.preempt(victim, cause, step)
        return victim

    # A step's look at the queue

    def begin_look(self, step: StepBuilder) -> None:
        """See whether anything changed since the last look."""
        if not self.batches.is_continuous:
            self.batches.form(step.now, self._limits.oldest_queued_at())
            self.deferred.has_changed = True
        if not self.deferred.has_changed:
            step.block_reason = self._times.reason
        self.deferred.has_changed = False

    def admit(self, step: StepBuilder, before: Request | None = None) -> None:
        """Admit requests while budget, seats and blocks last: all, or those ``before`` a running prefill."""
        while step.block_reason is None and step.left > 0:
            request = self.batches.first(step)
            if request is None:
                step.block_reason = self._reason_of_none()
            elif before is not None and self._waiting.rank(request) > self.deferred.inherited_rank(before):
                return
            elif self.deferred.is_behind_reservation(request):
                step.block_reason = BlockReason.BLOCKS
            elif self._may_have_seat(request, step) and self._try(request, step):
                self._start(request, step.left, step)

    def admit_short(self, step: StepBuilder, share: int, room: int) -> None:
        """Admit short prompts with chunks of at most ``share`` tokens together, and of ``room`` tokens in all."""
        self._skip_misfits(step)
        while step.block_reason is None and share > 0 and step.left > 0:
            request = self.batches.first_short(step)
            if request is None or self.deferred.is_behind_reservation(request):
                return
            if request.num_tokens > min(room, 2 * step.chunk_cap):
                return  # would take more than two steps
            if self._may_have_seat(request, step) and self._try(request, step):
                room -= request.num_seated_tokens - request.num_computed_tokens
                share -= self._start(request, share, step)

    def admit_urgent(self, step: StepBuilder) -> None:
        """Give requests the seats and blocks of running ones that are strictly less urgent."""
        while step.block_reason is None:
            request = self.batches.first(step)
            if request is None or not self._is_urgent(request, step):
                return
            for victim in self._victims_for(request):
                self.preempt(victim, f"urgency: {request.id} came", step)
            self._try(request, step)

    def end_look(self, step: StepBuilder) -> None:
        """Note what the queue waits for, and which requests wait for something of their own."""
        for request in step.skipped:
            self._waiting.requeue(request)
        reason = step.block_reason or BlockReason.BUDGET
        if not len(self._waiting):
            reason = BlockReason.NEXT_STEP
        if reason in (BlockReason.BUDGET, BlockReason.PREEMPTION) or step.num_prefix_looks >= MAX_PREFIX_LOOKS:
            self.deferred.has_changed = True  # the next step is another one in this respect
        self._times.set_reason(reason, step.now)
        step.batch.deferred += self.deferred.records()

    def _reason_of_none(self) -> BlockReason:
        """Return why no request is left to be looked at."""
        if reason := self.deferred.block_reason():
            return reason
        return BlockReason.NEXT_STEP if self.batches.is_continuous else BlockReason.BATCHING

    def _start(self, request: Request, limit: int, step: StepBuilder) -> int:
        """Give a request that has just been admitted its first chunk, or say why it has none; return its tokens."""
        if not (size := step.prefill(request, limit)):
            step.served.add(request.id)
            step.batch.deferred.append(Deferral(request.id, step.reason_of_no_chunk(request)))
        return size

    def _may_have_seat(self, request: Request, step: StepBuilder) -> bool:
        """Tell whether nothing but blocks keeps ``request`` out; else none behind it may be admitted, either."""
        if not self._running.num_free_seats:
            step.block_reason = BlockReason.SEATS
        elif not all(self._policy.may_preempt(request, victim) for victim in step.victims):
            step.block_reason = BlockReason.PREEMPTION
        return step.block_reason is None

    def _try(self, request: Request, step: StepBuilder) -> bool:
        """Admit ``request`` if its blocks fit and its prefix is not being computed."""
        room = self._num_available() - self._headroom(request)
        match = self.cache.match(request)
        if match.owner is not None and not self._policy.may_preempt(request, match.owner):
            self.deferred.await_prefix(request, match, step.now)
            step.num_prefix_looks += 1
            if step.num_prefix_looks >= MAX_PREFIX_LOOKS:
                step.block_reason = BlockReason.PREFIX
            return False
        count, needs = self._count_blocks(request, match)
        if needs > room:
            self._skip(request, needs, step)
            return False
        self._admit(request, match, count, step)
        return True

    def _skip(self, request: Request, needs: int, step: StepBuilder) -> None:
        """Go on with others in this step: the blocks of ``request`` do not fit."""
        self.deferred.block(request, needs, self._num_available(), step.now)
        step.skip(request, LOOKAHEAD)

    def _skip_misfits(self, step: StepBuilder) -> None:
        """Skip those ahead of all short ones that do not fit, so that being passed counts for them."""
        while step.block_reason is None:
            request = self.batches.first(step)
            if request is None or self._waiting.is_short(request):
                return
            room = self._num_available() - self._headroom(request)
            if self._count_blocks(request, _NO_MATCH)[1] <= room:
                return  # fits even without a hit
            match = self.cache.match(request)
            needs = self._count_blocks(request, match)[1]
            if match.owner is not None or needs <= room:
                return
            self._skip(request, needs, step)

    def _headroom(self, request: Request) -> int:
        """Return how many blocks must stay free when ``request`` is admitted."""
        num_running = len(self._running)
        if not num_running or self._config.reserves_all:
            return 0
        is_pressed = bool(request.num_preemptions) or self.deferred.is_behind_preempted(request)
        layout = self._config.kv_layout
        return self._config.watermark_blocks + (
            num_running * (layout.num_full + layout.num_window) if is_pressed else 0
        )

    def _num_available(self) -> int:
        """Return how many free blocks are promised to nobody."""
        return self._pool.num_free - self._running.windows.num_reserved

    def _num_blocks(self, request: Request) -> int:
        """Return the length of the block table that ``request`` gets when it is admitted, in logical blocks."""
        # The newest token needs no slot: it is computed in the step that would add another.
        num_slots = max(request.num_tokens, request.end_at - 1) if self._config.reserves_all else request.num_tokens
        return math.ceil(num_slots / self._config.block_size)

    def _count_blocks(self, request: Request, match: Match) -> tuple[int, int]:
        """Return how many blocks to allocate, and how many free ones that takes: hits may be free blocks, too."""
        num_blocks, hits = self._num_blocks(request), match.blocks
        count = num_blocks - len(hits)
        needs = count * self._config.kv_layout.num_full + sum(block.size for block in hits if block.num_refs == 0)
        if (windows := self._running.windows).size:
            needs += windows.promise(num_blocks, min(len(hits) * self._config.block_size, request.num_tokens - 1))
        return count, needs

    def _admit(self, request: Request, match: Match, count: int, step: StepBuilder) -> None:
        hits = match.blocks
        self.deferred.note_passed(request)
        self.deferred.has_changed |= bool(hits and self.deferred.blocked)  # those that share the hits need less, too
        self.dequeue(request, step.now)
        self._running.admit(request, hits, match.window_blocks, count)
        self.cache.register(request, hits)
        if request.num_seated_tokens - request.num_computed_tokens > step.batch.budget:
            self._running.mark_long(request)
        request.wait.times_passed = 0
        if request.admitted_at is None:
            self._note_first_admission(request, step.now)
        step.add_request(request)

    def _note_first_admission(self, request: Request, now: float) -> None:
        request.admitted_at = now
        request.num_cached_tokens = request.num_computed_tokens
        self.num_prompt_tokens += request.num_prompt_tokens
        self.num_cached_tokens += request.num_cached_tokens
        self._limits.left_queue(request)
        if self._charge is not None:
            self._charge(request, request.num_prompt_tokens - request.num_cached_tokens, 0)

    # Urgency

    def _is_urgent(self, request: Request, step: StepBuilder) -> bool:
        """Tell whether running requests might be preempted for ``request``, and nothing else keeps it out."""
        may_preempt = self._policy.may_preempt
        if not any(may_preempt(request, other) for other in self._running.requests.values()):
            return False
        return (
            all(may_preempt(request, victim) for victim in step.victims)
            and not self.deferred.is_behind_reservation(request)
            and self._leaves_budget(request, step)
        )

    def _leaves_budget(self, request: Request, step: StepBuilder) -> bool:
        """Tell whether the more urgent ones that run leave a token for ``request``: no preemption in vain."""
        rank = self._waiting.rank(request)
        ahead = (other for other in self._running.prefilling.values() if self._waiting.rank(other) < rank)
        taken = sum(other.num_seated_tokens - other.num_computed_tokens for other in ahead)
        # Decodes take one token each, less the one of a victim when a seat must be taken from one.
        num_decodes = len(self._running.decoding) - (not self._running.num_free_seats)
        return step.left - taken > num_decodes

    def _victims_for(self, request: Request) -> list[Request]:
        """Return the requests to preempt for ``request``, least urgent first; none if it fits, or cannot be made to."""
        match = self.cache.match(request)
        if match.owner is not None and not self._policy.may_preempt(request, match.owner):
            return []
        running = self._running.requests.values()
        candidates = [other for other in running if self._policy.may_preempt(request, other)]
        candidates.sort(key=self._waiting.rank, reverse=True)
        headroom = self._headroom(request)
        return choose_victims(
            candidates,
            match.blocks,
            num_seats=0 if self._running.num_free_seats else 1,
            num_blocks=self._count_blocks(request, match)[1] + headroom - self._num_available(),
            headroom=headroom if len(candidates) == len(running) else 0,
        )
