"""A request's tokens and log-probabilities are bitwise the same, whatever happens around it."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from hotseat.core.batch import StepOutput
from hotseat.core.request import SamplingParams
from hotseat.runner import ReferenceRunner
from runner.hand_batches import GREEDY, HandScheduler, f32_tensor, memory_weights, small_config, tiny_spec
from tiny_models import TinyLlama

MODEL = TinyLlama(hidden_size=48, intermediate_size=80, num_heads=6, num_kv_heads=2, head_dim=8)
WEIGHTS = memory_weights(MODEL)
PROMPT = np.random.default_rng(1).integers(0, MODEL.vocab_size, 37).tolist()
OTHERS = [np.random.default_rng(2 + i).integers(0, MODEL.vocab_size, 3 + 11 * i).tolist() for i in range(5)]
SEEDED = SamplingParams(temperature=1.0, logprobs=2)
STEPS = 12

Trace = list[tuple[int, float]]  # token id and logprob of each sampled token


def new_scheduler(dtype: str) -> HandScheduler:
    config = small_config(dtype=dtype)
    return HandScheduler(ReferenceRunner(tiny_spec(MODEL), WEIGHTS, config), config)


def traced(output: StepOutput, request_id: str) -> Trace:
    return [
        (token_id, logprobs.logprob)
        for sampled in output.sampled
        if sampled.request_id == request_id and sampled.logprobs
        for token_id, logprobs in zip(sampled.token_ids, sampled.logprobs, strict=True)
    ]


def decode(scheduler: HandScheduler, steps: int, *neighbours: str) -> Trace:
    counts = dict.fromkeys(("me", *neighbours), 1)
    return list(itertools.chain.from_iterable(traced(scheduler.step(counts), "me") for _ in range(steps)))


def run_alone(dtype: str) -> Trace:
    scheduler = new_scheduler(dtype)
    scheduler.seat("me", PROMPT, params=SEEDED, seed=77)
    trace = traced(scheduler.step({"me": len(PROMPT)}), "me")
    return trace + decode(scheduler, STEPS - 1)


@pytest.fixture(params=["fp32", "bf16", "int8"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 16, 36])
def test_chunked_prefill_equals_whole_prefill(dtype: str, chunk: int) -> None:
    scheduler = new_scheduler(dtype)
    scheduler.seat("me", PROMPT, params=SEEDED, seed=77)
    trace: Trace = []
    for begin in range(0, len(PROMPT), chunk):
        output = scheduler.step({"me": min(chunk, len(PROMPT) - begin)})
        assert bool(output.sampled) == (begin + chunk >= len(PROMPT))
        trace += traced(output, "me")
    assert trace + decode(scheduler, STEPS - 1) == run_alone(dtype)


def test_crowded_request_equals_lonely_request(dtype: str) -> None:
    scheduler = new_scheduler(dtype)
    for i, prompt in enumerate(OTHERS):
        scheduler.seat(f"other{i}", prompt, params=SamplingParams(temperature=0.7), seed=i)
    scheduler.step({f"other{i}": len(prompt) for i, prompt in enumerate(OTHERS[:3])})
    scheduler.seat("me", PROMPT, params=SEEDED, seed=77)
    trace = traced(scheduler.step({"other0": 1, "other1": 1, "me": 37, "other3": len(OTHERS[3])}), "me")
    trace += decode(scheduler, 5, "other0", "other3")
    trace += traced(scheduler.step({"other1": 1, "other4": 40, "me": 1}), "me")
    trace += decode(scheduler, STEPS - 7, "other2")
    assert trace == run_alone(dtype)


def test_shared_prefix_blocks_give_the_same_answer(dtype: str) -> None:
    scheduler = new_scheduler(dtype)
    scheduler.seat("first", [*PROMPT[:20], 5, 6, 7], params=GREEDY)
    scheduler.step({"first": 23})
    scheduler.seat("me", PROMPT, params=SEEDED, seed=77, shared_block_ids=scheduler.block_ids["first"][:5])
    trace = traced(scheduler.step({"first": 1, "me": 17}), "me")
    assert trace + decode(scheduler, STEPS - 1, "first") == run_alone(dtype)


def test_fully_cached_prompt_recomputes_its_last_token_without_writing(dtype: str) -> None:
    scheduler = new_scheduler(dtype)
    prompt = PROMPT[:36]  # nine whole blocks
    scheduler.seat("first", prompt, params=SEEDED, seed=77)
    expected = traced(scheduler.step({"first": 36}), "first")
    scheduler.seat("me", prompt, params=SEEDED, seed=77, shared_block_ids=scheduler.block_ids["first"], num_computed=35)
    assert traced(scheduler.step({"me": 1}, writes_kv=False), "me") == expected


def test_chunk_that_does_not_write_leaves_the_shared_block_alone() -> None:
    config = small_config()
    runner = ReferenceRunner(tiny_spec(MODEL), WEIGHTS, config)
    scheduler = HandScheduler(runner, config)
    scheduler.seat("first", PROMPT[:8])
    scheduler.step({"first": 8})
    other = [*PROMPT[:7], PROMPT[7] + 1]  # a lie about what the block holds: would show if it were written
    scheduler.seat("other", other, shared_block_ids=scheduler.block_ids["first"], num_computed=7)
    before = runner._cache._slots.copy()
    scheduler.step({"other": 1}, writes_kv=False)
    assert np.array_equal(runner._cache._slots, before)


def test_preempted_request_resumes_with_same_output(dtype: str) -> None:
    scheduler = new_scheduler(dtype)
    scheduler.seat("me", PROMPT, params=SEEDED, seed=77)
    trace = traced(scheduler.step({"me": 37}), "me") + decode(scheduler, 4)
    scheduler.release("me")
    scheduler.seat("squatter", OTHERS[4])  # takes over the seat and the blocks
    scheduler.step({"squatter": len(OTHERS[4])})
    resumed = scheduler.sequences["me"]
    scheduler.seat("me", resumed, params=SEEDED, seed=77, num_prompt_tokens=37)
    scheduler.step({"squatter": 1, "me": 30})
    trace += traced(scheduler.step({"squatter": 1, "me": len(resumed) - 30}), "me")
    assert trace + decode(scheduler, STEPS - 6, "squatter") == run_alone(dtype)


def test_seat_is_taken_again_in_the_batch_that_releases_it() -> None:
    scheduler = new_scheduler("fp32")
    scheduler.seat("first", PROMPT[:5], params=SamplingParams(temperature=0.5, logit_bias=((3, 100.0),)), seat=2)
    assert scheduler.step({"first": 5}).sampled[0].token_ids == [3]
    scheduler.release("first")
    scheduler.seat("me", PROMPT, params=SEEDED, seed=77, seat=2)
    assert traced(scheduler.step({"me": 37}), "me") == run_alone("fp32")[:1]


def test_stale_values_that_are_not_finite_do_not_leak_into_the_next_request() -> None:
    config = small_config()
    runner = ReferenceRunner(tiny_spec(MODEL), WEIGHTS, config)
    runner._cache._slots[:] = np.nan
    scheduler = HandScheduler(runner, config)
    scheduler.seat("me", PROMPT, params=SEEDED, seed=77)
    trace = traced(scheduler.step({"me": 37}), "me")
    assert trace + decode(scheduler, STEPS - 1) == run_alone("fp32")


def test_request_with_logits_that_are_not_finite_fails_alone() -> None:
    unused = min(set(range(MODEL.vocab_size)) - set(PROMPT))
    embedding = WEIGHTS["token_embedding"].dequantize().copy()
    embedding[unused] = np.nan
    weights = {**WEIGHTS, "token_embedding": f32_tensor(embedding), "output": WEIGHTS["token_embedding"]}
    config = small_config()
    scheduler = HandScheduler(ReferenceRunner(tiny_spec(MODEL), weights, config), config)
    scheduler.seat("bad", [4, unused, 5], params=SamplingParams(logprobs=1, prompt_logprobs=1))
    scheduler.seat("me", PROMPT, params=SEEDED, seed=77)
    output = scheduler.step({"bad": 3, "me": 37})
    assert output.failed == {"bad": "the model's logits are not finite"}
    assert traced(output, "me") == run_alone("fp32")[:1]


def test_broken_token_does_not_reach_back_into_the_blocks_before_it(dtype: str) -> None:
    """They may be shared with a request that never had it."""
    unused = min(set(range(MODEL.vocab_size)) - set(PROMPT))
    embedding = WEIGHTS["token_embedding"].dequantize().copy()
    embedding[unused] = np.inf
    spec = replace(tiny_spec(MODEL), tie_word_embeddings=False)
    weights = {**WEIGHTS, "token_embedding": f32_tensor(embedding), "output": WEIGHTS["token_embedding"]}
    config = small_config(dtype=dtype)
    scheduler = HandScheduler(ReferenceRunner(spec, weights, config), config)
    scheduler.seat("bad", [*PROMPT[:21], unused, *PROMPT[22:]])
    assert set(scheduler.step({"bad": 37}).failed) == {"bad"}
    scheduler.seat("me", PROMPT, params=SEEDED, seed=77, shared_block_ids=scheduler.block_ids["bad"][:5])
    assert traced(scheduler.step({"me": 17}), "me") + decode(scheduler, STEPS - 1) == run_alone(dtype)


@pytest.mark.parametrize("order", list(itertools.permutations(["plain", "penalised", "biased", "seeded"])))
def test_sampling_parameters_of_neighbours_do_not_mix(order: tuple[str, ...]) -> None:
    params = {
        "plain": GREEDY,
        "penalised": SamplingParams(temperature=0.0, repetition_penalty=2.0, frequency_penalty=1.0, max_tokens=5),
        "biased": SamplingParams(temperature=0.9, logit_bias=((7, 4.0),), min_tokens=3, stop_token_ids=(7,)),
        "seeded": SamplingParams(temperature=1.5, top_k=50, top_p=0.9, min_p=0.01, presence_penalty=-1.0),
    }

    def run(*request_ids: str) -> dict[str, list[int]]:
        scheduler = new_scheduler("fp32")
        for request_id in request_ids:
            scheduler.seat(request_id, PROMPT[:9], params=params[request_id], seed=99)
        scheduler.step(dict.fromkeys(request_ids, 9))
        scheduler.decode(*request_ids, steps=7)
        return scheduler.sequences

    together = run(*order)
    assert all(together[request_id] == run(request_id)[request_id] for request_id in order)
    assert len({tuple(sequence) for sequence in together.values()}) == 4
    assert 7 not in together["biased"][9:12]


@pytest.mark.parametrize("history", range(8))
def test_any_history_of_chunks_and_preemptions_gives_the_same_answer(history: int) -> None:
    rng = np.random.default_rng(history)
    scheduler = new_scheduler("fp32")
    requests = {"me": PROMPT, "a": OTHERS[2], "b": OTHERS[3]}
    params = {"me": SEEDED, "a": GREEDY, "b": SamplingParams(temperature=0.8, repetition_penalty=1.2)}
    for request_id, prompt in requests.items():
        scheduler.seat(request_id, prompt, params=params[request_id], seed=77)
    trace: Trace = []
    while len(trace) < STEPS:
        counts = {}
        for request_id in rng.permutation(list(requests)).tolist():
            missing = len(scheduler.sequences[request_id]) - scheduler.computed[request_id]
            if scheduler.computed[request_id] and rng.random() < 0.1:
                scheduler.release(request_id)
                sequence, prompt_length = scheduler.sequences[request_id], len(requests[request_id])
                scheduler.seat(
                    request_id, sequence, params=params[request_id], seed=77, num_prompt_tokens=prompt_length
                )
            elif rng.random() < 0.8 and len(scheduler.sequences[request_id]) < 100:
                counts[request_id] = int(rng.integers(1, missing + 1))
        trace += traced(scheduler.step(counts), "me")
    assert trace == run_alone("fp32")


def test_batch_without_chunks_is_a_step_without_output() -> None:
    scheduler = new_scheduler("fp32")
    assert scheduler.step({}).sampled == []
