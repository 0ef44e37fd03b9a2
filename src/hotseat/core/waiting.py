"""The waiting queue: policy order, O(log n) to join, O(1) to leave, and no cost for those who just wait.

    lane 0   up to 16 tokens                heap by (key, serial)
    lane 1   up to 32                       heap
    lane 2   up to 64                       heap …

A lane holds requests of about the same length; the first lanes, together, those that count as short beside a long one.
The next request is the smallest of the lanes' heads, so the lanes together keep the exact order; but when one head's
blocks do not fit, a step can go on with another lane at once, however many of the same length stand behind it. With a
``Grouping`` policy a lane has one heap for each group, and the groups are in a heap by a number that only grows, put
right when it is looked at.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TypeAlias

from hotseat.core.policy import Grouping, Key, Policy, Sinking
from hotseat.core.request import Request

__all__ = ["Rank", "WaitingQueue"]

LANE_TOKENS = 16  # of the first lane

Rank: TypeAlias = tuple[float, str, Key, int]  # group key, group, key, serial: the order of everything


class _Ticket:
    """A request's entry in a heap; left behind without its request when it goes."""

    __slots__ = ("key", "request", "serial")

    def __init__(self, request: Request) -> None:
        self.key = request.wait.key
        self.serial = request.serial
        self.request: Request | None = request

    def __lt__(self, other: _Ticket) -> bool:
        return (self.key, self.serial) < (other.key, other.serial)


class _Heap:
    """Requests by (key, serial)."""

    __slots__ = ("_num_live", "_tickets")

    def __init__(self) -> None:
        self._tickets: list[_Ticket] = []
        self._num_live = 0

    def __len__(self) -> int:
        return self._num_live

    def __iter__(self) -> Iterator[Request]:
        return (ticket.request for ticket in self._tickets if ticket.request is not None)

    def push(self, request: Request) -> None:
        ticket = request.wait.ticket = _Ticket(request)
        heapq.heappush(self._tickets, ticket)
        self._num_live += 1

    def discard(self, request: Request) -> None:
        request.wait.ticket.request = None
        request.wait.ticket = None
        self._num_live -= 1
        if len(self._tickets) > 2 * self._num_live + 64:
            self._tickets = [ticket for ticket in self._tickets if ticket.request is not None]
            heapq.heapify(self._tickets)

    def first(self) -> Request | None:
        tickets = self._tickets
        while tickets and tickets[0].request is None:
            heapq.heappop(tickets)
        return tickets[0].request if tickets else None


class _Lane:
    """Requests of about the same length, by group."""

    __slots__ = ("_grouping", "_heaps", "_order")

    def __init__(self, grouping: Grouping | None) -> None:
        self._grouping = grouping
        self._heaps: dict[str, _Heap] = {}
        self._order: list[tuple[float, str]] = []  # of the groups; a number may be too small, never too large

    def __iter__(self) -> Iterator[Request]:
        return (request for heap in self._heaps.values() for request in heap)

    def push(self, request: Request) -> None:
        group = request.wait.group
        heap = self._heaps.get(group)
        if heap is None:
            heap = self._heaps[group] = _Heap()
            heapq.heappush(self._order, (self._group_key(group), group))
        heap.push(request)

    def discard(self, request: Request) -> None:
        self._heaps[request.wait.group].discard(request)

    def first(self) -> Request | None:
        order = self._order
        while order:
            group_key, group = order[0]
            request = self._heaps[group].first()
            if request is None:
                heapq.heappop(order)
                del self._heaps[group]
            elif (actual := self._group_key(group)) > group_key:
                heapq.heapreplace(order, (actual, group))
            else:
                return request
        return None

    def _group_key(self, group: str) -> float:
        return self._grouping.group_key(group) if self._grouping else 0.0


class WaitingQueue:
    """All requests that hold no seat, in policy order. Those *set apart* wait for an event and are not offered."""

    def __init__(self, policy: Policy, short_tokens: int) -> None:
        self._policy = policy
        self._grouping = policy if isinstance(policy, Grouping) else None
        self._sinking = policy if isinstance(policy, Sinking) else None
        self._short_tokens = max(1, short_tokens)
        self._num_short_lanes = _size_class(self._short_tokens) + 1
        self._lanes: list[_Lane] = []
        self._apart: dict[str, Request] = {}
        self._num_offered = 0

    def __len__(self) -> int:
        return self._num_offered + len(self._apart)

    def __iter__(self) -> Iterator[Request]:
        """Yield all, in no order."""
        yield from self._apart.values()
        for lane in self._lanes:
            yield from lane

    @property
    def num_apart(self) -> int:
        return len(self._apart)

    def rank(self, request: Request) -> Rank:
        """Return the place of any request, waiting or running, in the order of all."""
        wait = request.wait
        return (self._grouping.group_key(wait.group) if self._grouping else 0.0, wait.group, wait.key, request.serial)

    def is_short(self, request: Request) -> bool:
        """Tell whether a request, waiting or running, counts as short beside a long one."""
        return request.wait.lane < self._num_short_lanes

    def is_offered(self, request: Request) -> bool:
        """Tell whether a request waits and is not set apart."""
        return request.wait.ticket is not None

    def join(self, request: Request, now: float) -> None:
        """Take in a request that arrived or was preempted."""
        wait = request.wait
        wait.lane = _size_class(request.num_tokens) + (request.num_tokens > self._short_tokens)
        if self._grouping is not None:
            wait.group = self._grouping.group(request)
            self._grouping.joined(request)
        wait.key = self._policy.key(request, now)
        self._offer(request)

    def leave(self, request: Request) -> None:
        """Let go of a request that was admitted or ended."""
        if self._apart.pop(request.id, None) is None:
            self._withdraw(request)
        if self._grouping is not None:
            self._grouping.left(request)

    def set_apart(self, request: Request) -> None:
        """Stop offering a request until ``call_back``; it keeps its place in the order."""
        self._withdraw(request)
        self._apart[request.id] = request

    def call_back(self, request: Request) -> None:
        """Offer a request again that was set apart; one that left meanwhile stays away."""
        if self._apart.pop(request.id, None) is not None:
            self._offer(request)

    def first(
        self, now: float, *, closed_lanes: frozenset[int] | set[int] = frozenset(), short_only: bool = False
    ) -> Request | None:
        """Return the first request in the order, leaving out whole lanes."""
        best: Request | None = None
        for index, lane in enumerate(self._lanes[: self._num_short_lanes] if short_only else self._lanes):
            if index in closed_lanes:
                continue
            head = self._settled_head(lane, now)
            if head is not None and (best is None or self.rank(head) < self.rank(best)):
                best = head
        return best

    def _settled_head(self, lane: _Lane, now: float) -> Request | None:
        """Return the lane's head, after those that lost their place have gone back."""
        head = lane.first()
        if self._sinking is None:
            return head
        while head is not None and (key := self._sinking.key_at_head(head, now)) > head.wait.key:
            lane.discard(head)
            head.wait.key = key
            lane.push(head)
            head = lane.first()
        return head

    def _offer(self, request: Request) -> None:
        while len(self._lanes) <= request.wait.lane:
            self._lanes.append(_Lane(self._grouping))
        self._lanes[request.wait.lane].push(request)
        self._num_offered += 1

    def _withdraw(self, request: Request) -> None:
        self._lanes[request.wait.lane].discard(request)
        self._num_offered -= 1


def _size_class(num_tokens: int) -> int:
    return (max(0, num_tokens - 1) // LANE_TOKENS).bit_length()
