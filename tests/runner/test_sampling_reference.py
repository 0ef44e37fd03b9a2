"""The sampler against definitions written another way, and against statistics."""

from dataclasses import replace

import numpy as np
import pytest

from hotseat.core.batch import Batch, Chunk, NewRequest
from hotseat.core.request import RequestId, SamplingParams
from hotseat.runner.results import SampleStatus
from hotseat.runner.sampling_reference import (
    RowSampling,
    log_softmax,
    penalize,
    philox4x32,
    rank_of,
    sample_row,
    top_logprobs,
    uniform,
)
from hotseat.runner.seats import SeatTable
from runner.hand_batches import small_config

NO_IDS = np.zeros(0, np.int32)
PLAIN = RowSampling(prompt_ids=np.array([0], np.int32), output_ids=NO_IDS)
GREEDY = replace(PLAIN, temperature=0.0)


def logits_of(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities)).astype(np.float32)


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def sampled(logits: np.ndarray, row: RowSampling) -> int:
    status, token_id = sample_row(logits.astype(np.float32), row)
    assert status is SampleStatus.OK
    return token_id


def draws(logits: np.ndarray, row: RowSampling, count: int) -> np.ndarray:
    """Return how often each id is drawn with ``count`` seeds."""
    tokens = [sampled(logits, replace(row, seed=seed)) for seed in range(count)]
    return np.bincount(tokens, minlength=len(logits))


def drawn(logits: np.ndarray, row: RowSampling, count: int = 400) -> set[int]:
    return set(np.flatnonzero(draws(logits, row, count)).tolist())


# Random123's known answers for philox4x32-10.
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    assert philox4x32(counter, key) == expected


def test_uniform_is_keyed_by_both_halves_of_the_seed_and_by_position() -> None:
    assert uniform(0, 0) == (0x6627E8D5 >> 8) / 2**24
    assert len({uniform(1, 5), uniform(1 << 32, 5), uniform(1, 6), uniform((1 << 64) - 1, 5)}) == 4


def test_uniform_is_uniform_over_positions_and_over_seeds() -> None:
    for values in ([uniform(3, i) for i in range(4000)], [uniform(i, 3) for i in range(4000)]):
        counts, _ = np.histogram(values, bins=20, range=(0, 1))
        assert ((counts - 200) ** 2 / 200).sum() < 43.8  # chi-square, 19 degrees, p = 0.001


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax_at_the_temperature(temperature: float) -> None:
    logits = logits_of(0.4, 0.05, 0.25, 0.2, 0.1)
    expected = np.exp(logits / temperature)
    expected *= 4000 / expected.sum()
    counts = draws(logits, replace(PLAIN, temperature=temperature), 4000)
    assert ((counts - expected) ** 2 / expected).sum() < 18.5  # 4 degrees, p = 0.001


