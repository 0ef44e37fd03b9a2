"""Offline generation: the same over a step loop, with no thread and no event loop."""

from __future__ import annotations

import pytest

from engine.fakes import FakeRunner, make_scheduler
from generation.byte_tokenizer import BOS, EOS, byte_tokenizer, ids_of
from generation.scripts import PROMPT, limits, spelling
from hotseat.core.request import SamplingParams
from hotseat.engine import StepLoop, VirtualClock
from hotseat.errors import InvalidRequestError, PromptTooLongError
from hotseat.generation import OfflineGenerator, PromptRequest


def make_offline(*texts: str) -> tuple[OfflineGenerator, StepLoop]:
    loop = StepLoop(make_scheduler(), FakeRunner(script=spelling(*texts)), clock=VirtualClock())
    generator = OfflineGenerator(loop, byte_tokenizer(), limits(eos_token_ids=frozenset({EOS})))
    return generator, loop


def test_offline_jobs_come_back_by_position_with_no_event_loop() -> None:
    generator, loop = make_offline("first", "second one")
    params = SamplingParams(max_tokens=None, n=2, stop=(" one",))
    jobs = [PromptRequest(prompt=PROMPT, params=params), PromptRequest(prompt=[BOS, *ids_of(PROMPT)], params=params)]
    texts: dict[tuple[int, int], str] = {}
    for step in generator.generate(jobs):
        for delta in step:
            texts[delta.prompt, delta.index] = texts.get((delta.prompt, delta.index), "") + delta.text
    assert texts == {(0, 0): "first", (0, 1): "second", (1, 0): "first", (1, 1): "second"}
    assert not loop.has_work


def test_offline_checks_every_job_before_the_first_runs() -> None:
    generator, loop = make_offline("text")
    good, bad = SamplingParams(max_tokens=5), SamplingParams(max_tokens=5, stop_token_ids=(5000,))
    with pytest.raises(InvalidRequestError, match="5000"):
        next(generator.generate([PromptRequest(prompt=PROMPT, params=good), PromptRequest(prompt=PROMPT, params=bad)]))
    with pytest.raises(PromptTooLongError):
        next(
            generator.generate(
                [PromptRequest(prompt=PROMPT, params=good), PromptRequest(prompt=[1] * 600, params=good)]
            )
        )
    assert not loop.has_work


def test_leaving_offline_generation_aborts_the_rest() -> None:
    generator, loop = make_offline("a long text that nobody waits for")
    steps = generator.generate([PromptRequest(prompt=PROMPT, params=SamplingParams(max_tokens=None))])
    next(steps)
    steps.close()
    assert loop.request_ids == []
    assert not loop.has_work
