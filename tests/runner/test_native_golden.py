"""A request's tokens and log-probabilities are bitwise the same in the native runner, whatever happens around it."""

import itertools
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotseat.core.request import SamplingParams
from runner.hand_batches import GREEDY, HandScheduler, memory_weights, tiny_spec
from tiny_models import TinyLlama

pytest.importorskip("hotseat.runner._native", reason="the extension is not built")

from runner.native_cases import DTYPES, ISAS, Trace, decode, native_scheduler, prefill, token_ids, traced

MODEL = TinyLlama(
    hidden_size=48, intermediate_size=80, num_heads=6, num_kv_heads=2, head_dim=8, tie_word_embeddings=False
)
SPEC, WEIGHTS = tiny_spec(MODEL), memory_weights(MODEL)
STEPS = 12
# Decoding crosses the ends of the first and of the second span of attention (256 and 512 positions).
LENGTHS = (37, 250, 507)
PROMPT = token_ids(507, MODEL.vocab_size)
OTHERS = [token_ids(3 + 83 * i, MODEL.vocab_size, seed=2 + i) for i in range(5)]
PARAMS = {
    "greedy": SamplingParams(temperature=0.0, logprobs=2),
    "seeded": SamplingParams(temperature=1.0, logprobs=2),
    "filtered": SamplingParams(temperature=1.3, top_k=50, top_p=0.9, repetition_penalty=1.1, logprobs=3),
}


def new_scheduler(dtype: str, **options: object) -> HandScheduler:
    return native_scheduler(SPEC, WEIGHTS, dtype=dtype, **options)


def seat_me(scheduler: HandScheduler, length: int, sampling: str, **seating: object) -> None:
    scheduler.seat("me", PROMPT[:length], params=PARAMS[sampling], seed=77, **seating)


