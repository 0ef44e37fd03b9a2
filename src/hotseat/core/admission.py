"""Who sits down, and who has to get up for it.

Theory of operation
-------------------
*Admission reserves by allocating.* A request that sits down gets the blocks of its whole present sequence at once, so
two long prompts can never be let in together and preempt each other later. It must leave ``headroom`` blocks free: a
watermark, and when it resumes after a preemption, or passes somebody who waits to resume, one more for each running
request, so that the next step does not preempt again. With nobody running there is no headroom to leave.

*A request that does not fit is passed.* It is set aside for the rest of the step and the next one is looked at; after
``LOOKAHEAD`` of about the same length the lane is closed. Everybody who is admitted although somebody ahead does not
fit has passed that one. Who was passed ``max_times_passed`` times is *earmarked*: nobody behind it in the order is
admitted until it starts, so the blocks that come free are left to it.

*A request whose prefix is being computed* waits until its leader has computed what they share; then it is offered
again.

*Nothing is looked at twice for nothing.* ``plan.held_up`` says why a step admits nobody any more. When that was seats
or blocks, the next look waits for news: an arrival, a seat or a block that comes free, a prefix that is there. So
100,000 waiting requests cost a step nothing.
"""

from __future__ import annotations

import math

from hotseat.core.batch import Deferral, Preemption
from hotseat.core.batching import gate_for
from hotseat.core.block_pool import Block, BlockPool
from hotseat.core.config import SchedulerConfig
from hotseat.core.entrance import Entrance
from hotseat.core.explain import QueueClock
from hotseat.core.limits import Limits
from hotseat.core.plan import Plan
from hotseat.core.policy import Observing, Policy
from hotseat.core.prefix import Match, PrefixCache
from hotseat.core.request import Request, RequestId, RequestStatus
from hotseat.core.running import RunningSet
from hotseat.core.waiting import Rank, WaitingQueue

__all__ = ["Admission"]

