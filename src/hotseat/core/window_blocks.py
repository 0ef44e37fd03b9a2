"""The block tables of the layers with a window: blocks behind the window go back to the pool.

Theory of operation
-------------------
A table holds the logical blocks from ``first_window_block`` to its end: those that the next query of the request sees,
and those of the chunk that is computed. Blocks are taken when a chunk or a decode needs them, never for the whole
prompt at once. Before that the ones that no later query sees are dropped; if they are indexed they can still be hit.

*A promise instead of an allocation.* An admission promises a request as many blocks as it will hold at most, its hits
included. While nobody exceeds its promise

    used  ≤  sum of what each request holds  ≤  num_promised

so what is promised and not used yet, ``num_reserved``, is kept free by admissions, and a request that goes on never
lacks a block: also where two shared a hit, each promise counts it, as both need another one behind it. Only the growth
of the other group may take from it (never with ``no-evict``); then blocks run out, and that preempts, as ever.
"""

from __future__ import annotations

from hotseat.core.block_pool import Block, BlockPool
from hotseat.core.config import SchedulerConfig
from hotseat.core.request import Request

__all__ = ["WindowBlocks"]


class WindowBlocks:
    """Gives requests blocks of the second group of layers, and takes back what is behind the window."""

    def __init__(self, pool: BlockPool, config: SchedulerConfig) -> None:
        layout = config.kv_layout
        self.size = layout.num_window  # pool blocks in a logical one; 0: no layer has a window
        self._pool = pool
        self._layout = layout
        self._block_size = config.block_size
        self._most = layout.most_held(config.max_chunk_tokens, config.block_size) if self.size else 0
        self._most_decoding = layout.most_held(1, config.block_size) if self.size else 0
        self._num_promised = 0  # in pool blocks, as all counts here
        self._num_used = 0

    @property
    def num_reserved(self) -> int:
        """Return how many free blocks are promised to running requests."""
        return self._num_promised - self._num_used

    def first_seen(self, position: int) -> int:
        """Return the index of the first logical block that queries from ``position`` on see."""
        return self._layout.first_seen(position, self._block_size)

    def promise(self, num_blocks: int, position: int) -> int:
        """Return how many pool blocks a table of ``num_blocks`` logical ones holds at most from ``position`` on."""
        return min(num_blocks - self.first_seen(position), self._most) * self.size

    def admit(self, request: Request, hits: list[Block], num_blocks: int) -> None:
        """Give ``request`` its ``hits`` and promise it what a table of ``num_blocks`` needs."""
        self._num_used += self.size * sum(block.num_refs == 0 for block in hits)
        self._pool.touch(hits)
        request.window_blocks = hits
        request.first_window_block = self.first_seen(request.num_computed_tokens)
        self._promise(request, self.promise(num_blocks, request.num_computed_tokens))

    def capacity(self, request: Request) -> int:
        """Return how many tokens fit up to the end of the table."""
        return (request.first_window_block + len(request.window_blocks)) * self._block_size

    def extend(self, request: Request, end: int) -> list[Block]:
        """Append what tokens up to ``end`` need, as far as blocks are free; return the new blocks."""
        self.drop_behind(request)
        lacks = -(-(end - self.capacity(request)) // self._block_size)
        count = min(lacks, self._pool.num_free // self.size)
        if count <= 0:
            return []
        blocks = self._pool.allocate(count, self.size)
        assert blocks is not None, f"{count * self.size} blocks were counted free and are not"
        self._num_used += count * self.size
        request.window_blocks += blocks
        self._promise(request, max(request.num_promised_blocks, len(request.window_blocks) * self.size))
        return blocks

    def drop_behind(self, request: Request) -> None:
        """Give back the blocks that no later query of ``request`` sees."""
        first = self.first_seen(request.num_computed_tokens)
        if count := first - request.first_window_block:
            dropped = request.window_blocks[:count]
            del request.window_blocks[:count]
            request.first_window_block = first
            self._free(dropped)

    def start_decoding(self, request: Request) -> None:
        """Take back what was promised for the chunks of a prefill that is complete."""
        self.drop_behind(request)
        self._promise(request, min(request.num_promised_blocks, self._most_decoding * self.size))

    def release(self, request: Request) -> None:
        """Take all blocks and the promise from ``request``."""
        self._free(request.window_blocks)
        self._promise(request, 0)
        request.window_blocks = []
        request.first_window_block = 0

    def check_invariants(self, running: list[Request]) -> None:
        """Assert that nobody exceeds its promise and that the sums agree."""
        used = {block.id: block for request in running for block in request.window_blocks}
        assert self._num_used == sum(block.size for block in used.values()), "used window blocks are miscounted"
        assert self._num_promised == sum(request.num_promised_blocks for request in running), "promises are miscounted"
        for request in running:
            num_held = len(request.window_blocks) * self.size
            assert num_held <= request.num_promised_blocks, f"{request.id} holds more window blocks than promised"
            first = self.first_seen(request.num_computed_tokens)
            assert request.first_window_block <= first, f"{request.id} has dropped a block that it sees"

    def _promise(self, request: Request, num_blocks: int) -> None:
        self._num_promised += num_blocks - request.num_promised_blocks
        request.num_promised_blocks = num_blocks

    def _free(self, blocks: list[Block]) -> None:
        self._num_used -= self.size * sum(block.num_refs == 1 for block in blocks)
        self._pool.free(blocks)
