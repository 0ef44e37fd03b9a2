"""The running requests: seats, block tables, prefill and decode."""

from __future__ import annotations

import heapq
from typing import NamedTuple

from hotseat.core.block_pool import Block, BlockPool
from hotseat.core.config import SchedulerConfig
from hotseat.core.request import Request, RequestId, RequestStatus
from hotseat.core.window_blocks import WindowBlocks

__all__ = ["Growth", "RunningSet"]


class Growth(NamedTuple):
    """Blocks that were appended to the tables of a request."""

    blocks: list[Block]
    window_blocks: list[Block]


class RunningSet:
    """The running requests, split by what they lack.

    ``decoding`` lack exactly one token, which is their newest. ``prefilling`` lack tokens that were known when they
    took their seat. A request moves from the second to the first once, when its last chunk was computed.
    """

    def __init__(self, pool: BlockPool, config: SchedulerConfig) -> None:
        self.requests: dict[RequestId, Request] = {}  # in order of admission
        self.decoding: dict[RequestId, Request] = {}
        self.prefilling: dict[RequestId, Request] = {}
        self.num_long = 0  # of the prefilling
        self.full: list[Request] = []  # those whose blocks are full: the only ones to be touched for blocks
        self.windows = WindowBlocks(pool, config)
        self._pool = pool
        self.block_size = config.block_size
        self._num_full = config.kv_layout.num_full  # pool blocks in a logical one
        self._free_seats = list(range(config.max_num_seqs))  # a heap: low seats are taken first

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def num_free_seats(self) -> int:
        return len(self._free_seats)

    def admit(self, request: Request, hits: list[Block], window_hits: list[Block], count: int) -> None:
        """Give ``request`` a seat and a table of its ``hits`` and ``count`` blocks more; there must be enough."""
        self._pool.touch(hits)  # first, so that allocate cannot evict one of them
        request.num_computed_tokens = min(len(hits) * self.block_size, request.num_tokens - 1)
        if self.windows.size:
            self.windows.admit(request, window_hits, len(hits) + count)
        blocks = self._pool.allocate(count, self._num_full)
        assert blocks is not None, f"{request.id} was admitted without {count} free blocks"
        request.move_to(RequestStatus.RUNNING)
        request.seat = heapq.heappop(self._free_seats)
        request.blocks = hits + blocks
        request.capacity = self._capacity(request)
        request.num_seated_tokens = request.num_tokens
        request.num_shared_tokens = len(hits) * self.block_size
        self.requests[request.id] = self.prefilling[request.id] = request
        if request.num_computed_tokens == request.capacity:
            self.full.append(request)

    def mark_long(self, request: Request) -> None:
        """Note that the prefill of ``request`` is longer than a step."""
        request.is_long = True
        self.num_long += 1

    def start_decoding(self, request: Request) -> None:
        """Note that the prefill of ``request`` is complete."""
        self._drop_prefill(request)
        self.decoding[request.id] = request
        if self.windows.size:
            self.windows.start_decoding(request)

    def num_lacking(self, request: Request) -> int:
        """Return how many blocks the next token of ``request`` needs."""
        at = request.num_computed_tokens
        num_blocks = self._num_full if len(request.blocks) * self.block_size == at else 0
        if self.windows.size and self.windows.capacity(request) == at:
            num_blocks += self.windows.size
        return num_blocks

    def grow(self, request: Request) -> Growth | None:
        """Append a block to each table that is full, or to none and return ``None`` when too few are free."""
        if self.windows.size:
            self.windows.drop_behind(request)
        if self.num_lacking(request) > self._pool.num_free:
            return None
        is_full = len(request.blocks) * self.block_size == request.num_computed_tokens
        blocks = self._pool.allocate(int(is_full), self._num_full)
        assert blocks is not None, f"a block for {request.id} was counted free and is not"
        request.blocks += blocks
        window_blocks = self.windows.extend(request, request.num_computed_tokens + 1) if self.windows.size else []
        request.capacity = self._capacity(request)
        return Growth(blocks, window_blocks)

    def grow_ahead(self, request: Request, num_spare: int) -> Growth | None:
        """Append a block to each table that ends at the capacity, for drafts; ``None`` when that takes too many."""
        end = request.capacity
        needs_full = len(request.blocks) * self.block_size == end
        needs_windows = self.windows.size > 0 and self.windows.capacity(request) == end
        if needs_full * self._num_full + needs_windows * self.windows.size > num_spare:
            return None
        blocks = self._pool.allocate(int(needs_full), self._num_full)
        assert blocks is not None, f"{num_spare} blocks were counted spare and are not"
        request.blocks += blocks
        window_blocks = self.windows.extend(request, end + 1) if needs_windows else []
        request.capacity = self._capacity(request)
        return Growth(blocks, window_blocks)

    def extend(self, request: Request, end: int) -> list[Block]:
        """Append window blocks for tokens up to ``end``, as far as blocks are free; return the new ones."""
        blocks = self.windows.extend(request, end)
        request.capacity = self._capacity(request)
        return blocks

    def release(self, request: Request, status: RequestStatus) -> None:
        """Take seat and blocks from ``request``, at once."""
        assert request.seat is not None, f"{request.id} is released without a seat"
        request.move_to(status)
        del self.requests[request.id]
        if self.decoding.pop(request.id, None) is None:
            self._drop_prefill(request)
        heapq.heappush(self._free_seats, request.seat)
        self._pool.free(request.blocks)
        if self.windows.size:
            self.windows.release(request)
        request.seat = None
        request.blocks = []
        request.capacity = 0

    def _capacity(self, request: Request) -> int:
        capacity = len(request.blocks) * self.block_size
        return min(capacity, self.windows.capacity(request)) if self.windows.size else capacity

    def _drop_prefill(self, request: Request) -> None:
        del self.prefilling[request.id]
        if request.is_long:
            request.is_long = False
            self.num_long -= 1
