"""The running requests: seats, block tables, prefill and decode."""

from __future__ import annotations

import heapq

from hotseat.core.block_pool import Block, BlockPool
from hotseat.core.request import Request, RequestId, RequestStatus

__all__ = ["RunningSet"]


class RunningSet:
    """The running requests, split by what they lack.

    ``decoding`` lack exactly one token, which is their newest. ``prefilling`` lack tokens that were known when they
    took their seat. A request moves from the second to the first once, when its last chunk was computed.
    """

    def __init__(self, num_seats: int, pool: BlockPool, block_size: int) -> None:
        self.requests: dict[RequestId, Request] = {}  # in order of admission
        self.decoding: dict[RequestId, Request] = {}
        self.prefilling: dict[RequestId, Request] = {}
        self.num_long = 0  # of the prefilling
        self.full: list[Request] = []  # decoding ones whose blocks are full: the only ones to be touched for blocks
        self._pool = pool
        self._block_size = block_size
        self._free_seats = list(range(num_seats))  # a heap: low seats are taken first

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def num_free_seats(self) -> int:
        return len(self._free_seats)

    def admit(self, request: Request, hits: list[Block], count: int) -> None:
        """Give ``request`` a seat and a table of its ``hits`` and ``count`` blocks more; there must be enough."""
        self._pool.touch(hits)  # first, so that allocate cannot evict one of them
        blocks = self._pool.allocate(count)
        assert blocks is not None, f"{request.id} was admitted without {count} free blocks"
        request.move_to(RequestStatus.RUNNING)
        request.seat = heapq.heappop(self._free_seats)
        request.blocks = hits + blocks
        request.capacity = len(request.blocks) * self._block_size
        request.num_seated_tokens = request.num_tokens
        request.num_shared_tokens = len(hits) * self._block_size
        # A full hit computes its last token all the same: its logits are needed.
        request.num_computed_tokens = min(request.num_shared_tokens, request.num_seated_tokens - 1)
        self.requests[request.id] = self.prefilling[request.id] = request

    def mark_long(self, request: Request) -> None:
        """Note that the prefill of ``request`` is longer than a step."""
        request.is_long = True
        self.num_long += 1

    def start_decoding(self, request: Request) -> None:
        """Note that the prefill of ``request`` is complete."""
        self._drop_prefill(request)
        self.decoding[request.id] = request

    def grow(self, request: Request) -> Block | None:
        """Append one block to a table, or return ``None`` when no block is free."""
        blocks = self._pool.allocate(1)
        if blocks is None:
            return None
        request.blocks.append(blocks[0])
        request.capacity += self._block_size
        return blocks[0]

    def release(self, request: Request, status: RequestStatus) -> None:
        """Take seat and blocks from ``request``, at once."""
        assert request.seat is not None, f"{request.id} is released without a seat"
        request.move_to(status)
        del self.requests[request.id]
        if self.decoding.pop(request.id, None) is None:
            self._drop_prefill(request)
        heapq.heappush(self._free_seats, request.seat)
        self._pool.free(request.blocks)
        request.seat = None
        request.blocks = []
        request.capacity = 0

    def _drop_prefill(self, request: Request) -> None:
        del self.prefilling[request.id]
        if request.is_long:
            request.is_long = False
            self.num_long -= 1
