"""A runner's state of every seat, and one batch as flat arrays.

Every array here is allocated once and never moves, so that a native step may keep the pointers; only the counts
of ``FlatBatch`` change from step to step. The ragged arrays are the exception, see ``Ragged``. The native step flattens
and commits by itself (csrc/decoder/flatten.h); ``prepare`` and ``commit`` are its definition and serve the reference.

    chunks of a batch        seat 4, tokens [7, 8)    seat 0, tokens [0, 3)     (a decode, then a prefill)
    token_ids, positions     t7                       t0 t1 t2                  one entry per row
    query_start              0                        1                 4       rows of chunk c: [c], [c + 1)
    context_lens             8                        3                         KV positions that the chunk sees
    sample_rows              0                        3                         the last row of a chunk that samples

Drafts are kept behind the end of a sequence until they are verified. All rows of their chunk sample, one after the
other in ``sample_rows``; ``sample_drafts`` says how many drafts a row takes for true.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hotseat.core.batch import Batch, Chunk, Draft, NewRequest
from hotseat.core.request import RequestId, SamplingParams
from hotseat.core.sampling_params import LogitsProcessor
from hotseat.runner.config import RunnerConfig
from hotseat.runner.ragged import Ragged

__all__ = ["SEAT_SAMPLING", "FlatBatch", "PromptSpan", "Ragged", "SeatTable"]

Int32Array: TypeAlias = NDArray[np.int32]
Float32Array: TypeAlias = NDArray[np.float32]
UInt8Array: TypeAlias = NDArray[np.uint8]
UInt32Array: TypeAlias = NDArray[np.uint32]

_UINT64_MASK = (1 << 64) - 1
_INT32_MAX = (1 << 31) - 1
# Within these a float32 logit that is divided by one factor after the other stays what it was: finite, or -inf. Zero
# and infinity would make NaNs, which no sampler can order.
_LEAST_FACTOR, _LARGEST_FACTOR = 1e-20, 1e20


class PromptSpan(NamedTuple):
    """Entries ``[begin, end)`` of ``prompt_rows`` that belong to one request."""

    request_id: RequestId
    begin: int
    end: int
    num_logprobs: int


@dataclass(slots=True)
class FlatBatch:
    """One step, without padding. T rows, C chunks, S rows that sample, R rows for prompt logprobs."""

    token_ids: Int32Array  # [max_num_batched_tokens], T in use
    positions: Int32Array  # [max_num_batched_tokens], T in use
    query_start: Int32Array  # [max_num_seqs + 1], C + 1 in use
    seats: Int32Array  # [max_num_seqs], C in use
    context_lens: Int32Array  # [max_num_seqs], C in use
    writes_kv: UInt8Array  # [max_num_seqs], C in use; 0: keys and values of the chunk are in the cache already
    sample_rows: Int32Array  # [max_num_samples], S in use
    sample_seats: Int32Array  # [max_num_samples], S in use
    sample_drafts: Int32Array  # [max_num_samples], S in use
    prompt_rows: Int32Array  # [max_num_batched_tokens], R in use; never also a sample row
    prompt_targets: Int32Array  # [max_num_batched_tokens], R in use; the token after the row: its logprob is wanted
    prompt_num_logprobs: Int32Array  # [max_num_batched_tokens], R in use
    num_tokens: int = 0  # T
    num_chunks: int = 0  # C
    num_samples: int = 0  # S
    num_prompt_rows: int = 0  # R
    sample_ids: list[RequestId] = field(default_factory=list)  # of the chunks that sample
    prompt_spans: list[PromptSpan] = field(default_factory=list)

    @staticmethod
    def allocate(max_num_seqs: int, max_num_batched_tokens: int, max_num_samples: int) -> FlatBatch:
        """Return empty arrays for the largest batch."""
        per_row = [np.zeros(max_num_batched_tokens, np.int32) for _ in range(5)]
        per_chunk = [np.zeros(max_num_seqs, np.int32) for _ in range(2)]
        per_sample = [np.zeros(max_num_samples, np.int32) for _ in range(3)]
        return FlatBatch(
            token_ids=per_row[0],
            positions=per_row[1],
            query_start=np.zeros(max_num_seqs + 1, np.int32),
            seats=per_chunk[0],
            context_lens=per_chunk[1],
            writes_kv=np.zeros(max_num_seqs, np.uint8),
            sample_rows=per_sample[0],
            sample_seats=per_sample[1],
            sample_drafts=per_sample[2],
            prompt_rows=per_row[2],
            prompt_targets=per_row[3],
            prompt_num_logprobs=per_row[4],
        )


# The sampling parameters of a seat, `SeatSampling` of csrc/decoder/step.h; a field that is off has its neutral value.
SEAT_SAMPLING = np.dtype(
    [
        ("seed", np.uint64),
        ("temperature", np.float32),  # below 1e-5: greedy
        ("top_p", np.float32),  # 1: off
        ("min_p", np.float32),  # 0: off
        ("presence_penalty", np.float32),  # 0: off
        ("frequency_penalty", np.float32),  # 0: off
        ("repetition_penalty", np.float32),  # 1: off
        ("top_k", np.int32),  # 0: off
        ("min_tokens", np.int32),  # 0: off
        ("num_logprobs", np.int32),  # -1: none wanted
        ("num_prompt_logprobs", np.int32),  # -1: none wanted
        ("has_penalties", np.uint8),  # 1: one of the three penalties is on
    ],
    align=True,
)


def seat_sampling(params: SamplingParams, seed: int) -> tuple[float, ...]:
    """Return the parameters of a request in the order of ``SEAT_SAMPLING``."""
    return (
        seed & _UINT64_MASK,
        min(params.temperature, _LARGEST_FACTOR),
        params.top_p,
        params.min_p,
        params.presence_penalty,
        params.frequency_penalty,
        min(max(params.repetition_penalty, _LEAST_FACTOR), _LARGEST_FACTOR),
        min(max(params.top_k, 0), _INT32_MAX),
        min(params.min_tokens, _INT32_MAX),
        -1 if params.logprobs is None else params.logprobs,
        -1 if params.prompt_logprobs is None else params.prompt_logprobs,
        params.presence_penalty != 0 or params.frequency_penalty != 0 or params.repetition_penalty != 1,
    )


class SeatTable:
    """Apply batches to the seats: ``prepare`` before a step computes, ``commit`` after it sampled.

    ``tokens[s, :num_tokens[s]]`` is the sequence of seat s, of which the first ``num_prompt_tokens[s]`` are
    the prompt; ``num_drafts[s]`` drafts follow, in a step that verifies them. ``block_tables[t * max_num_seqs + s]``
    are its KV blocks in order in table t, that of some layers (see ``config.kv_tables``). No token id here is outside
    of the vocabulary.
    """

    def __init__(self, config: RunnerConfig, vocab_size: int) -> None:
        seats = config.max_num_seqs
        self.tokens: Int32Array = np.zeros((seats, config.max_model_len + 1), np.int32)
        self.num_tokens: Int32Array = np.zeros(seats, np.int32)
        self.num_prompt_tokens: Int32Array = np.zeros(seats, np.int32)
        self.num_drafts: Int32Array = np.zeros(seats, np.int32)
        self.first_draft: Int32Array = np.zeros(seats, np.int32)  # drafts of others before them in the step
        self.has_drafts = False  # in the present step
        self._drafts: dict[int, list[int]] = {}  # of the present step, by seat
        self._row_drafts: list[list[int]] = []  # of each chunk that samples, in a step with drafts
        self._layout = config.kv_layout
        num_tables = self._layout.num_full + self._layout.num_window
        self.block_tables: Int32Array = np.zeros((num_tables * seats, config.max_blocks_per_seq), np.int32)
        self._window_ends: Int32Array = np.zeros(seats, np.int32)  # logical blocks up to the end of the window's table
        self.capacity: Int32Array = np.zeros(seats, np.int32)  # tokens that the blocks of a seat hold
        self.sampling: NDArray[np.void] = np.zeros(seats, SEAT_SAMPLING)
        self.logit_bias = Ragged(seats)
        self.allowed_ids = Ragged(seats)  # when a seat has any, all others are masked
        self.banned_ids = Ragged(seats)  # masked while fewer than min_tokens were sampled
        # A bit a token, of seats whose requests have a grammar; token t is bit t % 32 of word t // 32. A row for each
        # seat, then one for each draft of a step: what may follow it.
        self.token_masks: UInt32Array = np.zeros((config.max_num_samples, (vocab_size + 31) // 32), np.uint32)
        self.has_mask: UInt8Array = np.zeros(seats, np.uint8)
        self.logits_processors: dict[int, tuple[LogitsProcessor, ...]] = {}  # by seat, of requests that have some
        self.flat = FlatBatch.allocate(seats, config.max_num_batched_tokens, config.max_num_samples)
        self._config = config
        self._vocab_size = vocab_size
        self._seat_of: dict[RequestId, int] = {}
        self._seats_with_logprobs: set[int] = set()
        self._seats_with_prompt_logprobs: set[int] = set()

    @property
    def wants_logprobs(self) -> bool:
        """Some seated request wants log-probabilities of what it samples."""
        return bool(self._seats_with_logprobs)

    def prepare(self, batch: Batch) -> FlatBatch:
        """Take over who leaves, sits down and grows, and flatten the chunks."""
        self.apply(batch)
        self.name_rows(batch.chunks)
        self._flatten(batch.chunks)
        return self.flat

    def commit(self, sampled_ids: Int32Array, statuses: UInt8Array | None = None) -> None:
        """Append what each sampling chunk of the last batch sampled. Both arrays are [S]; a status of 0 is good.

        A row whose drafts were all true adds its token, one behind a wrong draft nothing. Nor does a row that failed
        behind drafts: the next step meets the failure again.
        """
        flat, goes_on = self.flat, True
        statuses = np.zeros(flat.num_samples, np.uint8) if statuses is None else statuses
        for row in range(flat.num_samples):
            seat, num_drafts = flat.sample_seats[row], flat.sample_drafts[row]
            if num_drafts and not (goes_on and statuses[row] == 0):
                goes_on = False
                continue
            end, is_last = self.num_tokens[seat], num_drafts == self.num_drafts[seat]
            goes_on = not is_last and statuses[row] == 0 and self.tokens[seat, end] == sampled_ids[row]
            self.tokens[seat, end] = sampled_ids[row]
            self.num_tokens[seat] = end + 1
        self.num_drafts[flat.sample_seats[: flat.num_samples]] = 0

    def mask_row(self, seat: int, num_drafts: int) -> int:
        """Return the row of ``token_masks`` that holds after so many drafts of ``seat``."""
        if num_drafts == 0:
            return seat
        return self._config.max_num_seqs + int(self.first_draft[seat]) + num_drafts - 1

    def verified(self, token_ids: Sequence[int | None]) -> tuple[list[list[int | None]], list[int]]:
        """Return the tokens of each chunk that samples, and its first row, when some of them verify drafts.

        ``token_ids`` are those of all rows that sample, ``None`` where that failed.
        """
        lists, first_rows, row = [], [], 0
        for drafts in self._row_drafts:
            tokens = [token_ids[row]]
            for draft, following in zip(drafts, token_ids[row + 1 :], strict=False):
                if tokens[-1] != draft or following is None:
                    break
                tokens.append(following)
            lists.append(tokens)
            first_rows.append(row)
            row += 1 + len(drafts)
        assert row == len(token_ids), "a token for each row that samples"
        return lists, first_rows

    def apply(self, batch: Batch) -> None:
        """Take over who leaves, sits down and grows."""
        for request_id in batch.released_ids:
            self._release(request_id)
        for seating in batch.new_requests:
            self._seat(seating)
        for append in batch.block_appends:
            self._append_blocks(*append)
        if batch.drafts or self.has_drafts:
            self._take_drafts(batch.drafts)
        for seat, words, num_drafts in batch.token_masks:
            self.token_masks[self.mask_row(seat, num_drafts)] = np.frombuffer(words, np.uint32)
            self.has_mask[seat] = 1

    def name_rows(self, chunks: Iterable[Chunk]) -> None:
        """Note which rows of the flat batch belong to whom: ``sample_ids`` and ``prompt_spans``."""
        self.flat.sample_ids = [chunk.request_id for chunk in chunks if chunk.samples]
        if self.has_drafts:
            self._row_drafts = [self._drafts.get(chunk.seat, []) for chunk in chunks if chunk.samples]
        self.flat.prompt_spans = self._prompt_spans(chunks) if self._seats_with_prompt_logprobs else []

    def _release(self, request_id: RequestId) -> None:
        seat = self._seat_of.pop(request_id, None)
        if seat is None:  # it ended before its first batch
            return
        self.num_tokens[seat] = self.capacity[seat] = self.has_mask[seat] = self.num_drafts[seat] = 0
        for ragged in (self.logit_bias, self.allowed_ids, self.banned_ids):
            ragged.set(seat, ())
        self.logits_processors.pop(seat, None)
        self._seats_with_logprobs.discard(seat)
        self._seats_with_prompt_logprobs.discard(seat)

    def _seat(self, seating: NewRequest) -> None:
        seat, params, num_tokens = seating.seat, seating.params, len(seating.token_ids)
        assert self.capacity[seat] == 0, f"seat {seat} is taken"
        assert 0 < num_tokens <= self._config.max_model_len, f"{num_tokens} tokens do not fit in a seat"
        self._seat_of[seating.request_id] = seat
        token_ids = self.tokens[seat, :num_tokens]
        token_ids[:] = seating.token_ids
        assert token_ids.view(np.uint32).max() < self._vocab_size, "a token id is not in the vocabulary"
        self.num_tokens[seat] = num_tokens
        self.num_prompt_tokens[seat] = seating.num_prompt_tokens
        self._window_ends[seat] = seating.first_window_block
        self._append_blocks(seat, seating.block_ids, seating.window_block_ids)
        self.sampling[seat] = seat_sampling(params, seating.seed)
        self._set_lists(seat, params, seating.eos_token_ids)
        if params.logits_processors:
            self.logits_processors[seat] = params.logits_processors
        if params.logprobs is not None:
            self._seats_with_logprobs.add(seat)
        if params.prompt_logprobs is not None:
            self._seats_with_prompt_logprobs.add(seat)

    def _take_drafts(self, drafts: Sequence[Draft]) -> None:
        self._drafts = {seat: token_ids for seat, _, token_ids in drafts}
        self.has_drafts = bool(drafts)
        first = 0
        for seat, _, token_ids in drafts:
            assert all(0 <= id_ < self._vocab_size for id_ in token_ids), "a draft is not in the vocabulary"
            end = self.num_tokens[seat] + len(token_ids)
            self.tokens[seat, self.num_tokens[seat] : end] = token_ids
            self.num_drafts[seat], self.first_draft[seat] = len(token_ids), first
            first += len(token_ids)
        assert first <= self._config.max_num_drafts, f"{first} drafts are more than a step may verify"

    def _set_lists(self, seat: int, params: SamplingParams, eos_token_ids: frozenset[int]) -> None:
        bias = [(id_, value) for id_, value in params.logit_bias if self._is_token(id_)]
        self.logit_bias.set(seat, [id_ for id_, _ in bias], [value for _, value in bias])
        self.allowed_ids.set(seat, [id_ for id_ in params.allowed_token_ids or () if self._is_token(id_)])
        banned = eos_token_ids.union(params.stop_token_ids) if params.min_tokens > 0 else ()
        self.banned_ids.set(seat, sorted(id_ for id_ in banned if self._is_token(id_)))

    def _is_token(self, id_: int) -> bool:
        return 0 <= id_ < self._vocab_size

    def _append_blocks(self, seat: int, block_ids: Sequence[int], window_block_ids: Sequence[int]) -> None:
        block_size, layout = self._config.block_size, self._layout
        end = self._fill_tables(0, layout.num_full, seat, int(self.capacity[seat]) // block_size, block_ids)
        self.capacity[seat] = end * block_size
        if layout.num_window:
            begin = int(self._window_ends[seat])
            end = self._fill_tables(layout.num_full, layout.num_window, seat, begin, window_block_ids)
            self._window_ends[seat] = end

    def _fill_tables(self, first: int, count: int, seat: int, begin: int, block_ids: Sequence[int]) -> int:
        """Write logical blocks, each of ``count`` ids, from place ``begin`` on into as many tables; return the end."""
        end = begin + len(block_ids) // count
        assert end <= self.block_tables.shape[1], f"seat {seat} has more blocks than the longest sequence"
        for index in range(count):
            self.block_tables[(first + index) * len(self.num_tokens) + seat, begin:end] = block_ids[index::count]
        return end

    def _flatten(self, chunks: Iterable[Chunk]) -> None:
        flat = self.flat
        flat.num_tokens = flat.num_chunks = flat.num_samples = flat.num_prompt_rows = 0
        for chunk in chunks:
            num_drafts = int(self.num_drafts[chunk.seat])
            known = min(self.num_tokens[chunk.seat] + num_drafts, self.capacity[chunk.seat])
            assert 0 <= chunk.start < chunk.end <= known, "a chunk exceeds its seat"
            first_row = flat.num_tokens
            self._add_rows(chunk)
            if chunk.samples:
                assert not num_drafts or chunk.end - chunk.start == 1 + num_drafts, "drafts follow one token"
                begin, end = flat.num_samples, flat.num_samples + 1 + num_drafts
                flat.sample_seats[begin:end] = chunk.seat
                flat.sample_rows[begin:end] = range(flat.num_tokens - num_drafts - 1, flat.num_tokens)
                flat.sample_drafts[begin:end] = range(1 + num_drafts)
                flat.num_samples = end
            self._add_prompt_rows(chunk, first_row)

    def _add_rows(self, chunk: Chunk) -> None:
        flat = self.flat
        begin, end = flat.num_tokens, flat.num_tokens + chunk.end - chunk.start
        assert end <= len(flat.token_ids), f"{end} tokens are more than a step may compute"
        flat.token_ids[begin:end] = self.tokens[chunk.seat, chunk.start : chunk.end]
        flat.positions[begin:end] = range(chunk.start, chunk.end)
        flat.seats[flat.num_chunks] = chunk.seat
        flat.context_lens[flat.num_chunks] = chunk.end
        flat.writes_kv[flat.num_chunks] = chunk.writes_kv
        flat.query_start[flat.num_chunks + 1] = flat.num_tokens = end
        flat.num_chunks += 1

    def _add_prompt_rows(self, chunk: Chunk, first_row: int) -> None:
        flat, num_rows = self.flat, self._num_prompt_rows(chunk)
        begin, end = flat.num_prompt_rows, flat.num_prompt_rows + num_rows
        flat.prompt_rows[begin:end] = range(first_row, first_row + num_rows)
        flat.prompt_targets[begin:end] = self.tokens[chunk.seat, chunk.start + 1 : chunk.start + 1 + num_rows]
        flat.prompt_num_logprobs[begin:end] = self.sampling["num_prompt_logprobs"][chunk.seat]
        flat.num_prompt_rows = end

    def _prompt_spans(self, chunks: Iterable[Chunk]) -> list[PromptSpan]:
        spans: list[PromptSpan] = []
        begin = 0
        for chunk in chunks:
            end = begin + self._num_prompt_rows(chunk)
            if end > begin:
                num_logprobs = int(self.sampling["num_prompt_logprobs"][chunk.seat])
                spans.append(PromptSpan(chunk.request_id, begin, end, num_logprobs))
            begin = end
        return spans

    def _num_prompt_rows(self, chunk: Chunk) -> int:
        """Return how many rows have their next token in the prompt, if its log-probability is wanted."""
        if chunk.seat not in self._seats_with_prompt_logprobs:
            return 0
        return max(0, min(chunk.end, int(self.num_prompt_tokens[chunk.seat]) - 1) - chunk.start)