LOOKAHEAD = 4  # requests of about the same length that may turn out not to fit before a step gives up on that length
NOTHING = "next step"  # what the queue waits for when nothing holds it up


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
        clock: QueueClock,
    ) -> None:
        self.cache = PrefixCache(pool, config.block_size, is_enabled=config.enable_prefix_caching)
        self.num_preemptions = 0
        self.num_prompt_tokens = 0  # of all that were admitted
        self.num_cached_tokens = 0  # of these, found in the prefix cache
        self._config = config
        self._policy = policy
        self._observer = policy if isinstance(policy, Observing) else None
        self._pool = pool
        self._waiting = waiting
        self._running = running
        self._limits = limits
        self._clock = clock
        self._blocked: dict[RequestId, Request] = {}  # did not fit when they were last looked at
        self._preempted: dict[RequestId, Request] = {}  # wait to resume
        self.entrance = Entrance(gate_for(config), policy, waiting, running, self._preempted)
        self._following: dict[RequestId, Request] = {}  # wait for a prefix that another computes
        self._earmarked: Request | None = None
        self._has_news = True  # something changed since the last look

    # Coming and going

    def join(self, request: Request, now: float) -> None:
        """Let a request wait that arrived or was preempted."""
        self._waiting.join(request, now)
        self._clock.start(request.wait, now)
        self._has_news = True

    def leave(self, request: Request, now: float) -> None:
        """Let go of a waiting request: it sits down, or it ended."""
        wait = request.wait
        self._waiting.leave(request)
        self.entrance.gate.members.pop(request.id, None)
        self._clock.stop(wait, now)
        wait.reason, wait.leader, wait.needs_blocks = "", None, 0
        self._following.pop(request.id, None)
        self._preempted.pop(request.id, None)
        if self._blocked.pop(request.id, None) is not None:
            self._find_earmarked()
            self._has_news = True

    def get_up(self, request: Request, status: RequestStatus, now: float) -> None:
        """Take seat and blocks from a running request, and tell those who waited for its prefix."""
        self.call_back(self.cache.release(request), now)
        self._running.leave(request, status)
        self._has_news = True

    def preempt(self, victim: Request, cause: str, plan: Plan) -> None:
        """Send a running request back to the queue; it keeps its arrival and its output and recomputes the rest."""
        self.get_up(victim, RequestStatus.WAITING, plan.now)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        victim.wait.preempted_by.append(cause)
        if victim.gathered_logprobs is not None:
            victim.gathered_logprobs = []
        self.join(victim, plan.now)
        self.num_preemptions += 1
        self._preempted[victim.id] = victim
        plan.grown.pop(victim.id, None)
        plan.victims.append(victim)
        plan.batch.released_ids.append(victim.id)
        plan.batch.preempted.append(Preemption(victim.id, cause))

    def call_back(self, followers: list[Request], now: float) -> None:
        """Offer requests again whose prefix is there, or will not come; those that are blocked may need less now."""
        self._has_news |= bool(self._blocked)
        for request in followers:
            if self._following.pop(request.id, None) is not None:
                request.wait.leader = None
                self._restart_span(request, "", now)
                self._waiting.call_back(request)
                self._has_news = True

    def notice(self) -> None:
        """Look at the queue in the next step: something changed."""
        self._has_news = True

    # A step's look at the queue

    def begin_look(self, plan: Plan) -> None:
        """See whether there is anything new."""
        if not self.entrance.is_continuous:
            self.entrance.look(plan.now, self._limits.oldest_queued_at())
            self._has_news = True
        if not self._has_news:
            plan.held_up = self._clock.reason
        self._has_news = False

    def admit(self, plan: Plan, before: Rank | None = None) -> None:
        """Let requests sit down and compute while budget, seats and blocks last: all, or those ``before`` a rank."""
        while not plan.held_up and plan.left > 0:
            request = self.entrance.first(plan)
            if request is None:
                plan.held_up = self._why_nobody()
            elif before is not None and self._waiting.rank(request) > before:
                return
            elif self._is_kept_out(request):
                plan.held_up = "blocks"
            elif self._may_sit(request, plan) and self._try(request, plan):
                self._start(request, plan.left, plan)

    def admit_short(self, plan: Plan, allowance: int, per_step: int) -> int:
        """Let short prompts sit down with ``allowance`` tokens, each if its rest fits in the next; return what is left.

        The rest is at most a share; only who finds the share untouched, more than which no step has, may leave more.
        """
        self._set_misfits_aside(plan)
        while not plan.held_up and allowance > 0 and plan.left > 0:
            request = self.entrance.first_short(plan)
            if request is None or self._is_kept_out(request):
                break
            rest = request.num_tokens - min(allowance, plan.chunk_cap)
            most = plan.left - allowance - len(plan.served) if allowance == per_step else per_step
            if rest > min(most, plan.chunk_cap):
                break
            if self._may_sit(request, plan) and self._try(request, plan):
                allowance -= self._start(request, allowance, plan)
        return allowance

    def admit_urgent(self, plan: Plan) -> None:
        """Let requests take seats and blocks from running ones that are strictly less urgent."""
        while not plan.held_up:
            request = self.entrance.first(plan)
            if request is None or not self._is_urgent(request, plan):
                return
            for victim in self._victims_for(request):
                self.preempt(victim, f"urgency: {request.id} came", plan)
            self._try(request, plan)

    def end_look(self, plan: Plan) -> None:
        """Note what holds up the queue, and name those who wait for something of their own."""
        for request in plan.aside:
            self._waiting.call_back(request)
        reason = plan.held_up or ("budget" if len(self._waiting) else NOTHING)
        if reason in ("budget", "preemption"):
            self._has_news = True  # the next step is another one in this respect
        self._clock.turn(reason if len(self._waiting) else NOTHING, plan.now)
        for held in (self._blocked, self._following):
            plan.batch.deferred += [Deferral(request.id, request.wait.reason) for request in held.values()]

    def check_invariants(self) -> None:
        """Assert that whoever is noted as waiting for something of its own is waiting."""
        for request in (*self._blocked.values(), *self._following.values(), *self._preempted.values()):
            assert request.status is RequestStatus.WAITING, f"{request.id} is {request.status.value} and held back"
        for request in self._following.values():
            leader = request.wait.leader
            assert leader is not None, f"{request.id} follows nobody"
            assert leader.status is RequestStatus.RUNNING, f"{request.id} follows {leader.id}, which does not run"
            assert any(follower is request for _, follower in leader.followers), f"{leader.id} forgot {request.id}"
        assert len(self._following) == self._waiting.num_apart, "a request is set apart and waits for nobody"
        assert self._earmarked is None or self._earmarked.id in self._blocked, "a request is earmarked and not blocked"

    def _why_nobody(self) -> str:
        nothing = NOTHING if self.entrance.is_continuous else "batching"
        return "blocks" if self._blocked else "prefix" if self._following else nothing

    def _start(self, request: Request, limit: int, plan: Plan) -> int:
        """Give a request that has just sat down its first chunk, or say why it has none; return its tokens."""
        if not (size := plan.prefill(request, limit)):
            plan.served.add(request.id)
            plan.batch.deferred.append(Deferral(request.id, "budget"))
        return size

    def _may_sit(self, request: Request, plan: Plan) -> bool:
        """Tell whether anything but blocks keeps ``request`` out; nobody behind it may sit down then, either."""
        if not self._running.num_free_seats:
            plan.held_up = "seats"
        elif not all(self._policy.may_preempt(request, victim) for victim in plan.victims):
            plan.held_up = "preemption"
        return not plan.held_up

    def _is_kept_out(self, request: Request) -> bool:
        """Tell whether the blocks that come free are kept for another one that is ahead."""
        earmarked = self._earmarked
        return earmarked is not None and self._waiting.rank(request) > self._waiting.rank(earmarked)

    def _try(self, request: Request, plan: Plan) -> bool:
        """Let ``request`` sit down if its blocks fit and nobody is computing its prefix."""
        room = self._pool.num_free - self._headroom(request)
        match = self.cache.match(request)
        if match.leader is not None and not self._policy.may_preempt(request, match.leader):
            return self._follow(request, match, plan.now)
        count, needs = self._count_blocks(request, match)
        if needs > room:
            return self._set_aside(request, needs, plan)
        self._sit(request, match.blocks, count, plan)
        return True

    def _set_misfits_aside(self, plan: Plan) -> None:
        """Set aside whoever is ahead of all short ones and does not fit, so that it counts who passes it."""
        while not plan.held_up:
            request = self.entrance.first(plan)
            if request is None or self._waiting.is_short(request):
                return
            room = self._pool.num_free - self._headroom(request)
            if math.ceil(request.num_tokens / self._config.block_size) <= room:
                return  # fits even without a hit
            match = self.cache.match(request)
            needs = self._count_blocks(request, match)[1]
            if match.leader is not None or needs <= room:
                return
            self._set_aside(request, needs, plan)

    def _headroom(self, request: Request) -> int:
        num_running = len(self._running)
        if not num_running:
            return 0
        is_pressed = bool(request.num_preemptions)
        if self._preempted and not is_pressed:
            rank = self._waiting.rank
            is_pressed = rank(request) > min(map(rank, self._preempted.values()))
        return self._config.watermark_blocks + (num_running if is_pressed else 0)

    def _count_blocks(self, request: Request, match: Match) -> tuple[int, int]:
        """Return how many blocks to allocate, and how many free ones that takes: hits may be free blocks, too."""
        count = math.ceil(request.num_tokens / self._config.block_size) - len(match.blocks)
        return count, count + sum(block.num_refs == 0 for block in match.blocks)

    def _sit(self, request: Request, hits: list[Block], count: int, plan: Plan) -> None:
        self._pass_blocked(request)
        self._has_news |= bool(hits and self._blocked)  # who shares the hits needs less, too
        self.leave(request, plan.now)
        self._running.sit(request, hits, count)
        self.cache.claim(request, hits)
        if request.num_seated_tokens - request.num_computed_tokens > plan.batch.budget:
            self._running.mark_long(request)
        request.wait.times_passed = 0
        if request.admitted_at is None:
            self._sit_first_time(request, plan.now)
        plan.seat(request)

    def _sit_first_time(self, request: Request, now: float) -> None:
        request.admitted_at = now
        request.num_cached_tokens = request.num_computed_tokens
        self.num_prompt_tokens += request.num_prompt_tokens
        self.num_cached_tokens += request.num_cached_tokens
        self._limits.left_queue(request)
        if self._observer is not None:
            self._observer.charge(request, request.num_prompt_tokens - request.num_cached_tokens, 0)

    # Those who wait for something of their own

    def _set_aside(self, request: Request, needs: int, plan: Plan) -> bool:
        """Go on with others: the blocks of ``request`` do not fit. Returns False."""
        reason = f"blocks: needs {needs}, {self._pool.num_free} free"
        if request.id in self._blocked:
            request.wait.reason = reason
        else:
            self._restart_span(request, reason, plan.now)
            self._blocked[request.id] = request
        request.wait.needs_blocks = needs
        self._find_earmarked()
        self._waiting.set_apart(request)
        plan.set_aside(request, LOOKAHEAD)
        return False

    def _follow(self, request: Request, match: Match, now: float) -> bool:
        """Let ``request`` wait until its leader has computed what they share. Returns False."""
        leader = match.leader
        assert leader is not None, f"{request.id} follows nobody"
        request.wait.leader = leader
        leader.followers.append((match.num_awaited, request))
        if self._blocked.pop(request.id, None) is not None:
            self._find_earmarked()
        self._following[request.id] = request
        self._restart_span(request, f"prefix: {leader.id} is computing it", now)
        self._waiting.set_apart(request)
        return False

    def _restart_span(self, request: Request, reason: str, now: float) -> None:
        self._clock.stop(request.wait, now)
        self._clock.start(request.wait, now, reason)

    def _pass_blocked(self, request: Request) -> None:
        """Count that ``request`` sits down although others ahead of it do not fit."""
        if not self._blocked:
            return
        rank = self._waiting.rank(request)
        for blocked in self._blocked.values():
            if self._waiting.rank(blocked) < rank:
                blocked.wait.times_passed += 1
                blocked.wait.num_passed += 1
                blocked.wait.passed_by.append(request.id)
        self._find_earmarked()

    def _find_earmarked(self) -> None:
        limit = self._config.max_times_passed
        passed = [request for request in self._blocked.values() if request.wait.times_passed >= limit]
        self._earmarked = min(passed, key=self._waiting.rank, default=None)

    # Those who get up

    def least_urgent(self) -> Request:
        """Return the running request that has to go when blocks run out."""
        return max(self._running.requests.values(), key=self._waiting.rank)

    def _is_urgent(self, request: Request, plan: Plan) -> bool:
        """Tell whether somebody who runs might get up for ``request``, and nothing else keeps it out."""
        may_preempt = self._policy.may_preempt
        if not any(may_preempt(request, other) for other in self._running.requests.values()):
            return False
        return (
            all(may_preempt(request, victim) for victim in plan.victims)
            and not self._is_kept_out(request)
            and self._leaves_budget(request, plan)
        )

    def _leaves_budget(self, request: Request, plan: Plan) -> bool:
        """Tell whether the more urgent ones that run leave a token for ``request``, so that nobody gets up in vain."""
        rank = self._waiting.rank(request)
        ahead = (other for other in self._running.prefilling.values() if self._waiting.rank(other) < rank)
        taken = sum(other.num_seated_tokens - other.num_computed_tokens for other in ahead)
        return plan.left - taken > len(self._running.decoding) - (not self._running.num_free_seats)

    def _victims_for(self, request: Request) -> list[Request]:
        """Return who must get up for ``request``, least urgent first; nobody if it fits, or if not even all help."""
        match = self.cache.match(request)
        if match.leader is not None and not self._policy.may_preempt(request, match.leader):
            return []
        running = self._running.requests.values()
        candidates = [other for other in running if self._policy.may_preempt(request, other)]
        candidates.sort(key=self._waiting.rank, reverse=True)
        num_seats = 0 if self._running.num_free_seats else 1
        headroom = self._headroom(request)
        lacking = self._count_blocks(request, match)[1] + headroom - self._pool.num_free
        num_held = {block.id: -1 for block in match.blocks}  # its own hits do not come free for it
        victims: list[Request] = []
        for candidate in candidates:
            if len(victims) >= num_seats and lacking <= 0:
                break
            victims.append(candidate)
            lacking -= sum(_is_last_holder(block, num_held) for block in candidate.blocks)
        if len(victims) == len(running):
            lacking -= headroom
        return victims if len(victims) >= num_seats and lacking <= 0 else []


def _is_last_holder(block: Block, num_held: dict[int, int]) -> bool:
    """Count one more victim that holds ``block``; tell whether nobody else does."""
    num_held[block.id] = num_held.get(block.id, 0) + 1
    return num_held[block.id] == block.num_refs
