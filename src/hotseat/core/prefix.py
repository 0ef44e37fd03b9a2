"""Prefix caching: which blocks a request can reuse, and which are being computed by another one.

    block table of a request      [0, 16)   [16, 32)   [32, 48)   [48, 64)   [64, 71)
                                   hit       hit        in flight  in flight  not full
                                   └─ shared, read only └─ computed by this request, its own until freed

    hits        in the pool's index, from the first block on: referenced, never written
    in flight   full blocks that this request is going to compute; a second request with the same prefix waits for
                them (this request is their *owner*) instead of computing them again
    not full    the tail; no key names it, so it is shared by no other request

Layers with a window have their own index, by the same nodes. A hit of n tokens needs the blocks [0, n) of the layers
that see everything, and of the others only what the query at n sees; a match is cut to the longest n that has both.

A block enters the index when it *has been computed*, in ``index_computed``, never when it is planned: a step that fails
leaves nothing valid-looking behind. Whoever holds a reference frees it: ``BlockPool.free`` of the whole table.
"""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from hotseat.core.block_pool import Block, BlockKey, BlockPool, PrefixNode
from hotseat.core.config import SchedulerConfig
from hotseat.core.request import Request
from hotseat.core.running import RunningSet
from hotseat.core.window_blocks import WindowBlocks

__all__ = ["Match", "PrefixCache"]


class Match(NamedTuple):
    """The part of a request's sequence that is cached or in flight."""

    blocks: list[Block]  # hits, from the first block on
    window_blocks: list[Block]  # of the layers with a window: the last ones before the end of these hits
    owner: Request | None = None  # computes the block after them
    num_awaited: int = 0  # tokens that the owner must have computed before all that it shares is there


class PrefixCache:
    """Match requests against the pool's index and keep the index up to date."""

    def __init__(self, pool: BlockPool, windows: WindowBlocks, config: SchedulerConfig) -> None:
        self._pool = pool
        self._windows = windows
        self._block_size = config.block_size
        self._is_enabled = config.enable_prefix_caching
        self._ids = count()
        self._in_flight: dict[BlockKey, tuple[PrefixNode, Request]] = {}

    def match(self, request: Request) -> Match:
        """Return the blocks that hold the beginning of ``request``, and the owner of what comes after them."""
        if not self._is_enabled or request.collected_logprobs is not None or request.pooling == "mean":
            return Match([], [])  # prompt log-probabilities and a mean need every row to be computed
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
        window_blocks: list[Block] = []
        if self._windows.size:
            blocks, window_blocks = self._match_windows(request, blocks)
        return Match(blocks, window_blocks, owner, num_shared * self._block_size)

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
            if self._windows.size:
                self._pool.record(request.window_blocks[index - request.first_window_block], _window_node(node))
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

    def _match_windows(self, request: Request, hits: list[Block]) -> tuple[list[Block], list[Block]]:
        """Cut ``hits`` where the layers with a window have all that the next query sees; return both groups' hits."""
        found: list[Block | None] = []
        num_hits = num_in_row = 0
        for block in hits:
            assert block.node is not None, f"{block!r} was found without a node"
            found.append(self._pool.find(_window_node(block.node).key))
            num_in_row = 0 if found[-1] is None else num_in_row + 1
            if len(found) - num_in_row <= self._first_seen(request, len(found)):
                num_hits = len(found)
        first = self._first_seen(request, num_hits)
        return hits[:num_hits], [block for block in found[first:num_hits] if block is not None]

    def _first_seen(self, request: Request, num_hits: int) -> int:
        # A full hit computes its last token all the same: its logits are needed.
        return self._windows.first_seen(min(num_hits * self._block_size, request.num_tokens - 1))

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


def _window_node(node: PrefixNode) -> PrefixNode:
    """Return the name of a block of the layers with a window: its key has no tokens, so it is no other node's."""
    return PrefixNode((node.id, ()), node.id)