@cache
def alone(dtype: str, length: int, sampling: str) -> Trace:
    scheduler = new_scheduler(dtype)
    seat_me(scheduler, length, sampling)
    return prefill(scheduler, [length]) + decode(scheduler, STEPS - 1)


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=LENGTHS)
def length(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=["greedy", "seeded"])
def sampling(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_requests_under_test_differ_so_that_equality_says_something() -> None:
    traces = [
        [entry.token_id for entry in alone(dtype, length, sampling)]
        for dtype, length, sampling in itertools.product(["fp32"], LENGTHS, PARAMS)
    ]
    assert len(set(map(tuple, traces))) == len(traces)
    assert all(len(set(trace)) > 2 for trace in traces)


@pytest.mark.parametrize("chunk", [1, 2, 15, 16, 17, 100, 255, 256, 257])
def test_chunked_prefill_equals_whole_prefill(dtype: str, length: int, chunk: int) -> None:
    scheduler = new_scheduler(dtype)
    seat_me(scheduler, length, "seeded")
    sizes = [min(chunk, length - begin) for begin in range(0, length, chunk)]
    assert prefill(scheduler, sizes) + decode(scheduler, STEPS - 1) == alone(dtype, length, "seeded")


def test_prefill_in_uneven_chunks_equals_whole_prefill(dtype: str, sampling: str) -> None:
    scheduler = new_scheduler(dtype)
    seat_me(scheduler, 507, sampling)
    sizes = [1, 14, 2, 239, 1, 3, 200, 46, 1]
    assert sum(sizes) == 507
    assert prefill(scheduler, sizes) + decode(scheduler, STEPS - 1) == alone(dtype, 507, sampling)


def test_crowded_request_equals_lonely_request(dtype: str, length: int, sampling: str) -> None:
    """Neighbours join and leave, before it, behind it and while it is in mid-prefill."""
    scheduler = new_scheduler(dtype, max_num_batched_tokens=900)
    for i, prompt in enumerate(OTHERS):
        scheduler.seat(f"other{i}", prompt, params=SamplingParams(temperature=0.7), seed=i)
    scheduler.step({f"other{i}": len(prompt) for i, prompt in enumerate(OTHERS[:3])})
    seat_me(scheduler, length, sampling)
    assert scheduler.step({"other0": 1, "me": 20, "other1": 1}).sampled[-1].request_id == "other1"
    trace = traced(scheduler.step({"other0": 1, "other1": 1, "me": length - 20, "other3": len(OTHERS[3])}), "me")
    trace += decode(scheduler, 3, "other0", "other3")
    scheduler.release("other0")
    scheduler.seat("late", PROMPT[:length])
    trace += traced(scheduler.step({"other1": 1, "late": length, "other4": 40, "me": 1}), "me")
    trace += decode(scheduler, 2, "other2", "late")
    scheduler.release("other3")
    scheduler.release("late")
    trace += decode(scheduler, STEPS - 7, "other1")
    assert trace == alone(dtype, length, sampling)


@pytest.mark.parametrize("crowd", [1, 2, 4, 5, 6, 11, 12, 30])
def test_place_in_a_crowd_of_decodes_does_not_matter(dtype: str, crowd: int) -> None:
    """Rows of a tile of the linear kernels: every number of rows, every place among them."""
    scheduler = new_scheduler(dtype, max_num_seqs=32, num_kv_blocks=400)
    neighbours = [f"n{i}" for i in range(crowd)]
    for i, name in enumerate(neighbours):
        scheduler.seat(name, token_ids(1 + 5 * i, MODEL.vocab_size, seed=i), params=PARAMS["seeded"], seed=i)
        scheduler.step({name: 1 + 5 * i})
    seat_me(scheduler, 37, "seeded")
    trace = prefill(scheduler, [37])
    for step in range(STEPS - 1):
        place = step % (crowd + 1)
        counts = dict.fromkeys([*neighbours[:place], "me", *neighbours[place:]], 1)
        trace += traced(scheduler.step(counts), "me")
    assert trace == alone(dtype, 37, "seeded")


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_number_of_threads_does_not_matter(dtype: str, sampling: str, threads: int) -> None:
    scheduler = new_scheduler(dtype, threads=threads)
    seat_me(scheduler, 507, sampling)
    scheduler.seat("other", OTHERS[3])
    trace = traced(scheduler.step({"other": 130, "me": 507}), "me")
    assert trace + decode(scheduler, STEPS - 1, "other") == alone(dtype, 507, sampling)


@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
def test_size_of_blocks_does_not_matter(dtype: str, length: int, block_size: int) -> None:
    scheduler = new_scheduler(dtype, block_size=block_size, num_kv_blocks=60)
    seat_me(scheduler, length, "seeded")
    assert prefill(scheduler, [length]) + decode(scheduler, STEPS - 1) == alone(dtype, length, "seeded")


@pytest.mark.parametrize("num_shared", [1, 2, 15, 16, 31])
def test_shared_prefix_blocks_give_the_same_answer(dtype: str, num_shared: int) -> None:
    scheduler = new_scheduler(dtype)
    cut = 16 * num_shared
    scheduler.seat("first", [*PROMPT[:cut], 5, 6, 7], params=GREEDY)
    scheduler.step({"first": cut + 3})
    seat_me(scheduler, 507, "seeded", shared_block_ids=scheduler.block_ids["first"][:num_shared])
    trace = traced(scheduler.step({"first": 1, "me": 507 - cut}), "me")
    assert trace + decode(scheduler, STEPS - 1, "first") == alone(dtype, 507, "seeded")


def test_prefix_from_a_request_that_left_gives_the_same_answer(dtype: str) -> None:
    """Its blocks hold what steps of one token wrote, in another crowd."""
    scheduler = new_scheduler(dtype)
    scheduler.seat("first", PROMPT[:340])
    scheduler.seat("other", OTHERS[1])
    scheduler.step({"other": 80, "first": 20})
    for _ in range(320):
        scheduler.step({"first": 1, "other": 1})
    scheduler.release("first", keep_blocks=True)
    seat_me(scheduler, 507, "seeded", shared_block_ids=scheduler.block_ids["first"][:21])
    assert prefill(scheduler, [507 - 21 * 16]) + decode(scheduler, STEPS - 1) == alone(dtype, 507, "seeded")


@pytest.mark.parametrize("num_tokens", [16, 256, 272, 496])
def test_fully_cached_prompt_recomputes_its_last_token_without_writing(dtype: str, num_tokens: int) -> None:
    scheduler = new_scheduler(dtype)
    prompt, seeded = PROMPT[:num_tokens], PARAMS["seeded"]
    scheduler.seat("first", prompt, params=seeded, seed=77)
    expected = prefill(scheduler, [num_tokens], "first")
    shared = scheduler.block_ids["first"]
    scheduler.seat("me", prompt, params=seeded, seed=77, shared_block_ids=shared, num_computed=num_tokens - 1)
    assert traced(scheduler.step({"me": 1}, writes_kv=False), "me") == expected
    assert expected + decode(scheduler, STEPS - 1) == alone(dtype, num_tokens, "seeded")


def test_chunk_that_does_not_write_leaves_the_shared_block_alone(dtype: str) -> None:
    scheduler = new_scheduler(dtype)
    scheduler.seat("first", PROMPT[:272])
    scheduler.step({"first": 272})
    shared = scheduler.block_ids["first"]
    lie = [*PROMPT[:271], PROMPT[271] ^ 1]  # not what the block holds: would show if it were written
    scheduler.seat("liar", lie, shared_block_ids=shared, num_computed=271)
    scheduler.step({"liar": 1}, writes_kv=False)
    seat_me(scheduler, 507, "seeded", shared_block_ids=shared)
    assert prefill(scheduler, [507 - 272]) + decode(scheduler, STEPS - 1) == alone(dtype, 507, "seeded")


def test_preempted_request_resumes_with_same_output(dtype: str, length: int, sampling: str) -> None:
    scheduler = new_scheduler(dtype)
    seat_me(scheduler, length, sampling)
    trace = prefill(scheduler, [length]) + decode(scheduler, 7)
    scheduler.release("me")
    scheduler.seat("squatter", OTHERS[4])  # takes over the seat and the blocks
    scheduler.step({"squatter": len(OTHERS[4])})
    resumed = scheduler.sequences["me"]
    scheduler.seat("me", resumed, params=PARAMS[sampling], seed=77, num_prompt_tokens=length)
    scheduler.step({"squatter": 1, "me": 30})
    trace += traced(scheduler.step({"squatter": 1, "me": len(resumed) - 30}), "me")
    assert trace + decode(scheduler, STEPS - 9, "squatter") == alone(dtype, length, sampling)


def test_seat_is_taken_again_in_the_batch_that_releases_it(dtype: str) -> None:
    scheduler = new_scheduler(dtype)
    params = SamplingParams(temperature=0.5, logit_bias=((3, 100.0),), presence_penalty=2.0, prompt_logprobs=0)
    scheduler.seat("first", PROMPT[:5], params=params, seat=2)
    assert scheduler.step({"first": 5}).sampled[0].token_ids == [3]
    scheduler.release("first")
    seat_me(scheduler, 37, "seeded", seat=2)
    output = scheduler.step({"me": 37})
    assert traced(output, "me") == alone(dtype, 37, "seeded")[:1]
    assert output.prompt_logprobs == {}


@pytest.mark.parametrize("sizes", [[507], [1, 506], [256, 251], [100, 156, 1, 249, 1], [16] * 31 + [11]])
def test_prompt_logprobs_are_the_same_whole_and_chunked(dtype: str, sizes: list[int]) -> None:
    def prompt_logprobs(sizes: list[int], *, crowded: bool) -> Trace:
        scheduler = new_scheduler(dtype, max_num_batched_tokens=900)
        scheduler.seat("me", PROMPT, params=SamplingParams(temperature=0.0, prompt_logprobs=2, logprobs=1))
        scheduler.seat("other", OTHERS[2], params=SamplingParams(prompt_logprobs=0))
        if crowded:
            scheduler.step({"other": 9})
        entries, sampled = [], []
        for count in sizes:
            output = scheduler.step({"other": 1, "me": count} if crowded else {"me": count})
            entries += output.prompt_logprobs.get("me", [])
            sampled += traced(output, "me")
        return entries + sampled

    trace = prompt_logprobs(sizes, crowded=True)
    assert trace == prompt_logprobs([507], crowded=False)
    assert [entry.token_id for entry in trace[:-1]] == PROMPT[1:]
    assert [entry.token_id for entry in trace[-1:]] == [entry.token_id for entry in alone(dtype, 507, "greedy")[:1]]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", ["fp32", "bf16"])
def test_instruction_sets_agree_to_the_bit(dtype: str, kv_dtype: str, isa: str) -> None:
    def run(isa: str) -> Trace:
        scheduler = new_scheduler(dtype, kv_cache_dtype=kv_dtype, isa=isa)
        seat_me(scheduler, 507, "filtered")
        return prefill(scheduler, [300, 207]) + decode(scheduler, STEPS - 1)

    assert run(isa) == run(ISAS[-1])


# A history is a list of steps; a step says for each request how much of what it lacks is computed, or how else it
# fares. Afterwards "me" runs on to its end.
REQUESTS: dict[str, tuple[int, SamplingParams]] = {
    "me": (250, PARAMS["filtered"]),
    "twin": (507, PARAMS["filtered"]),  # begins with the same tokens
    "b": (33, GREEDY),
    "c": (1, SamplingParams(temperature=0.8, frequency_penalty=0.5, prompt_logprobs=1)),
}
FATES = st.one_of(st.just("idle"), st.just("preempt"), st.sampled_from([1, 2, 16, 100, 1000]))
HISTORIES = st.lists(st.fixed_dictionaries(dict.fromkeys(REQUESTS, FATES)), min_size=3, max_size=14)


class History:
    """Run requests as a history says; a preempted one finds its own first blocks again when they are shared."""

    def __init__(self, dtype: str, threads: int) -> None:
        self.scheduler = new_scheduler(dtype, threads=threads, max_num_batched_tokens=900)
        self.trace: Trace = []
        for request_id, (length, params) in REQUESTS.items():
            self.scheduler.seat(request_id, PROMPT[:length], params=params, seed=77)

    def step(self, fates: dict[str, str | int]) -> None:
        counts = {}
        for request_id, fate in fates.items():
            if fate == "preempt" and self.scheduler.computed[request_id]:
                self._preempt(request_id)
            elif isinstance(fate, int) and len(self.scheduler.sequences[request_id]) < 530:
                counts[request_id] = min(fate, self._lacking(request_id))
        self.trace += traced(self.scheduler.step(counts), "me")

    def _lacking(self, request_id: str) -> int:
        return len(self.scheduler.sequences[request_id]) - self.scheduler.computed[request_id]

    def _preempt(self, request_id: str) -> None:
        length, params = REQUESTS[request_id]
        sequence, shared = self.scheduler.sequences[request_id], []
        if request_id == "me":  # a prefix hit on what the twin has computed of their common prompt
            num_common = min(self.scheduler.computed["twin"], length - 1) // 16
            shared = self.scheduler.block_ids["twin"][:num_common]
        self.scheduler.release(request_id)
        self.scheduler.seat(
            request_id, sequence, params=params, seed=77, num_prompt_tokens=length, shared_block_ids=shared
        )


@pytest.mark.parametrize("dtype", DTYPES)
@given(history=HISTORIES, threads=st.sampled_from([1, 2, 3]))
@settings(max_examples=60, deadline=None)
def test_any_history_gives_the_same_answer(dtype: str, history: list[dict[str, str | int]], threads: int) -> None:
    run = History(dtype, threads)
    for fates in history:
        run.step(fates)
    while len(run.trace) < STEPS:
        run.step({"b": 16, "me": 1000})
    assert run.trace[:STEPS] == alone(dtype, 250, "filtered")
