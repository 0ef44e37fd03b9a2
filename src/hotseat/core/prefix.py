"""Prefix caching: which blocks a request can reuse, and which are being computed by another one.

    block table of a request      [0, 16)   [16, 32)   [32, 48)   [48, 64)   [64, 71)
                                   hit       hit        in flight  in flight  not full
                                   └─ shared, read only └─ computed by this request, its own until freed

    hits        in the pool's index, from the first block on: referenced, never written
    in flight   full blocks that this request is going to compute; a second request with the same prefix waits for
                them (this request is their *owner*) instead of computing them again
    not full    the tail; no key names it, so it is shared by no other request

A block enters the index when it *has been computed*, in ``index_computed``, never when it is planned: a step that fails
leaves nothing valid-looking behind. Whoever holds a reference frees it: ``BlockPool.free`` of the whole table.
"""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from hotseat.core.block_pool import Block, BlockKey, BlockPool, PrefixNode
from hotseat.core.request import Request
from hotseat.core.running import RunningSet

__all__ = ["Match", "PrefixCache"]


class Match(NamedTuple):
    """The part of a request's sequence that is cached or in flight."""

    blocks: list[Block]  # hits, from the first block on
    owner: Request | None = None  # computes the block after them
    num_awaited: int = 0  # tokens that the owner must have computed before all that it shares is there


class PrefixCache:
    """Match requests against the pool's index and keep the index up to date."""

    def __init__(self, pool: BlockPool, block_size: int, *, is_enabled: bool) -> None:
        self._pool = pool
        self._block_size = block_size
        self._is_enabled = is_enabled
        self._ids = count()
        self._in_flight: dict[BlockKey, tuple[PrefixNode, Request]] = {}

    def match(self, request: Request) -> Match:
        """Return the blocks that hold the beginning of ``request``, and the owner of what comes after them."""
        if not self._is_enabled or request.collected_logprobs is not None or request.pooling == "mean":
            return Match([])  # prompt log-probabilities and a mean need every row to be computed
        blocks: list[Block] = []
        parent: int | str = request.cache_salt
        slices = self._slices(request, request.num_tokens)
        for tokens in slices:
            block = self._pool.find((parent, tokens))
            if block is None:
                break
            blocks.append(block)
            assert block.node is not None, f"{block!r} was found without a node"
            parent = block.node.id
        owner, num_shared = self._match_in_flight(slices, len(blocks), parent)
        return Match(blocks, owner, num_shared * self._block_size)

    def register(self, request: Request, hits: list[Block]) -> None:
        """Note that ``request``, which was given ``hits``, is going to compute the rest of its full blocks."""
        if not self._is_enabled:
            return
        nodes = request.nodes = [block.node for block in hits if block.node is not None]
        assert len(nodes) == len(hits), f"{request.id} was given a block that is not indexed"
        for tokens in self._slices(request, request.num_tokens)[len(hits) :]:
            key = (self._parent(request), tokens)
            node = self._known(key)
            if node is None:
                node = PrefixNode(key, next(self._ids))
                self._in_flight[key] = (node, request)
            nodes.append(node)

    def index_computed(self, request: Request, start: int) -> list[Request]:
        """Index the blocks that were filled since ``start`` tokens were computed; return those who waited for them."""
        if not self._is_enabled:
            return []
        end = request.num_computed_tokens
        first = max(start, request.num_shared_tokens) // self._block_size
        for index in range(first, end // self._block_size):
            node = self._node(request, index)
            self._pool.record(request.blocks[index], node)
            self._unregister(node, request)
        return self._served(request, end) if request.waiters else []

    def release(self, request: Request) -> list[Request]:
        """Withdraw what a request that loses its seat was going to compute; return those who waited for it."""
        for node in request.nodes[request.num_computed_tokens // self._block_size :]:
            self._unregister(node, request)
        request.nodes = []
        return [waiter for _, waiter in request.waiters.values()]

    def check_invariants(self, running: RunningSet) -> None:
        """Assert that only running requests have blocks in flight, and only such as they have not computed."""
        open_ids = {
            request.id: {node.id for node in request.nodes[request.num_computed_tokens // self._block_size :]}
            for request in running.requests.values()
        }
        for node, request in self._in_flight.values():
            assert running.requests.get(request.id) is request, f"{request.id} has a block in flight and no seat"
            assert node.id in open_ids[request.id], f"{request.id} has computed a block that is in flight"

    def _match_in_flight(
        self, slices: list[tuple[int, ...]], num_hits: int, parent: int | str
    ) -> tuple[Request | None, int]:
        """Return the owner of the block after the hits, and how many blocks will be there with all that is shared."""
        owner: Request | None = None
        num_shared = num_hits
        while num_shared < len(slices):
            in_flight = self._in_flight.get((parent, slices[num_shared]))
            if in_flight is None or owner not in (None, in_flight[1]):
                break
            parent, owner = in_flight[0].id, in_flight[1]
            num_shared += 1
        return owner, num_shared

    def _slices(self, request: Request, num_tokens: int) -> list[tuple[int, ...]]:
        """Return the first ``num_tokens`` tokens cut into full blocks; cut once and kept."""
        size, slices = self._block_size, request.slices
        if len(slices) < num_tokens // size:
            tokens = request.token_ids()
            slices.extend(tuple(tokens[i : i + size]) for i in range(len(slices) * size, num_tokens - size + 1, size))
        return slices

    def _node(self, request: Request, index: int) -> PrefixNode:
        nodes = request.nodes
        while len(nodes) <= index:  # output filled a block
            key = (self._parent(request), self._next_slice(request, len(nodes)))
            nodes.append(self._known(key) or PrefixNode(key, next(self._ids)))
        return nodes[index]

    def _next_slice(self, request: Request, index: int) -> tuple[int, ...]:
        assert index == len(request.slices), f"{request.id} has slices of blocks that are not full"
        start = index * self._block_size - request.num_prompt_tokens
        if start >= 0:  # all of it is output: the common case must not copy the whole sequence
            request.slices.append(tuple(request.output_token_ids[start : start + self._block_size]))
            return request.slices[index]
        return self._slices(request, (index + 1) * self._block_size)[index]

    def _parent(self, request: Request) -> int | str:
        return request.nodes[-1].id if request.nodes else request.cache_salt

    def _known(self, key: BlockKey) -> PrefixNode | None:
        block = self._pool.find(key)
        if block is not None:
            return block.node
        in_flight = self._in_flight.get(key)
        return in_flight[0] if in_flight else None

    def _unregister(self, node: PrefixNode, request: Request) -> None:
        in_flight = self._in_flight.get(node.key)
        if in_flight is not None and in_flight[1] is request:
            del self._in_flight[node.key]

    def _served(self, owner: Request, num_computed: int) -> list[Request]:
        return [waiter for num_awaited, waiter in owner.waiters.values() if num_awaited <= num_computed]
