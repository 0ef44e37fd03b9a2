"""Flattening of hand-built batches, checked against a plain retelling of what each array means."""

import numpy as np
import pytest

from hotseat.core.batch import Batch, BlockAppend, Chunk, NewRequest
from hotseat.core.request import RequestId, SamplingParams
from hotseat.runner.results import SampleStatus, StepResults
from hotseat.runner.seats import Ragged, SeatTable
from runner.hand_batches import small_config

CONFIG = small_config(max_num_seqs=4, max_num_batched_tokens=32, max_model_len=40, block_size=4)


def new_table() -> SeatTable:
    return SeatTable(CONFIG, vocab_size=100)


def seating(seat: int, request_id: str, tokens: list[int], blocks: list[int], **params: object) -> NewRequest:
    return NewRequest(
        seat=seat,
        request_id=RequestId(request_id),
        token_ids=tokens,
        num_prompt_tokens=len(tokens),
        block_ids=blocks,
        params=SamplingParams(**params),
        seed=seat,
        eos_token_ids=frozenset([2]),
    )


def chunk(seat: int, start: int, end: int, samples: bool, writes_kv: bool = True) -> Chunk:
    return Chunk(seat, RequestId(f"r{seat}"), start, end, samples, writes_kv)


def test_decodes_and_prefills_are_flattened_side_by_side() -> None:
    table = new_table()
    first = [seating(3, "r3", [10, 11, 12, 13, 14], [7, 5]), seating(0, "r0", list(range(20, 29)), [1, 2, 3])]
    table.prepare(Batch(step=0, chunks=[chunk(3, 0, 4, False), chunk(0, 0, 5, False)], new_requests=first))
    second = [seating(1, "r1", [30, 31, 32], [4])]
    chunks = [chunk(3, 4, 5, True), chunk(0, 5, 8, False), chunk(1, 2, 3, True, writes_kv=False)]
    flat = table.prepare(Batch(step=1, chunks=chunks, new_requests=second))
    assert (flat.num_tokens, flat.num_chunks, flat.num_samples, flat.num_prompt_rows) == (5, 3, 2, 0)
    assert flat.token_ids[:5].tolist() == [14, 25, 26, 27, 32]
    assert flat.positions[:5].tolist() == [4, 5, 6, 7, 2]
    assert flat.query_start[:4].tolist() == [0, 1, 4, 5]
    assert flat.seats[:3].tolist() == [3, 0, 1]
    assert flat.context_lens[:3].tolist() == [5, 8, 3]
    assert flat.writes_kv[:3].tolist() == [1, 1, 0]
    assert flat.sample_rows[:2].tolist() == [0, 4]
    assert flat.sample_seats[:2].tolist() == [3, 1]
    assert flat.sample_ids == ["r3", "r1"]
    assert table.block_tables[[3, 0, 1], :3].tolist() == [[7, 5, 0], [1, 2, 3], [4, 0, 0]]


def test_committed_tokens_start_the_next_chunk() -> None:
    table = new_table()
    seated = [seating(0, "r0", [1, 2, 3], [0]), seating(1, "r1", [4], [1]), seating(2, "r2", [5, 6], [2])]
    table.prepare(
        Batch(step=0, chunks=[chunk(0, 0, 3, True), chunk(2, 0, 1, False), chunk(1, 0, 1, True)], new_requests=seated)
    )
    table.commit(np.array([50, 60], np.int32))
    assert table.num_tokens.tolist() == [4, 2, 2, 0]
    flat = table.prepare(Batch(step=1, chunks=[chunk(0, 3, 4, True), chunk(1, 1, 2, True), chunk(2, 1, 2, True)]))
    assert flat.token_ids[:3].tolist() == [50, 60, 6]
    table.commit(np.array([51, 61, 71], np.int32))
    assert table.tokens[0, :5].tolist() == [1, 2, 3, 50, 51]


