"""Waiting requests with a reason of their own: blocks that do not fit, a prefix in flight, a preemption.

The rest of the queue waits for what the queue as a whole waits for, and is not touched. These here are kept by name,
so that an event can offer them again:

    blocked     its blocks did not fit when it was last looked at; offered again in every look
    prefix      its *owner* computes what both share; offered again when that is computed, or will not be
    preempted   lost its seat; offered first, see below, and those behind it must leave it room to resume

*Head-of-line reservation.* A request that is admitted although an earlier one is blocked passes that one. After
``max_times_passed`` of them, the earliest such request has all blocks that come free reserved: none behind it in the
order is admitted until it starts.

*Preempted ones resume first*, whatever their place in the policy's order: its blocks are still in the prefix cache,
and each request that is admitted before evicts some of them. Two kinds go before: requests that are strictly more
urgent (``Policy.may_preempt``), and the one with the reservation, so that the bound on passing holds.

All books are keyed by the request's serial number, which is never given twice, and an entry goes when its request
does: what is said of an ended request cannot reach another one with the same id.
"""

from __future__ import annotations

from collections.abc import Sequence

from hotseat.core.batch import Deferral
from hotseat.core.explain import WaitTimes
from hotseat.core.policy import Policy
from hotseat.core.prefix import Match
from hotseat.core.request import BlockReason, Request, RequestStatus
from hotseat.core.waiting import Rank, WaitingQueue

__all__ = ["DeferredRequests"]

MAX_RECORDED = 64  # deferrals that one step's record names; however many share a prefix, a record stays small


