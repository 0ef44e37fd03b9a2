"""The native sampler chooses what its definition chooses, and a broken row is a failure of its own request alone."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from hotseat.core.batch import Batch, StepOutput, TokenLogprobs, TokenMask
from hotseat.core.request import SamplingParams
from hotseat.models.spec import DecoderSpec
from hotseat.models.weights import WeightTensor
from hotseat.runner.results import SampleStatus
from hotseat.runner.sampling_reference import RowSampling, log_softmax, rank_of, sample_row
from hotseat.runner.seats import Float32Array, SeatTable
from runner.hand_batches import HandScheduler, f32_tensor, memory_weights, tiny_spec
from tiny_models import TinyLlama

pytest.importorskip("hotseat.runner._native", reason="the extension is not built")

from runner.native_cases import DTYPES, ISAS, Trace, decode, native_config, native_scheduler, prefill, token_ids, traced

VOCAB = 1399  # no multiple of a vector, nor of the sampler's blocks of 256
MODEL = TinyLlama(num_layers=1, vocab_size=VOCAB, tie_word_embeddings=False)
SPEC = tiny_spec(MODEL)
NUM_SEATS = 16


def weights_with_ties() -> dict[str, WeightTensor]:
    """Return weights where every third token has the logit of the token before it, and logits are spread widely."""
    weights = memory_weights(MODEL)
    output = 3 * weights["output"].dequantize()
    output[1::3] = output[: len(output[1::3]) * 3 : 3]
    return {**weights, "output": f32_tensor(output)}


WEIGHTS = weights_with_ties()


class CheckedRunner:
    """A native runner beside the definition: a table of its own knows the seats, and chooses from the same logits."""

    def __init__(self, isa: str = "auto", **options: object) -> None:
        config = native_config(isa=isa, dtype="int8", max_num_seqs=NUM_SEATS, num_kv_blocks=700, **options)
        self.scheduler = native_scheduler(SPEC, WEIGHTS, isa=isa, dtype="int8", max_num_seqs=NUM_SEATS)
        self.native = self.scheduler.runner
        self.scheduler.runner = self
        self.table = SeatTable(config, VOCAB)
        self.num_draws = 0
        self.num_near_misses = 0
        self.chosen: list[int] = []
        self.mask_share = 0.0  # of the rows that sample
        self._rng = np.random.default_rng(3)

    def execute(self, batch: Batch) -> StepOutput:
        """Compute with the native runner and check everything that it sampled."""
        self._add_masks(batch)
        flat = self.table.prepare(batch)
        output = self.native.execute(batch)
        sampled = {token.request_id: token for token in output.sampled}
        tokens = []
        for i, logits in enumerate(self.native.last_logits()):
            seat, request_id = int(flat.sample_seats[i]), flat.sample_ids[i]
            row = RowSampling.of_seat(self.table, seat)
            status, expected = sample_row(logits, row)
            assert (request_id in output.failed) == (status is not SampleStatus.OK)
            token = sampled[request_id].token_ids[0] if request_id in sampled else 0
            self._check_token(token, expected, row)
            num_logprobs = int(self.table.sampling["num_logprobs"][seat])
            if request_id in sampled and num_logprobs >= 0:
                (found,) = sampled[request_id].logprobs or [None]
                check_logprobs(found, logits, num_logprobs)
            tokens.append(token)
        self.table.commit(np.array(tokens, np.int32))
        return output

    def _add_masks(self, batch: Batch) -> None:
        """Give some rows a mask that leaves few tokens, many, or nearly all."""
        for chunk in batch.chunks:
            if chunk.samples and self._rng.random() < self.mask_share:
                bits = self._rng.random((VOCAB + 31) // 32 * 32) < self._rng.choice([0.002, 0.3, 0.999])
                batch.token_masks.append(TokenMask(chunk.seat, np.packbits(bits, bitorder="little").tobytes()))

    def _check_token(self, token: int, expected: int, row: RowSampling) -> None:
        self.num_draws += 1
        self.chosen.append(token)
        if token == expected:
            return
        # The exponential is not rounded like NumPy's: a draw within 1e-6 of a border may fall on the other side.
        assert row.temperature >= 1e-5, f"{row} chose {token}, not {expected}"
        self.num_near_misses += 1

    def close(self) -> None:
        self.native.close()


def check_logprobs(entry: TokenLogprobs | None, logits: Float32Array, num_top: int) -> None:
    assert entry is not None
    expected = log_softmax(logits)
    assert entry.logprob == pytest.approx(expected[entry.token_id], abs=1e-5)
    assert entry.rank == rank_of(logits, entry.token_id)
    ids = [id_ for id_, _ in entry.top]
    assert ids == np.lexsort((np.arange(len(logits)), -logits))[:num_top].tolist()
    assert [logprob for _, logprob in entry.top] == pytest.approx(expected[ids], abs=1e-5)


def random_params(rng: np.random.Generator) -> SamplingParams:
    """Return parameters with every option on now and then, and values at the ends of their ranges among them."""

    def maybe(probability: float, values: Sequence[float], neutral: float) -> float:
        return float(rng.choice(values)) if rng.random() < probability else neutral

    allowed = rng.choice(VOCAB + 50, int(rng.choice([1, 2, 40, 700])), replace=False).tolist()
    biased = rng.integers(0, VOCAB + 20, 12).tolist()  # ids may come twice, or not exist
    return SamplingParams(
        temperature=maybe(0.8, [1e-6, 1e-5, 2e-5, 1e-3, 0.1, 0.7, 1.0, 1.5, 8.0, 1e4, 1e300], 0.0),
        top_k=int(maybe(0.4, [1, 2, 3, 20, 100, VOCAB - 1, VOCAB, VOCAB + 1, 2**31 - 1], 0)),
        top_p=maybe(0.4, [1e-9, 0.1, 0.5, 0.9, 0.99, 0.9999, 1.0], 1.0),
        min_p=maybe(0.3, [1e-12, 1e-6, 1e-4, 0.05, 0.5, 1.0], 0.0),
        presence_penalty=maybe(0.3, [-2.0, 0.3, 2.0], 0.0),
        frequency_penalty=maybe(0.3, [-2.0, 0.1, 2.0], 0.0),
        repetition_penalty=maybe(0.3, [0.5, 1.2, 1.0001, 10.0, 1e-300, 1e300], 1.0),
        logit_bias=tuple((id_, float(rng.uniform(-20, 20))) for id_ in biased) if rng.random() < 0.3 else (),
        allowed_token_ids=tuple(allowed) if rng.random() < 0.3 else None,
        min_tokens=(min_tokens := int(maybe(0.4, [1, 3, 100], 0))),
        max_tokens=max(100, min_tokens),
        stop_token_ids=tuple(rng.integers(0, VOCAB + 9, 300).tolist()),
        logprobs=int(rng.choice([0, 1, 5, 20])) if rng.random() < 0.5 else None,
    )


def run_round(checked: CheckedRunner, rng: np.random.Generator, params: Sequence[SamplingParams], steps: int) -> None:
    """Seat a request for each of ``params``, let them sample ``steps`` times side by side, and release them."""
    scheduler = checked.scheduler
    few = rng.choice(VOCAB, 30, replace=False)  # tokens that come again and again: counts above one
    counts = {}
    for i, request in enumerate(params):
        counts[f"r{i}"] = int(rng.integers(1, 25))
        prompt = rng.choice(few, counts[f"r{i}"]).tolist()
        seed = int(rng.integers(-(2**63), 2**63))
        eos = rng.integers(0, VOCAB, 3).tolist()
        num_prompt_tokens = int(rng.integers(1, len(prompt) + 1))  # the rest is output, as after a preemption
        scheduler.seat(
            f"r{i}", prompt, params=request, seed=seed, eos_token_ids=eos, num_prompt_tokens=num_prompt_tokens
        )
    running = set(scheduler.step(counts).failed) ^ set(counts)
    for _ in range(steps - 1):
        running -= set(scheduler.step(dict.fromkeys(sorted(running), 1)).failed)
    for request_id in counts:
        scheduler.release(request_id)


@pytest.mark.parametrize("isa", ISAS)
def test_native_sampler_chooses_what_the_definition_chooses(isa: str) -> None:
    rng, checked = np.random.default_rng(1), CheckedRunner(isa)
    for number in range(12):
        checked.mask_share = 0.4 * (number % 3)
        run_round(checked, rng, [random_params(rng) for _ in range(NUM_SEATS)], steps=7)
    assert checked.num_draws > 800
    assert checked.num_near_misses <= 1
    assert len(set(checked.chosen)) > 250


@pytest.mark.parametrize("temperature", [0.0, 9e-6, 1e-5, 1.0])
@pytest.mark.parametrize("isa", ISAS)
def test_lowest_id_wins_among_equals(isa: str, temperature: float) -> None:
    """With a temperature the one candidate of top_k is the lowest of the best."""
    rng, checked = np.random.default_rng(2), CheckedRunner(isa)
    params = SamplingParams(temperature=temperature, top_k=1, logprobs=6)
    run_round(checked, rng, [params] * NUM_SEATS, steps=12)
    assert len(set(checked.chosen)) > 20
    assert {token % 3 for token in checked.chosen} == {0, 2}  # 1, 4, 7 … have the logits of 0, 3, 6 …
    assert checked.num_near_misses == 0


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=100.0),  # nearly flat: every block of the vocabulary is drawn from
        SamplingParams(temperature=100.0, top_p=0.5),
        SamplingParams(temperature=100.0, top_k=20_000, top_p=0.999),
        SamplingParams(temperature=1.0, min_p=1e-7, top_p=0.9999),
        SamplingParams(temperature=0.01, top_p=0.3),
    ],
)
def test_large_vocabulary_is_drawn_from_as_defined(params: SamplingParams) -> None:
    model = TinyLlama(num_layers=1, hidden_size=32, vocab_size=40_001)
    scheduler = native_scheduler(tiny_spec(model), memory_weights(model), max_num_seqs=32)
    for i in range(32):
        scheduler.seat(f"r{i}", [i * 1000, 7], params=params, seed=i)
    output = scheduler.step({f"r{i}": 2 for i in range(32)})
    sampled = [token.token_ids[0] for token in output.sampled]
    expected = [
        sample_row(
            logits,
            RowSampling(
                prompt_ids=np.array([i * 1000, 7], np.int32),
                output_ids=np.zeros(0, np.int32),
                seed=i,
                temperature=params.temperature,
                top_k=params.top_k,
                top_p=params.top_p,
                min_p=params.min_p,
            ),
        )[1]
        for i, logits in enumerate(scheduler.runner.last_logits())
    ]
    assert np.count_nonzero(np.array(sampled) != expected) <= 1  # a draw at a border, see CheckedRunner
    assert len(set(sampled)) > 8 or params.temperature < 0.1


def test_request_without_candidates_fails_alone() -> None:
    checked = CheckedRunner()
    masked = SamplingParams(temperature=0.5, allowed_token_ids=(5, 6), min_tokens=1, stop_token_ids=(6, 5))
    checked.scheduler.seat("masked", [1, 2, 3], params=masked)
    checked.scheduler.seat("greedy masked", [1, 2, 3], params=replace(masked, temperature=0.0))
    checked.scheduler.seat("other", [1, 2, 3], params=SamplingParams(allowed_token_ids=(5, 6)))
    output = checked.scheduler.step({"masked": 3, "other": 3, "greedy masked": 3})
    assert set(output.failed) == {"masked", "greedy masked"}
    assert [token.request_id for token in output.sampled] == ["other"]
    assert output.sampled[0].token_ids[0] in (5, 6)


@pytest.mark.parametrize("temperature", [0.0, 1e-5, 1.0, 1e39, 1e308])
@pytest.mark.parametrize("repetition_penalty", [1e-300, 1e-20, 1.0, 1e20, 1e300])
def test_extreme_factors_choose_among_the_allowed_all_the_same(temperature: float, repetition_penalty: float) -> None:
    checked = CheckedRunner()
    allowed = range(3, VOCAB, 7)
    params = SamplingParams(
        temperature=temperature,
        repetition_penalty=repetition_penalty,
        top_k=700,
        presence_penalty=2.0,
        allowed_token_ids=tuple(allowed),
    )
    run_round(checked, np.random.default_rng(5), [params] * NUM_SEATS, steps=4)
    assert set(checked.chosen) <= set(allowed)
    assert checked.num_near_misses <= 1


def test_logprobs_of_the_prompt_are_those_of_its_logits() -> None:
    prompt = token_ids(61, VOCAB)
    scheduler = native_scheduler(SPEC, WEIGHTS, dtype="int8")
    params = SamplingParams(temperature=0.7, prompt_logprobs=7, logit_bias=((3, 50.0),), repetition_penalty=3.0)
    scheduler.seat("whole", prompt, params=params)
    entries = scheduler.step({"whole": 61}).prompt_logprobs["whole"]
    assert [entry.token_id for entry in entries] == prompt[1:]
    for length, entry in enumerate(entries, start=1):
        scheduler.seat("part", prompt[:length])
        scheduler.step({"part": length})
        check_logprobs(entry, scheduler.runner.last_logits()[0], num_top=7)
        scheduler.release("part")


# A token whose embedding is broken breaks every request that contains it, and nothing else.

CRACKED_MODEL = TinyLlama(num_heads=4, num_kv_heads=4, vocab_size=300, tie_word_embeddings=False)
GROUPED_MODEL = replace(CRACKED_MODEL, num_heads=6, num_kv_heads=2, head_dim=16)
BROKEN_TOKEN = 299
NEIGHBOURS = {"n0": (1, 0), "me": (270, 1), "n1": (30, 2), "n2": (5, 3)}  # length, seed of the prompt
WATCHED = SamplingParams(temperature=1.0, logprobs=3)


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[CRACKED_MODEL, GROUPED_MODEL], ids=["groups of one", "groups of three"])
def cracked(request: pytest.FixtureRequest) -> TinyLlama:
    model: TinyLlama = request.param
    return model


def cracked_scheduler(model: TinyLlama, dtype: str, value: float = np.inf, **options: object) -> HandScheduler:
    weights = memory_weights(model)
    embedding = weights["token_embedding"].dequantize().copy()
    embedding[BROKEN_TOKEN] = value
    spec: DecoderSpec = tiny_spec(model)
    return native_scheduler(
        spec, {**weights, "token_embedding": f32_tensor(embedding)}, dtype=dtype, num_kv_blocks=64, **options
    )


def prompt_of(length: int, seed: int) -> list[int]:
    return token_ids(length, BROKEN_TOKEN, seed)  # the broken token never comes by chance


def seat_neighbours(scheduler: HandScheduler) -> dict[str, int]:
    for request_id, (length, seed) in NEIGHBOURS.items():
        scheduler.seat(request_id, prompt_of(length, seed), params=WATCHED, seed=seed)
    return {request_id: length for request_id, (length, _) in NEIGHBOURS.items()}


def everything(output: StepOutput) -> dict[str, Trace]:
    return {str(token.request_id): traced(output, token.request_id) for token in output.sampled}


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_broken_token_fails_its_request_and_leaves_the_bits_of_neighbours(
    cracked: TinyLlama, dtype: str, value: float
) -> None:
    healthy = cracked_scheduler(cracked, dtype)
    counts = seat_neighbours(healthy)
    expected = [everything(healthy.step(counts))] + [
        everything(healthy.step(dict.fromkeys(NEIGHBOURS, 1))) for _ in range(4)
    ]
    scheduler = cracked_scheduler(cracked, dtype, value)
    bad = SamplingParams(logprobs=2, prompt_logprobs=2)
    counts, outputs = seat_neighbours(scheduler), []
    for step in range(5):
        names = [f"bad{step}", f"worse{step}"]
        scheduler.seat(names[0], [*prompt_of(3 * step, 9), BROKEN_TOKEN, *prompt_of(40, 10)], params=bad)
        scheduler.seat(names[1], [BROKEN_TOKEN])
        mixed = {
            "n0": 1,
            names[0]: 41 + 3 * step,
            "me": counts["me"],
            "n1": counts["n1"],
            names[1]: 1,
            "n2": counts["n2"],
        }
        outputs.append(scheduler.step(mixed))
        assert outputs[-1].failed == dict.fromkeys(names, "the model's logits are not finite")
        for name in names:
            scheduler.release(name)
        counts = dict.fromkeys(NEIGHBOURS, 1)
    assert [everything(output) for output in outputs] == expected


def test_request_that_samples_a_broken_token_fails_in_the_next_step(dtype: str) -> None:
    scheduler = cracked_scheduler(CRACKED_MODEL, dtype)
    scheduler.seat("bad", prompt_of(20, 9), params=SamplingParams(temperature=0.0, logit_bias=((BROKEN_TOKEN, 100.0),)))
    output = scheduler.step({"bad": 20})
    assert [token.token_ids[0] for token in output.sampled] == [BROKEN_TOKEN]
    assert set(scheduler.step({"bad": 1}).failed) == {"bad"}


@pytest.mark.parametrize("kv_dtype", ["fp32", "bf16"])
def test_blocks_of_a_broken_request_are_clean_for_the_next_one(cracked: TinyLlama, dtype: str, kv_dtype: str) -> None:
    def run(num_broken_before: int) -> Trace:
        scheduler = cracked_scheduler(cracked, dtype, kv_cache_dtype=kv_dtype)
        for i in range(num_broken_before):
            scheduler.seat("bad", [BROKEN_TOKEN] * 600)
            assert set(scheduler.step({"bad": 600 - i}).failed) == (set() if i else {"bad"})
            scheduler.release("bad")
        scheduler.seat("me", prompt_of(250, 1), params=WATCHED, seed=1)  # ends within a group: stale lanes follow
        scheduler.seat("n", prompt_of(3, 2), params=WATCHED)
        return prefill(scheduler, [100, 150]) + prefill(scheduler, [3], "n") + decode(scheduler, 12, "n")

    assert run(num_broken_before=3) == run(num_broken_before=0)


@pytest.mark.parametrize("position", [16, 17, 32, 50, 256, 259])
def test_broken_token_does_not_reach_back_into_the_blocks_before_it(
    cracked: TinyLlama, dtype: str, position: int
) -> None:
    """They may be shared with a request that never had it."""
    prompt = prompt_of(300, 1)

    def run(scheduler: HandScheduler) -> Trace:
        shared = scheduler.block_ids["first"][: position // 16]
        scheduler.seat("me", prompt, params=WATCHED, seed=1, shared_block_ids=shared)
        return prefill(scheduler, [300 - len(shared) * 16]) + decode(scheduler, 3)

    healthy, broken = cracked_scheduler(cracked, dtype), cracked_scheduler(cracked, dtype)
    healthy.seat("first", prompt)
    healthy.step({"first": 300})
    broken.seat("first", [*prompt[:position], BROKEN_TOKEN, *prompt[position + 1 :]])
    broken.step({"first": position - 3})  # so that tiles of rows do not end where blocks do
    assert set(broken.step({"first": 303 - position}).failed) == {"first"}
    assert run(broken) == run(healthy)