def test_new_blocks_are_appended_to_the_table() -> None:
    table = new_table()
    table.prepare(Batch(step=0, chunks=[chunk(1, 0, 4, True)], new_requests=[seating(1, "r1", [1, 2, 3, 4], [9])]))
    table.commit(np.array([5], np.int32))
    table.prepare(Batch(step=1, chunks=[chunk(1, 4, 5, True)], block_appends=[BlockAppend(1, [8, 6])]))
    assert table.block_tables[1, :3].tolist() == [9, 8, 6]
    assert table.capacity[1] == 12


def test_seat_that_is_released_and_taken_keeps_nothing() -> None:
    table = new_table()
    heavy = seating(
        2, "r2", [1, 2], [3], logprobs=2, min_tokens=4, logit_bias=((7, 1.0),), allowed_token_ids=(7, 8), top_k=5
    )
    table.prepare(Batch(step=0, chunks=[chunk(2, 0, 2, True)], new_requests=[heavy]))
    assert table.wants_logprobs
    light = seating(2, "new", [9], [4])
    table.prepare(
        Batch(
            step=1,
            chunks=[Chunk(2, RequestId("new"), 0, 1, True)],
            new_requests=[light],
            released_ids=[RequestId("r2")],
        )
    )
    assert not table.wants_logprobs
    assert table.num_tokens[2] == 1
    assert table.block_tables[2, 0] == 4
    assert table.sampling["top_k"][2] == 0
    assert [len(ragged.ids) for ragged in (table.logit_bias, table.allowed_ids, table.banned_ids)] == [0, 0, 0]


def test_release_of_an_unknown_request_is_ignored() -> None:
    table = new_table()
    assert table.prepare(Batch(step=0, chunks=[], released_ids=[RequestId("never seated")])).num_tokens == 0


def test_arrays_never_move() -> None:
    table = new_table()
    arrays = [table.tokens, table.block_tables, table.num_tokens, table.flat.token_ids, table.sampling["seed"]]
    addresses = [array.ctypes.data for array in arrays]
    table.prepare(Batch(step=0, chunks=[chunk(1, 0, 3, True)], new_requests=[seating(1, "r1", [1, 2, 3], [0])]))
    table.commit(np.array([4], np.int32))
    arrays = [table.tokens, table.block_tables, table.num_tokens, table.flat.token_ids, table.sampling["seed"]]
    assert [array.ctypes.data for array in arrays] == addresses


def test_prompt_rows_are_all_rows_whose_next_token_is_in_the_prompt() -> None:
    table = new_table()
    wanting = seating(1, "r1", [10, 11, 12, 13, 14, 15], [0, 1], prompt_logprobs=3)
    plain = seating(0, "r0", [20, 21], [2])
    flat = table.prepare(
        Batch(step=0, chunks=[chunk(0, 0, 2, True), chunk(1, 0, 4, False)], new_requests=[wanting, plain])
    )
    assert flat.prompt_rows[: flat.num_prompt_rows].tolist() == [2, 3, 4, 5]
    assert flat.prompt_targets[: flat.num_prompt_rows].tolist() == [11, 12, 13, 14]
    assert flat.prompt_num_logprobs[: flat.num_prompt_rows].tolist() == [3, 3, 3, 3]
    flat = table.prepare(Batch(step=1, chunks=[chunk(1, 4, 6, True)]))
    assert flat.prompt_rows[: flat.num_prompt_rows].tolist() == [0]
    assert flat.prompt_targets[: flat.num_prompt_rows].tolist() == [15]
    assert flat.sample_rows[: flat.num_samples].tolist() == [1]
    table.commit(np.array([16], np.int32))
    assert table.prepare(Batch(step=2, chunks=[chunk(1, 6, 7, True)])).num_prompt_rows == 0


def test_prompt_logprobs_of_a_resumed_request_stop_at_its_prompt() -> None:
    table = new_table()
    resumed = seating(1, "r1", [10, 11, 12, 13, 14], [0, 1], prompt_logprobs=0)._replace(num_prompt_tokens=3)
    flat = table.prepare(Batch(step=0, chunks=[chunk(1, 0, 5, True)], new_requests=[resumed]))
    assert flat.prompt_targets[: flat.num_prompt_rows].tolist() == [11, 12]