def test_frequencies_after_filters_follow_the_renormalised_softmax() -> None:
    logits = logits_of(0.3, 0.05, 0.25, 0.28, 0.12)
    counts = draws(logits, replace(PLAIN, top_k=4, top_p=0.8), 4000)
    expected = 4000 * np.array([0.3, 0, 0.25, 0.28, 0]) / 0.83
    kept = expected > 0
    assert counts[~kept].sum() == 0
    assert ((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum() < 13.8  # 2 degrees, p = 0.001


def test_draw_walks_by_id_without_filters_and_by_probability_with_one() -> None:
    logits = logits_of(0.1, 0.6, 0.3)
    for position in range(40):
        row = replace(PLAIN, prompt_ids=np.zeros(position + 1, np.int32), seed=9)
        u = uniform(9, position + 1)
        assert sampled(logits, row) == (0 if u < 0.1 else 1 if u < 0.7 else 2)
        assert sampled(logits, replace(row, min_p=0.01)) == (1 if u < 0.6 else 2 if u < 0.9 else 0)


@pytest.mark.parametrize("temperature", [0.0, 9e-6])
def test_greedy_takes_the_lowest_id_among_equals(temperature: float) -> None:
    assert sampled(np.array([1.0, 3.0, 2.0, 3.0]), replace(PLAIN, temperature=temperature)) == 1


def test_temperature_just_above_greedy_still_draws_the_best() -> None:
    assert drawn(np.array([1.0, 3.0, 2.0, 2.9]), replace(PLAIN, temperature=1e-4), 50) == {1}


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 0}),  # 0 and 2 are equal: the lower id stays
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_k": 5}, {0, 1, 2, 3, 4}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_p": 1e-9}, {1}),
        ({"top_p": 0.39}, {1}),
        ({"top_p": 0.41}, {1, 0}),
        ({"top_p": 0.61}, {0, 1, 2}),
        ({"top_p": 0.89}, {0, 1, 2, 3}),
        ({"top_p": 0.99999}, {0, 1, 2, 3, 4}),
        ({"min_p": 1.0}, {1}),
        ({"min_p": 0.49}, {0, 1, 2}),
        ({"min_p": 0.01}, {0, 1, 2, 3, 4}),
        # top_p looks at what top_k kept: 0.4 of 0.6 is 0.67
        ({"top_k": 2, "top_p": 0.6}, {1}),
        ({"top_k": 2, "top_p": 0.7}, {0, 1}),
        # and at what min_p kept: 0.4 of 0.8 is 0.5
        ({"min_p": 0.49, "top_p": 0.45}, {1}),
        ({"min_p": 0.49, "top_p": 0.55}, {0, 1}),
    ],
)
def test_filters_keep_exactly_the_tokens_of_their_definition(filters: dict[str, float], kept: set[int]) -> None:
    logits = logits_of(0.2, 0.4, 0.2, 0.11, 0.09)
    assert drawn(logits, replace(PLAIN, **filters)) == kept


def test_top_p_counts_a_token_that_reaches_it_exactly() -> None:
    logits = np.zeros(4)  # four equal weights: exact quarters
    assert drawn(logits, replace(PLAIN, top_p=0.5)) == {0, 1}
    assert drawn(logits, replace(PLAIN, top_p=0.75)) == {0, 1, 2}


def test_min_p_counts_a_token_that_reaches_it_exactly() -> None:
    assert drawn(np.array([0.0, 0.0, -30.0]), replace(PLAIN, min_p=1.0)) == {0, 1}


def test_filters_see_the_temperature() -> None:
    logits = logits_of(0.5, 0.3, 0.2)
    assert drawn(logits, replace(PLAIN, temperature=0.1, top_p=0.95)) == {0}
    assert drawn(logits, replace(PLAIN, temperature=100.0, top_p=0.95)) == {0, 1, 2}


def test_penalties_equal_their_definition() -> None:
    rng = np.random.default_rng(2)
    logits = rng.standard_normal(30).astype(np.float32)
    logits[4] = 0
    row = replace(
        PLAIN,
        prompt_ids=ids(1, 1, 2, 3, 4),
        output_ids=ids(3, 7, 7, 7, 8),
        repetition_penalty=1.3,
        frequency_penalty=0.25,
        presence_penalty=-0.5,
    )
    expected = logits.astype(np.float64)
    for token in {1, 2, 3, 4, 7, 8}:
        expected[token] = expected[token] / 1.3 if expected[token] > 0 else expected[token] * 1.3
    for token, count in {3: 1, 7: 3, 8: 1}.items():
        expected[token] -= 0.25 * count - 0.5
    penalize(logits, row)
    assert logits == pytest.approx(expected, abs=1e-6)


def test_presence_and_frequency_penalties_leave_the_prompt_alone() -> None:
    logits = np.array([2.0, 1.9, 0.0])
    row = replace(GREEDY, prompt_ids=ids(0, 0, 0, 0), presence_penalty=2.0, frequency_penalty=2.0)
    assert sampled(logits, row) == 0
    assert sampled(logits, replace(row, output_ids=ids(0))) == 1
    assert sampled(logits, replace(GREEDY, prompt_ids=ids(0), repetition_penalty=1.2)) == 1


def test_masks_and_biases_act_before_penalties() -> None:
    logits = np.array([5.0, 4.0, 3.0, 2.0])
    assert sampled(logits, replace(GREEDY, allowed_ids=ids(3, 2))) == 2
    biased = replace(GREEDY, bias_ids=ids(3, 0), bias_values=np.array([10.0, -100.0], np.float32))
    assert sampled(logits, biased) == 3
    # 2 + 10 = 12 halved is 6; 5 - 100 halved would be less: the penalty sees the biased logit.
    assert sampled(logits, replace(biased, output_ids=ids(3), repetition_penalty=3.5)) == 1


