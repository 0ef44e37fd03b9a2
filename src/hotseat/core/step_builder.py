"""The batch of one step while it is being put together."""

from __future__ import annotations

from collections.abc import Iterable

from hotseat.core.batch import Batch, BlockAppend, Chunk, Draft, NewRequest
from hotseat.core.block_pool import Block
from hotseat.core.budget import PrefillTime
from hotseat.core.request import BlockReason, Request, RequestId
from hotseat.core.running import RunningSet

__all__ = ["StepBuilder"]

_new_tuple = tuple.__new__  # twice as fast as Chunk(…), and it is paid for every running request in every step


class StepBuilder:
    """The collected work of one step until its batch is closed."""

    def __init__(self, batch: Batch, running: RunningSet, now: float, chunk_cap: int, time: PrefillTime | None) -> None:
        self._running = running
        self.batch = batch
        self.now = now
        self.time = time  # for prefills, beside the budget of tokens
        self.chunk_cap = chunk_cap  # tokens of one prompt in this step
        self.left = batch.budget  # tokens
        self.block_reason: BlockReason | None = None  # why no other request is admitted in this step
        self.block_appends: dict[RequestId, BlockAppend] = {}
        self.victims: list[Request] = []  # preempted in this step
        self.served: set[RequestId] = set()  # prefills that had their turn
        self.skipped: list[Request] = []  # waiting ones that do not fit, not offered again in this step
        self.closed_buckets: set[int] = set()  # size buckets of which enough did not fit
        self.num_prefix_looks = 0  # requests deferred in this step because their prefix is being computed

    def decode(self, requests: Iterable[Request]) -> None:
        """Give each of ``requests`` its one token."""
        self.batch.chunks = chunks = [
            _new_tuple(Chunk, (request.seat, request.id, (start := request.num_computed_tokens), start + 1, True, True))
            for request in requests
        ]
        self.batch.num_decodes = len(chunks)
        self.left -= len(chunks)

    def add_request(self, request: Request) -> None:
        """Describe a request that was admitted to the runner."""
        assert request.seat is not None, f"{request.id} was admitted without a seat"
        self.batch.admitted_ids.append(request.id)
        self.batch.new_requests.append(
            NewRequest(
                seat=request.seat,
                request_id=request.id,
                token_ids=request.token_ids(),
                num_prompt_tokens=request.num_prompt_tokens,
                block_ids=block_ids(request.blocks),
                window_block_ids=block_ids(request.window_blocks),
                first_window_block=request.first_window_block,
                params=request.params,
                seed=request.seed,
                eos_token_ids=request.eos_token_ids,
                pooling=request.pooling,
            )
        )

    def append_blocks(self, request: Request, blocks: list[Block], window_blocks: list[Block]) -> None:
        """Tell the runner of new blocks of a request that has its seat already."""
        assert request.seat is not None, f"{request.id} grows without a seat"
        before = self.block_appends.get(request.id, BlockAppend(request.seat, []))
        self.block_appends[request.id] = BlockAppend(
            request.seat,
            before.block_ids + block_ids(blocks),
            [*before.window_block_ids, *block_ids(window_blocks)],
        )

    def draft(self, index: int, token_ids: list[int]) -> None:
        """Let the decode at ``index`` of the chunks verify ``token_ids``."""
        seat, request_id, start, *_ = self.batch.chunks[index]
        self.batch.chunks[index] = Chunk(seat, request_id, start, start + 1 + len(token_ids), samples=True)
        self.batch.drafts.append(Draft(seat, request_id, token_ids))
        self.left -= len(token_ids)

    def skip(self, request: Request, lookahead: int) -> None:
        """Note that a waiting request does not fit; after ``lookahead`` of its size bucket the bucket is closed."""
        self.skipped.append(request)
        if sum(other.wait.bucket == request.wait.bucket for other in self.skipped) >= lookahead:
            self.closed_buckets.add(request.wait.bucket)

    def reason_of_no_chunk(self, request: Request) -> str:
        """Return why ``request``, which runs, computes nothing in this step."""
        lacks_blocks = self.left > 0 and request.num_computed_tokens == request.capacity
        reason = BlockReason.BLOCKS if lacks_blocks else BlockReason.BUDGET
        return str(reason.value)

    def prefill(self, request: Request, limit: int) -> int:
        """Give ``request`` the next chunk of its prompt, at most ``limit`` tokens; return how many it was."""
        assert request.seat is not None, f"{request.id} computes without a seat"
        start, total = request.num_computed_tokens, request.num_seated_tokens
        size = min(total - start, limit, self.left, self.chunk_cap)
        if start + size > request.capacity:
            if blocks := self._running.extend(request, start + size):
                self.append_blocks(request, [], blocks)
            size = min(size, request.capacity - start)
        wanted = size
        if size > 0 and self.time is not None:
            size = self.time.take(start, size)
        if size > 0:
            end = start + size
            writes_kv = end > request.num_shared_tokens
            self.batch.chunks.append(Chunk(request.seat, request.id, start, end, end == total, writes_kv))
            self.batch.prefill_totals.append(total)
            self.served.add(request.id)
            self.left -= size
        if size < wanted:  # the time is up, and what is left of the budget goes with it
            self.batch.budget -= self.left
            self.left = 0
        return max(0, size)


def block_ids(blocks: list[Block]) -> list[int]:
    """Return the ids of all pool blocks that ``blocks`` are."""
    return [block_id for block in blocks for block_id in block.ids]