@pytest.mark.parametrize(
    "bad",
    [
        Batch(step=1, chunks=[chunk(1, 3, 4, True)]),  # a token that is not known
        Batch(step=1, chunks=[chunk(1, 0, 3, True)], new_requests=[seating(1, "r1", [1, 2, 3], [0])]),  # taken
        Batch(step=1, chunks=[], new_requests=[seating(2, "r2", [100], [0])]),  # outside of the vocabulary
        Batch(step=1, chunks=[], new_requests=[seating(2, "r2", [-1], [0])]),
        Batch(step=1, chunks=[], new_requests=[seating(2, "r2", [1] * 41, [0])]),  # longer than a seat
        Batch(step=1, chunks=[], block_appends=[BlockAppend(1, list(range(10)))]),  # wider than a table
        Batch(step=1, chunks=[chunk(2, 0, 5, True)], new_requests=[seating(2, "r2", [1] * 5, [0])]),  # no block
    ],
)
def test_batch_that_breaks_the_contract_is_an_assertion(bad: Batch) -> None:
    table = new_table()
    table.prepare(Batch(step=0, chunks=[chunk(1, 0, 3, True)], new_requests=[seating(1, "r1", [1, 2, 3], [0])]))
    with pytest.raises(AssertionError):
        table.prepare(bad)


def test_ids_outside_of_the_vocabulary_are_dropped_from_lists() -> None:
    table = new_table()
    odd = seating(
        0,
        "r0",
        [1],
        [0],
        min_tokens=1,
        stop_token_ids=(5, 100, 191222),
        logit_bias=((99, 1.0), (100, 2.0)),
        allowed_token_ids=(0, 100),
    )
    table.prepare(Batch(step=0, chunks=[chunk(0, 0, 1, True)], new_requests=[odd]))
    assert table.banned_ids.ids.tolist() == [2, 5]
    assert table.logit_bias.ids.tolist() == [99]
    assert table.logit_bias.values.tolist() == [1.0]
    assert table.allowed_ids.ids.tolist() == [0]


def test_ragged_lists_are_found_by_seat_and_change_the_version() -> None:
    ragged = Ragged(4)
    ragged.set(2, ())
    assert ragged.version == 0
    ragged.set(2, [5, 6], [0.5, 0.25])
    ragged.set(0, [9])
    assert ragged.offsets.tolist() == [0, 1, 1, 3, 3]
    assert [part.tolist() for part in ragged.of(2)] == [[5, 6], [0.5, 0.25]]
    assert [part.tolist() for part in ragged.of(0)] == [[9], [0.0]]
    assert [part.tolist() for part in ragged.of(1)] == [[], []]
    version = ragged.version
    ragged.set(2, ())
    assert ragged.version > version
    assert ragged.offsets.tolist() == [0, 1, 1, 1, 1]


def test_failed_rows_are_reported_and_the_others_returned() -> None:
    table = new_table()
    seated = [seating(i, f"r{i}", [1], [i], logprobs=1 if i == 2 else None) for i in range(3)]
    flat = table.prepare(Batch(step=0, chunks=[chunk(i, 0, 1, True) for i in range(3)], new_requests=seated))
    results = StepResults.allocate(CONFIG)
    results.token_ids[:3] = [7, 0, 9]
    results.status[:3] = [SampleStatus.OK, SampleStatus.NO_CANDIDATE, SampleStatus.OK]
    results.sampled.logprob[2], results.sampled.rank[2] = -0.5, 2
    results.sampled.top_ids[2, 0], results.sampled.top_logprobs[2, 0] = 4, -0.25
    output = results.to_output(table, results.listed_ids(flat.num_samples))
    assert [(one.request_id, one.token_ids) for one in output.sampled] == [("r0", [7]), ("r2", [9])]
    assert [token.logprobs for token in output.sampled] == [None, [(9, -0.5, 2, [(4, -0.25)])]]
    assert output.failed == {"r1": "no token may be sampled: all are masked"}