def test_banned_ids_are_masked_until_min_tokens() -> None:
    logits = np.array([5.0, 4.0, 3.0])
    row = replace(GREEDY, banned_ids=ids(0, 1), min_tokens=2)
    assert sampled(logits, row) == 2
    assert sampled(logits, replace(row, output_ids=ids(2))) == 2
    assert sampled(logits, replace(row, output_ids=ids(2, 2))) == 0
    drawing = replace(row, temperature=1.0)
    assert drawn(logits, drawing) == {2}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [GREEDY, PLAIN])
def test_logits_that_are_not_finite_are_a_status(bad: float, row: RowSampling) -> None:
    logits = np.array([1.0, bad, 2.0], np.float32)
    assert sample_row(logits, row) == (SampleStatus.NOT_FINITE, 0)


def test_no_candidate_is_a_status() -> None:
    row = replace(PLAIN, allowed_ids=ids(1), banned_ids=ids(1), min_tokens=1)
    assert sample_row(np.zeros(3, np.float32), row) == (SampleStatus.NO_CANDIDATE, 0)


def test_token_without_weight_is_never_drawn() -> None:
    logits = np.array([-40.0, 0.0, -40.0])
    assert drawn(logits, PLAIN, 200) == {1}


def test_sampling_leaves_the_logits_alone() -> None:
    logits = np.array([5.0, 4.0, 3.0], np.float32)
    row = replace(PLAIN, banned_ids=ids(1), min_tokens=1, repetition_penalty=2.0, output_ids=ids())
    before = logits.copy()
    sample_row(logits, row)
    assert np.array_equal(logits, before)


def test_logprobs_ranks_and_top_tokens_equal_numpy() -> None:
    logits = (10 * np.random.default_rng(3).standard_normal(500)).astype(np.float32)
    logits[7] = logits[3]
    wide = logits.astype(np.float64)
    expected = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    logprobs = log_softmax(logits)
    assert logprobs == pytest.approx(expected, abs=1e-5)
    order = np.argsort(-wide, kind="stable")
    assert top_logprobs(logprobs, 20).tolist() == order[:20].tolist()
    assert top_logprobs(logprobs, 0).tolist() == []
    assert rank_of(logits, int(order[0])) == 1
    assert rank_of(logits, int(order[-1])) == 500
    assert rank_of(logits, 7) == rank_of(logits, 3)
    assert np.isnan(log_softmax(np.array([0.0, np.inf], np.float32))).all()


def test_row_of_a_seat_carries_all_parameters() -> None:
    table = SeatTable(small_config(), vocab_size=100)
    params = SamplingParams(
        temperature=0.5,
        top_p=0.75,
        top_k=-1,
        min_p=0.25,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=2.0,
        min_tokens=3,
        stop_token_ids=(9,),
        logit_bias=((4, 1.5), (6, -1.0)),
        allowed_token_ids=(4, 6, 7),
    )
    seating = NewRequest(
        seat=1,
        request_id=RequestId("r"),
        token_ids=[1, 2, 3, 4],
        num_prompt_tokens=3,
        block_ids=[0],
        params=params,
        seed=-1,
        eos_token_ids=frozenset([2]),
    )
    table.prepare(Batch(step=0, chunks=[Chunk(1, RequestId("r"), 0, 4, True)], new_requests=[seating]))
    row = RowSampling.of_seat(table, 1)
    assert row.position == 4
    assert (row.prompt_ids.tolist(), row.output_ids.tolist()) == ([1, 2, 3], [4])
    assert (row.temperature, row.top_p, row.top_k, row.min_p) == (0.5, 0.75, 0, 0.25)
    assert (row.presence_penalty, row.frequency_penalty, row.repetition_penalty) == (0.5, -0.5, 2.0)
    assert (row.seed, row.min_tokens) == (2**64 - 1, 3)
    lists = (row.allowed_ids, row.banned_ids, row.bias_ids, row.bias_values)
    assert [None if x is None else x.tolist() for x in lists] == [[4, 6, 7], [2, 9], [4, 6], [1.5, -1.0]]
