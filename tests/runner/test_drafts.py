"""Drafts in both runners: the tokens of as many plain steps, to the bit, whatever was guessed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from core.drafters import OracleDrafter
from hotseat.core.batch import RequestUpdate, Runner
from hotseat.core.config import SchedulerConfig
from hotseat.core.request import FinishReason, Request, RequestId, SamplingParams
from hotseat.core.scheduler import Scheduler
from hotseat.core.speculation import Speculation
from hotseat.engine.constraints import ConstrainedRequests
from hotseat.models.spec import DecoderSpec
from hotseat.runner import ReferenceRunner
from hotseat.runner.config import RunnerConfig
from runner.hand_batches import f32_tensor, memory_weights, tiny_spec
from tiny_models import TinyLlama

MODEL = TinyLlama()
SPEC = tiny_spec(MODEL)
EOS_TOKEN_ID = 3
NUM_TOKENS = 24
RUNNERS = [("native", dtype) for dtype in ("fp32", "bf16", "int8", "gguf")] + [("reference", "fp32")]

# What a request asks for, by name; what is not said is greedy.
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"logprobs": 3},
    "seeded": {"temperature": 1.0, "logprobs": 0},
    "filtered": {"temperature": 1.3, "top_p": 0.9, "top_k": 20, "min_p": 0.01},
    "penalties": {
        "temperature": 0.8,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.4,
        "logprobs": 2,
    },
    "biased": {"temperature": 1.0, "logit_bias": ((5, 4.0), (6, 3.0)), "min_tokens": 12, "stop_token_ids": (5,)},
    "grammar": {"temperature": 1.0, "logprobs": 1, "repetition_penalty": 1.2},
    "limited": {"temperature": 1.0, "allowed_token_ids": (7, 8, 9, 10)},
}


class Zigzag:
    """A grammar: a token must have another remainder by three than the one before it, and another value than both."""

    ends_answer = True

    def __init__(self) -> None:
        self.accepted: list[int] = []

    def mask(self) -> memoryview:
        """Return the bits of the tokens that may come next."""
        ids = np.arange(-(-MODEL.vocab_size // 32) * 32)
        allowed = ids < MODEL.vocab_size
        if self.accepted:
            allowed &= (ids % 3 != self.accepted[-1] % 3) & ~np.isin(ids, self.accepted[-2:])
        return np.packbits(allowed, bitorder="little").data

    def accept(self, token_id: int) -> None:
        """Go on by one token."""
        self.accepted.append(token_id)

    def rollback(self, num_tokens: int) -> None:
        """Go back."""
        del self.accepted[len(self.accepted) - num_tokens :]


Answers = dict[str, tuple[list[int], list[Any], FinishReason]]


def runner_config(dtype: str, max_num_drafts: int) -> RunnerConfig:
    """Return a small configuration."""
    return RunnerConfig(
        dtype=dtype,
        block_size=16,
        num_kv_blocks=64,
        max_num_seqs=7,
        max_num_batched_tokens=128,
        max_model_len=160,
        threads=2,
        max_num_drafts=max_num_drafts,
    )


def make_runner(kind: str, dtype: str, spec: DecoderSpec = SPEC) -> Callable[[int], Runner]:
    """Return a function that makes a runner for so many drafts a step."""

    def make(max_num_drafts: int) -> Runner:
        config = runner_config(dtype, max_num_drafts)
        if kind == "reference":
            return ReferenceRunner(spec, memory_weights(MODEL), config)
        native = pytest.importorskip("hotseat.runner.native")
        return native.NativeRunner(spec, memory_weights(MODEL), config)  # type: ignore[no-any-return]

    return make


def prompt_of(name: str) -> list[int]:
    """Return a prompt that is this request's own."""
    random = Random(name)
    return [random.randrange(10, MODEL.vocab_size) for _ in range(random.randint(3, 40))]


