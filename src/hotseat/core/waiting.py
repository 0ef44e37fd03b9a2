"""The waiting queue: policy order, O(log n) to enqueue, O(1) to dequeue, no cost for requests that just wait.

    bucket 0   up to 16 tokens                heap by (key, serial)
    bucket 1   up to 32                       heap
    bucket 2   up to 64                       heap …

A size bucket holds requests of about the same length; the first buckets, together, the short ones. The next request is
the smallest of the buckets' heads, so the buckets together keep the exact order; but when one head's blocks do not fit,
a step can go on with another bucket at once, however many of the same length stand behind it. With a policy that
groups, a bucket has one heap for each group, and the groups are in a heap by a number that only grows, put right when
it is looked at.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TypeAlias

from hotseat.core.order_index import OrderIndex
from hotseat.core.policy import Key, Policy, overrides
from hotseat.core.request import Request

__all__ = ["Rank", "WaitingQueue"]

BUCKET_TOKENS = 16  # of the first bucket

Rank: TypeAlias = tuple[float, str, Key, int]  # group key, group, key, serial: the order of everything


class _HeapEntry:
    """A request's entry in a heap; left behind without its request when it goes."""

    __slots__ = ("key", "request", "serial")

    def __init__(self, request: Request) -> None:
        self.key = request.wait.key
        self.serial = request.serial
        self.request: Request | None = request

    def __lt__(self, other: _HeapEntry) -> bool:
        return (self.key, self.serial) < (other.key, other.serial)


class _Heap:
    """Requests by (key, serial)."""

    __slots__ = ("_entries", "_num_live")

    def __init__(self) -> None:
        self._entries: list[_HeapEntry] = []
        self._num_live = 0

    def __iter__(self) -> Iterator[Request]:
        return (heap_entry.request for heap_entry in self._entries if heap_entry.request is not None)

    def push(self, request: Request) -> None:
        heap_entry = request.wait.heap_entry = _HeapEntry(request)
        heapq.heappush(self._entries, heap_entry)
        self._num_live += 1

    def discard(self, request: Request) -> None:
        request.wait.heap_entry.request = None
        request.wait.heap_entry = None
        self._num_live -= 1
        if len(self._entries) > 2 * self._num_live + 64:
            self._entries = [heap_entry for heap_entry in self._entries if heap_entry.request is not None]
            heapq.heapify(self._entries)

    def first(self) -> Request | None:
        entries = self._entries
        while entries and entries[0].request is None:
            heapq.heappop(entries)
        return entries[0].request if entries else None