class DeferredRequests:
    """The waiting requests that admission looked at and could not admit, each with its reason."""

    def __init__(self, waiting: WaitingQueue, times: WaitTimes, policy: Policy, max_times_passed: int) -> None:
        self.blocked: dict[int, Request] = {}
        self.awaiting_prefix: dict[int, Request] = {}
        self.preempted: dict[int, Request] = {}
        self.has_changed = True  # something happened since admission last looked, so a look may find more
        self._reserved_for: Request | None = None  # one of the blocked
        self._waiting = waiting
        self._times = times
        self._may_preempt = policy.may_preempt
        self._max_times_passed = max_times_passed

    def block(self, request: Request, needs: int, num_free: int, now: float) -> None:
        """Note that the blocks of ``request`` do not fit."""
        self._set_reason(request, BlockReason.BLOCKS, f"needs {needs}, {num_free} free", now)
        request.wait.needs_blocks = needs
        self.blocked[request.serial] = request
        self._reserve()
        self._waiting.defer(request)

    def await_prefix(self, request: Request, match: Match, now: float) -> None:
        """Let ``request`` wait until the owner has computed what they share."""
        owner, wait = match.owner, request.wait
        assert owner is not None, f"{request.id} waits for a prefix without an owner"
        wait.owner = owner
        owner.waiters[request.serial] = (match.num_awaited, request)
        if owner.best_waiter is None or self._waiting.rank(request) < self._waiting.rank(owner.best_waiter):
            owner.best_waiter = request
        if self.blocked.pop(request.serial, None) is not None:
            self._reserve()
        self.awaiting_prefix[request.serial] = request
        self._set_reason(request, BlockReason.PREFIX, f"{owner.id} is computing it", now)
        self._waiting.defer(request)

    def requeue(self, waiters: Sequence[Request], now: float) -> None:
        """Offer requests again whose prefix is there, or will not come; blocked ones may need less now."""
        self.has_changed |= bool(self.blocked)
        owners = {id(owner): owner for owner in map(self._leave_owner, waiters)}
        for request in waiters:
            self._times.stop(request.wait, now)
            self._times.start(request.wait, now)
            self._waiting.requeue(request)
            self.has_changed = True
        for owner in owners.values():
            self._choose_best(owner)

    def remove(self, request: Request) -> None:
        """Forget a request that was admitted or ended."""
        if request.wait.owner is not None:
            self._choose_best(self._leave_owner(request))
        self.preempted.pop(request.serial, None)
        if self.blocked.pop(request.serial, None) is not None:
            self._reserve()
            self.has_changed = True
        request.wait.needs_blocks = 0

    def note_passed(self, request: Request) -> None:
        """Count that ``request`` is admitted although others ahead of it do not fit."""
        if not self.blocked:
            return
        rank = self._waiting.rank(request)
        for blocked in self.blocked.values():
            if self._waiting.rank(blocked) < rank:
                blocked.wait.times_passed += 1
                blocked.wait.num_passed += 1
                blocked.wait.passed_by.append(request.id)
        self._reserve()

    def inherited_rank(self, request: Request) -> Rank:
        """Return the rank of a running prefill: its own, or the best of those that wait for its prefix.

        Otherwise a waiter would be as late as an owner that is less urgent than itself (priority inversion).
        """
        own, waiter = self._waiting.rank(request), request.best_waiter
        return own if waiter is None else min(own, self._waiting.rank(waiter))

    def is_behind_reservation(self, request: Request) -> bool:
        """Tell whether the blocks that come free are reserved for another request that is ahead."""
        reserved_for = self._reserved_for
        return reserved_for is not None and self._waiting.rank(request) > self._waiting.rank(reserved_for)

    def resumes_before(self, preempted: Request, other: Request) -> bool:
        """Tell whether ``preempted`` is offered a seat before ``other``, which waits for its first one."""
        return not (self._may_preempt(other, preempted) or self.is_behind_reservation(preempted))

    def is_behind_preempted(self, request: Request) -> bool:
        """Tell whether a preempted request, other than ``request``, is to resume first."""
        return any(one is not request and self.resumes_before(one, request) for one in self.preempted.values())

    def rekeyed(self) -> None:
        """Choose anew what depends on the order: the ranks that owners inherit, the request with the reservation."""
        owners = {owner.serial: owner for one in self.awaiting_prefix.values() if (owner := one.wait.owner)}
        for owner in owners.values():
            owner.best_waiter = self._best_waiter(owner)
        self._reserve()

    def block_reason(self) -> BlockReason | None:
        """Return the reason of those that are kept here, when no other request is left to look at."""
        if self.blocked:
            return BlockReason.BLOCKS
        return BlockReason.PREFIX if self.awaiting_prefix else None

    def records(self) -> list[Deferral]:
        """Return the deferrals of this moment, for the step record."""
        found: list[Deferral] = []
        for deferred in (self.blocked, self.awaiting_prefix):
            for request in deferred.values():
                if len(found) == MAX_RECORDED:
                    return found
                found.append(Deferral(request.id, request.wait.own_reason))
        return found

    def check_invariants(self) -> None:
        """Assert that every entry is waiting, and that owners and waiters know each other."""
        for request in (*self.blocked.values(), *self.awaiting_prefix.values(), *self.preempted.values()):
            assert request.status is RequestStatus.WAITING, f"{request.id} is {request.status.value} and deferred"
        for request in self.awaiting_prefix.values():
            owner = request.wait.owner
            assert owner is not None, f"{request.id} waits for a prefix without an owner"
            assert owner.status is RequestStatus.RUNNING, f"{request.id} waits for {owner.id}, which does not run"
            assert owner.waiters[request.serial][1] is request, f"{owner.id} forgot {request.id}"
            best = owner.best_waiter
            assert best is not None, f"{owner.id} has waiters and no best one"
            assert best.serial in owner.waiters, f"{owner.id} inherits the rank of {best.id}, which left"
        assert len(self.awaiting_prefix) == self._waiting.num_deferred, "a deferred request waits for no prefix"
        is_blocked = self._reserved_for is None or self._reserved_for.serial in self.blocked
        assert is_blocked, "blocks are reserved for a request that is not blocked"

    def _leave_owner(self, request: Request) -> Request:
        owner = request.wait.owner
        assert owner is not None, f"{request.id} waits for no prefix"
        request.wait.owner = None
        del self.awaiting_prefix[request.serial], owner.waiters[request.serial]
        return owner

    def _choose_best(self, owner: Request) -> None:
        """Find the waiter whose rank ``owner`` inherits, if the last one has left."""
        if owner.best_waiter is not None and owner.best_waiter.serial not in owner.waiters:
            owner.best_waiter = self._best_waiter(owner)

    def _best_waiter(self, owner: Request) -> Request | None:
        return min((waiter for _, waiter in owner.waiters.values()), key=self._waiting.rank, default=None)

    def _set_reason(self, request: Request, reason: BlockReason, detail: str, now: float) -> None:
        if request.wait.reason is not reason:
            self._times.stop(request.wait, now)
            self._times.start(request.wait, now, reason)
        request.wait.detail = detail

    def _reserve(self) -> None:
        passed = [one for one in self.blocked.values() if one.wait.times_passed >= self._max_times_passed]
        self._reserved_for = min(passed, key=self._waiting.rank, default=None)