def run(runner: Runner, names: Sequence[str], speculation: Speculation | None) -> Answers:
    """Let a scheduler answer the requests with these names, together."""
    config = SchedulerConfig(
        max_model_len=160, num_kv_blocks=64, block_size=16, max_num_seqs=7, max_num_batched_tokens=128
    )
    scheduler, constrained = Scheduler(config, speculation=speculation), ConstrainedRequests()
    for name in names:
        options = {"temperature": 0.0, "max_tokens": NUM_TOKENS} | PARAMS[name]
        request = Request(
            id=RequestId(name),
            prompt_token_ids=prompt_of(name),
            params=SamplingParams(**options),
            arrived_at=0.0,
            seed=11,
            eos_token_ids=frozenset({EOS_TOKEN_ID}),
            constraint=Zigzag() if name == "grammar" else None,
        )
        scheduler.add(request, 0.0)
        constrained.add(request)
    updates: list[RequestUpdate] = []
    for now in range(1000):
        if not scheduler.has_work:
            break
        batch = scheduler.schedule(now)
        constrained.mask(batch)
        output = runner.execute(batch)
        constrained.accept(output)
        updates += scheduler.update(batch, output, now + 0.5)
        scheduler.check_invariants()
    answers: Answers = {}
    for name in names:
        own = [update for update in updates if update.request_id == name]
        reason = own[-1].finish_reason
        assert reason is not None, f"{name} did not end"
        tokens = [token_id for update in own for token_id in update.new_token_ids]
        logprobs = [entry for update in own for entry in update.logprobs or ()]
        assert not logprobs or len(logprobs) == len(tokens)
        answers[name] = tokens, logprobs, reason
    return answers


@pytest.fixture(scope="module", params=RUNNERS, ids=lambda runner: "-".join(runner))
def plain(request: pytest.FixtureRequest) -> tuple[Callable[[int], Runner], Answers]:
    """Return how to make a runner, and what it answers to each request alone and without drafts."""
    make = make_runner(*request.param)
    answers: Answers = {}
    for name in PARAMS:
        answers |= run(make(0), [name], None)
    return make, answers


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9, 1.0])
def test_answers_in_a_crowd_with_drafts_are_the_plain_ones_alone(
    plain: tuple[Callable[[int], Runner], Answers], rate: float
) -> None:
    make, answers = plain
    drafter = OracleDrafter(lambda request, _: answers[request.id][0], rate, vocab_size=MODEL.vocab_size)
    own = Speculation(drafter, num_tokens=5, max_num_drafts=20, is_adaptive=False)
    assert run(make(20), list(PARAMS), own) == answers
    assert own.num_draft_tokens > 50
    assert own.num_accepted_tokens > 0 or rate == 0
    assert own.num_accepted_tokens == own.num_draft_tokens or rate < 1


class Nines:
    """A drafter that always guesses 9."""

    def propose(self, request: Request, num_tokens: int) -> list[int]:
        """Return nines."""
        return [9] * num_tokens

    def ended(self, request: Request) -> None:
        """Nothing to forget."""


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_a_draft_that_is_not_finite_spoils_no_token(dtype: str) -> None:
    """Drafted, a token with a broken embedding fails its own row, and its keys and values are never read."""
    native = pytest.importorskip("hotseat.runner.native")
    model = replace(MODEL, tie_word_embeddings=False)
    weights = memory_weights(model)
    embedding = weights["token_embedding"].dequantize().copy()
    embedding[9] = np.nan
    weights["token_embedding"] = f32_tensor(embedding)

    def make(max_num_drafts: int) -> Runner:
        config = runner_config(dtype, max_num_drafts)
        return native.NativeRunner(tiny_spec(model), weights, config)  # type: ignore[no-any-return]

    names = ["greedy", "seeded"]
    own = Speculation(Nines(), num_tokens=3, max_num_drafts=8, is_adaptive=False)
    assert run(make(8), names, own) == run(make(0), names, None)
    assert own.num_draft_tokens > 50