class _SizeBucket:
    """Requests of about the same length, by group."""

    __slots__ = ("_grouping", "_heaps", "_order")

    def __init__(self, grouping: Policy | None) -> None:
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
    """All requests that hold no seat, in policy order. *Deferred* ones wait for an event and are not offered."""

    def __init__(self, policy: Policy, short_tokens: int) -> None:
        self._policy = policy
        self._grouping = policy if overrides(policy, "group", "group_key", "joined", "left") else None
        self._rekeying = policy if overrides(policy, "key_at_head") else None
        self._short_tokens = max(1, short_tokens)
        self._num_short_buckets = _size_class(self._short_tokens) + 1
        self._buckets: list[_SizeBucket] = []
        self._deferred: dict[int, Request] = {}  # by serial
        self._order: dict[str, OrderIndex] = {}  # of all, deferred ones too, by group
        self._num_offered = 0

    def __len__(self) -> int:
        return self._num_offered + len(self._deferred)

    def __iter__(self) -> Iterator[Request]:
        """Yield all, in no order."""
        yield from self._deferred.values()
        for bucket in self._buckets:
            yield from bucket

    @property
    def num_deferred(self) -> int:
        return len(self._deferred)

    def rank(self, request: Request) -> Rank:
        """Return the place of any request, waiting or running, in the order of all."""
        wait = request.wait
        return (self._grouping.group_key(wait.group) if self._grouping else 0.0, wait.group, wait.key, request.serial)

    def num_ahead(self, request: Request) -> int:
        """Return how many come before a waiting request in the order; O(groups + log n)."""
        group, key = request.wait.group, request.wait.key
        num_ahead = self._order[group].num_before(key, request.serial)
        if self._grouping is not None:
            place = (self._grouping.group_key(group), group)
            others = ((self._grouping.group_key(other), other, index) for other, index in self._order.items())
            num_ahead += sum(len(index) for group_key, other, index in others if (group_key, other) < place)
        return num_ahead

    def is_short(self, request: Request) -> bool:
        """Tell whether a request, waiting or running, counts as short beside a long one."""
        return request.wait.bucket < self._num_short_buckets

    def is_offered(self, request: Request) -> bool:
        """Tell whether a request waits and is not deferred."""
        return request.wait.heap_entry is not None

    def enqueue(self, request: Request, now: float) -> None:
        """Take in a request that arrived or was preempted."""
        wait = request.wait
        wait.bucket = _size_class(request.num_tokens) + (request.num_tokens > self._short_tokens)
        if self._grouping is not None:
            wait.group = self._grouping.group(request)
            self._grouping.joined(request)
        self._set_key(request, self._policy.key(request, now), is_new=True)
        self._offer(request)

    def dequeue(self, request: Request) -> None:
        """Remove a request that was admitted or ended."""
        if self._deferred.pop(request.serial, None) is None:
            self._withdraw(request)
        index = self._order[request.wait.group]
        index.remove(request.wait.key, request.serial)
        if not index:
            del self._order[request.wait.group]
        if self._grouping is not None:
            self._grouping.left(request)

    def defer(self, request: Request) -> None:
        """Stop offering a request until ``requeue``; it keeps its place in the order."""
        self._withdraw(request)
        self._deferred[request.serial] = request

    def requeue(self, request: Request) -> None:
        """Offer a request again that was deferred; one that left meanwhile stays away."""
        if self._deferred.pop(request.serial, None) is not None:
            self._offer(request)

    def rekey(self, now: float) -> None:
        """Ask for all keys anew."""
        for request in list(self):
            is_offered = self.is_offered(request)
            if is_offered:
                self._withdraw(request)
            self._set_key(request, self._policy.key(request, now))
            if is_offered:
                self._offer(request)

    def first(
        self, now: float, *, closed_buckets: frozenset[int] | set[int] = frozenset(), short_only: bool = False
    ) -> Request | None:
        """Return the first request in the order, leaving out whole buckets."""
        best: Request | None = None
        for index, bucket in enumerate(self._buckets[: self._num_short_buckets] if short_only else self._buckets):
            if index in closed_buckets:
                continue
            head = self._settled_head(bucket, now)
            if head is not None and (best is None or self.rank(head) < self.rank(best)):
                best = head
        return best

    def _settled_head(self, bucket: _SizeBucket, now: float) -> Request | None:
        """Return the bucket's head, once those that lost their place have gone back."""
        head = bucket.first()
        if self._rekeying is None:
            return head
        while head is not None and (key := self._rekeying.key_at_head(head, now)) > head.wait.key:
            bucket.discard(head)
            self._set_key(head, key)
            bucket.push(head)
            head = bucket.first()
        return head

    def _set_key(self, request: Request, key: Key, *, is_new: bool = False) -> None:
        index = self._order.setdefault(request.wait.group, OrderIndex())
        if not is_new:
            index.remove(request.wait.key, request.serial)
        request.wait.key = key
        index.add(key, request.serial)

    def _offer(self, request: Request) -> None:
        while len(self._buckets) <= request.wait.bucket:
            self._buckets.append(_SizeBucket(self._grouping))
        self._buckets[request.wait.bucket].push(request)
        self._num_offered += 1

    def _withdraw(self, request: Request) -> None:
        self._buckets[request.wait.bucket].discard(request)
        self._num_offered -= 1


def _size_class(num_tokens: int) -> int:
    return (max(0, num_tokens - 1) // BUCKET_TOKENS).bit_length()
