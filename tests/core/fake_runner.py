"""A runner without a model whose tokens depend on every slot of KV cache that it should read.

The "key and value" of a position is the token there, chained to what stands in the slot before it. A sampled token is a
hash of all slots of the sequence, read through the block table. So a wrong table, a stale block, a slot that was not
written or was overwritten, or a chunk that is missing gives a wrong token, and ``expected_output`` tells. Layers with a
window keep the same values in blocks of their own; what a query sees there must be what it should be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotseat.core.batch import Batch, Chunk, SampledTokens, StepOutput, TokenLogprobs
from hotseat.core.kv_layout import KvLayout

VOCABULARY_SIZE = 1000


@dataclass
class Seat:
    """What the runner knows of the request in a seat."""

    request_id: str
    token_ids: list[int]
    block_ids: list[tuple[int, ...]]  # of each logical block
    window_ids: list[tuple[int, ...]]
    num_prompt_tokens: int
    prompt_logprobs: int | None


def sample(slots: Sequence[int]) -> int:
    """Return the token that follows a sequence with these keys and values."""
    return hash(tuple(slots)) % VOCABULARY_SIZE


def chained(before: int, token_id: int) -> int:
    """Return the key and value of a token after what is in the slot before it."""
    return hash((before, token_id))


def expected_output(prompt: Sequence[int], length: int) -> list[int]:
    """Return what a request generates when nobody else is there."""
    slots: list[int] = []
    for token_id in prompt:
        slots.append(chained(slots[-1] if slots else 0, token_id))
    output = []
    for _ in range(length):
        output.append(sample(slots))
        slots.append(chained(slots[-1], output[-1]))
    return output


class LightRunner:
    """Executes batches without a cache; for long prompts, where only the order of things matters."""

    def execute(self, batch: Batch) -> StepOutput:
        return StepOutput(sampled=[SampledTokens(chunk.request_id, [1]) for chunk in batch.chunks if chunk.samples])

    def close(self) -> None:
        """Nothing to release."""


class FakeRunner:
    """Executes batches on a simulated KV cache, and checks that they keep the contract."""

    def __init__(self, num_blocks: int, block_size: int, layout: KvLayout) -> None:
        self.block_size = block_size
        self.layout = layout
        self.storage: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self.seats: dict[int, Seat] = {}
        self.num_computed: dict[str, int] = {}  # tokens computed for each request, recomputation included
        self.fails: set[str] = set()  # ids of requests whose next sample fails

    def execute(self, batch: Batch) -> StepOutput:
        self._take_news(batch)
        drafts = {draft.seat: draft.token_ids for draft in batch.drafts}
        output = StepOutput(sampled=[])
        assert batch.num_tokens == sum(chunk.end - chunk.start for chunk in batch.chunks)
        assert len(batch.prefill_totals) == len(batch.chunks) - batch.num_decodes
        assert len({chunk.seat for chunk in batch.chunks}) == len(batch.chunks), "a seat has two chunks"
        for chunk in batch.chunks:
            self._compute(chunk, output, drafts.get(chunk.seat, []))
        return output

    def close(self) -> None:
        self.seats.clear()

    def _take_news(self, batch: Batch) -> None:
        released = set(batch.released_ids)
        assert len(released) == len(batch.released_ids), "an id is released twice"
        found = {number for number, seat in self.seats.items() if seat.request_id in released}
        assert len(found) == len(released), "an id is released that has no seat"
        for number in found:
            del self.seats[number]
        for seating in batch.new_requests:
            assert seating.seat not in self.seats, f"seat {seating.seat} is taken"
            self.seats[seating.seat] = Seat(
                request_id=seating.request_id,
                token_ids=list(seating.token_ids),
                block_ids=cut(seating.block_ids, self.layout.num_full),
                window_ids=[()] * seating.first_window_block + cut(seating.window_block_ids, self.layout.num_window),
                num_prompt_tokens=seating.num_prompt_tokens,
                prompt_logprobs=seating.params.prompt_logprobs,
            )
        for seat_number, block_ids, window_block_ids in batch.block_appends:
            self.seats[seat_number].block_ids += cut(block_ids, self.layout.num_full)
            self.seats[seat_number].window_ids += cut(window_block_ids, self.layout.num_window)

    def _compute(self, chunk: Chunk, output: StepOutput, drafts: list[int]) -> None:
        seat = self.seats[chunk.seat]
        token_ids = seat.token_ids + drafts
        assert seat.request_id == chunk.request_id
        assert 0 <= chunk.start < chunk.end <= len(token_ids), f"{chunk} of {len(token_ids)} tokens"
        assert chunk.samples == (chunk.end == len(token_ids)), f"{chunk} samples at the wrong place"
        assert not drafts or chunk.start + 1 == len(seat.token_ids), f"{chunk} has drafts and is no decode"
        self.num_computed[chunk.request_id] = self.num_computed.get(chunk.request_id, 0) + chunk.end - chunk.start
        slots = [self._read(seat, position) for position in range(chunk.start)]
        for position in range(chunk.start, chunk.end):
            value = chained(slots[-1] if slots else 0, token_ids[position])
            slots.append(value)
            for block in self._blocks_at(seat, position):
                if chunk.writes_kv:
                    block[position % self.block_size] = value
                assert block[position % self.block_size] == value, f"{chunk}: position {position} is not in the cache"
        self._check_window(seat, chunk, slots)
        if seat.prompt_logprobs is not None:
            end = min(chunk.end + 1, seat.num_prompt_tokens)
            output.prompt_logprobs[seat.request_id] = [
                TokenLogprobs(seat.token_ids[position], -1.0, 1, []) for position in range(chunk.start + 1, end)
            ]
        if not chunk.samples:
            return
        if chunk.request_id in self.fails:
            output.failed[chunk.request_id] = "logits are not finite"
            return
        sampled: list[int] = []
        for num_drafts in range(len(drafts) + 1):
            sampled.append(sample(slots[: chunk.end - len(drafts) + num_drafts]))
            if num_drafts < len(drafts) and sampled[-1] != drafts[num_drafts]:
                break
        seat.token_ids += sampled
        output.sampled.append(SampledTokens(chunk.request_id, list(sampled)))

    def _blocks_at(self, seat: Seat, position: int) -> list[list[int | None]]:
        index = position // self.block_size
        ids = seat.block_ids[index] + (seat.window_ids[index] if self.layout.num_window else ())
        assert len(ids) == self.layout.num_full + self.layout.num_window, f"{seat.request_id} has no {position}"
        return [self.storage[block_id] for block_id in ids]

    def _check_window(self, seat: Seat, chunk: Chunk, slots: Sequence[int]) -> None:
        if self.layout.num_window:
            for position in range(max(0, chunk.start - self.layout.window + 1), chunk.end):
                found = [block[position % self.block_size] for block in self._blocks_at(seat, position)]
                assert found == [slots[position]] * len(found), f"{chunk} sees something else at {position}"

    def _read(self, seat: Seat, position: int) -> int:
        block_id, *_ = seat.block_ids[position // self.block_size]
        value = self.storage[block_id][position % self.block_size]
        assert value is not None, f"{seat.request_id} reads position {position}, which was never written"
        return value


def cut(block_ids: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """Return the logical blocks of ``size`` blocks each."""
    return [tuple(block_ids[index : index + size]) for index in range(0, len(block_ids), size or 1)]
