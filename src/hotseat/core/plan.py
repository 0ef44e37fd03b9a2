"""One step in the making."""

from __future__ import annotations

from collections.abc import Iterable

from hotseat.core.batch import Batch, Chunk, NewBlocks, Seating
from hotseat.core.budget import PrefillTime
from hotseat.core.request import Request, RequestId

__all__ = ["Plan"]

_new_tuple = tuple.__new__  # twice as fast as Chunk(…), and it is paid for every running request in every step


class Plan:
    """What ``schedule`` collects until the batch is closed."""

    __slots__ = (
        *("aside", "batch", "chunk_cap", "closed_lanes", "grown", "held_up", "left", "now"),
        *("served", "time", "victims"),
    )

    def __init__(self, batch: Batch, now: float, chunk_cap: int, time: PrefillTime | None) -> None:
        self.batch = batch
        self.now = now
        self.time = time  # for prefills, beside the budget of tokens
        self.chunk_cap = chunk_cap  # tokens of one prompt in this step
        self.left = batch.budget  # tokens
        self.held_up = ""  # why nobody else is admitted in this step
        self.grown: dict[RequestId, NewBlocks] = {}
        self.victims: list[Request] = []  # preempted in this step
        self.served: set[RequestId] = set()  # prefills that had their turn
        self.aside: list[Request] = []  # waiting ones that do not fit, not offered again in this step
        self.closed_lanes: set[int] = set()  # lanes of which enough did not fit

    def decode(self, requests: Iterable[Request]) -> None:
        """Give each of ``requests`` its one token."""
        self.batch.chunks = chunks = [
            _new_tuple(Chunk, (request.seat, request.id, (start := request.num_computed_tokens), start + 1, True, True))
            for request in requests
        ]
        self.batch.num_decodes = len(chunks)
        self.left -= len(chunks)

    def seat(self, request: Request) -> None:
        """Tell the runner all about a request that took a seat."""
        assert request.seat is not None, f"{request.id} was seated without a seat"
        self.batch.admitted_ids.append(request.id)
        self.batch.seated.append(
            Seating(
                seat=request.seat,
                request_id=request.id,
                token_ids=request.token_ids(),
                num_prompt_tokens=request.num_prompt_tokens,
                block_ids=[block.id for block in request.blocks],
                params=request.params,
                seed=request.seed,
                eos_token_ids=request.eos_token_ids,
            )
        )

    def grow(self, request: Request, block_id: int) -> None:
        """Tell the runner of a new block of a request that sits already."""
        assert request.seat is not None, f"{request.id} grows without a seat"
        self.grown[request.id] = NewBlocks(request.seat, [block_id])

    def set_aside(self, request: Request, lookahead: int) -> None:
        """Note that a waiting request does not fit; after ``lookahead`` of its length that length is closed."""
        self.aside.append(request)
        if sum(other.wait.lane == request.wait.lane for other in self.aside) >= lookahead:
            self.closed_lanes.add(request.wait.lane)

    def prefill(self, request: Request, limit: int) -> int:
        """Give ``request`` the next chunk of its prompt, at most ``limit`` tokens; return how many it was."""
        assert request.seat is not None, f"{request.id} computes without a seat"
        start, total = request.num_computed_tokens, request.num_seated_tokens
        wanted = size = min(total - start, limit, self.left, self.chunk_cap)
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
