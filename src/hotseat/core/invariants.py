"""Invariants between the scheduler's books, for tests and for after a failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hotseat.core.block_pool import BlockPool
from hotseat.core.prefix import PrefixCache
from hotseat.core.request import Request, RequestId, RequestStatus
from hotseat.core.running import RunningSet
from hotseat.core.waiting import WaitingQueue

__all__ = ["check_invariants"]


def check_invariants(
    requests: Mapping[RequestId, Request],
    waiting: WaitingQueue,
    running: RunningSet,
    pool: BlockPool,
    cache: PrefixCache,
) -> None:
    """Assert that requests, queue, seats, blocks and index agree."""
    pool.check_invariants()
    cache.check_invariants(running)
    _check_places(requests, waiting, running)
    _check_seats(running)
    tables = [table for one in running.requests.values() for table in (one.blocks, one.window_blocks)]
    held = Counter(block.id for table in tables for block in table)
    for block in pool.blocks:
        assert block.num_refs == held[block.id], f"{block!r} is in {held[block.id]} tables"
    running.windows.check_invariants(list(running.requests.values()))
    for request in running.requests.values():
        _check_running(request, running)


def _check_places(requests: Mapping[RequestId, Request], waiting: WaitingQueue, running: RunningSet) -> None:
    in_queue = [request.id for request in waiting]
    assert len(in_queue) == len(set(in_queue)) == len(waiting), "the queue does not know how many wait"
    assert set(in_queue) | running.requests.keys() == requests.keys(), (
        "a request is nowhere, or forgotten and somewhere"
    )
    in_order = sorted(waiting, key=waiting.rank)
    for num_ahead, request in enumerate(in_order):
        assert waiting.num_ahead(request) == num_ahead, f"{request.id} has {num_ahead} ahead, the index differs"
        assert request.status is RequestStatus.WAITING, f"{request.id} is in the queue and {request.status.value}"
        assert request.num_computed_tokens == 0, f"{request.id} waits and has computed tokens"
        assert request.seat is None, f"{request.id} waits in a seat"
        assert not request.blocks, f"{request.id} waits with blocks"
        assert not request.window_blocks, f"{request.id} waits with window blocks"
        assert not request.num_promised_blocks, f"{request.id} waits with a promise of blocks"


def _check_seats(running: RunningSet) -> None:
    seats = [request.seat for request in running.requests.values()]
    assert len(seats) == len(set(seats)), "two requests share a seat"
    assert running.decoding.keys().isdisjoint(running.prefilling), "a request decodes and prefills"
    assert running.decoding.keys() | running.prefilling.keys() == running.requests.keys(), (
        "a running request does neither"
    )
    assert running.num_long == sum(request.is_long for request in running.prefilling.values()), (
        "long ones are miscounted"
    )


def _check_running(request: Request, running: RunningSet) -> None:
    assert request.status is RequestStatus.RUNNING, f"{request.id} has a seat and is {request.status.value}"
    ids = [block.id for block in request.blocks + request.window_blocks]
    assert len(ids) == len(set(ids)), f"{request.id} holds a block twice"
    lacks = request.num_tokens - request.num_computed_tokens
    assert lacks > 0, f"{request.id} has computed tokens that do not exist"
    assert request.num_computed_tokens <= request.capacity, f"{request.id} has computed more than its blocks hold"
    if request.id in running.decoding:
        assert lacks == 1, f"{request.id} decodes and lacks {lacks} tokens"
        is_full = request.num_computed_tokens == request.capacity
        assert not is_full or request in running.full, f"{request.id} is full and not listed to get a block"
    else:
        num_lacking = max(0, -(-request.num_tokens // running.block_size) - len(request.blocks))
        assert not num_lacking, f"{request.id} was admitted without all of its blocks"
