"""Prompts in, text out, over a real engine and scheduler; the runner spells what the test wrote down."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from engine.fakes import FakeRunner, StartedEngine, assert_all_free, in_thread, make_scheduler
from generation.byte_tokenizer import BOS, EOS, VOCAB_SIZE, byte_tokenizer, ids_of
from generation.scripts import PROMPT, limits, spelling
from hotseat.core.request import FinishReason, RequestStatus, SamplingParams
from hotseat.engine import StepLoop, VirtualClock
from hotseat.errors import EngineStoppedError, InvalidRequestError, PromptTooLongError
from hotseat.generation import Generator, OfflineGenerator, OutputDelta, PromptRequest
from hotseat.text import Tokenizer

ENDED = RequestStatus.FINISHED


class Setting:
    def __init__(self, started: StartedEngine, generator: Generator) -> None:
        self.started = started
        self.runner = started.runner
        self.generator = generator


@contextmanager
def generating(*texts: str, **options: object) -> Iterator[Setting]:
    runner = FakeRunner(script=spelling(*texts)) if texts else FakeRunner(script=lambda request_id, position: 65)
    with StartedEngine(make_scheduler(**options), runner) as started:
        generator = Generator(started.engine, byte_tokenizer(), limits(eos_token_ids=frozenset({EOS})))
        yield Setting(started, generator)
        generator.close()


async def collect(
    generator: Generator, prompt: str | list[int], *, request_id: str = "r", **params: object
) -> list[list[OutputDelta]]:
    values: dict[str, object] = {"temperature": 0.0, "max_tokens": None}
    sampling = SamplingParams(**(values | params))  # type: ignore[arg-type]
    request = PromptRequest(prompt=prompt, params=sampling)
    return [deltas async for deltas in generator.generate([request], request_id=request_id)]


def texts_of(steps: Sequence[Sequence[OutputDelta]], n: int = 1) -> list[str]:
    return ["".join(delta.text for deltas in steps for delta in deltas if delta.index == index) for index in range(n)]


def ends_of(steps: Sequence[Sequence[OutputDelta]]) -> dict[int, tuple[str, str | int | None]]:
    ends = [(delta.index, (delta.finish_reason, delta.stop_reason)) for deltas in steps for delta in deltas]
    last = [(index, end) for index, end in ends if end[0] is not None]
    assert len(last) == len(dict(last)), "a sequence ends once"
    return dict(last)  # type: ignore[arg-type]


def test_text_prompt_comes_back_as_text_and_the_first_delta_tells_the_prompt() -> None:
    with generating(" upon a tïme") as setting:
        steps = asyncio.run(collect(setting.generator, PROMPT))
    assert texts_of(steps) == [" upon a tïme"]
    assert ends_of(steps) == {0: ("stop", None)}
    told = [delta.prompt_token_ids for deltas in steps for delta in deltas if delta.prompt_token_ids is not None]
    assert told == [[BOS, *ids_of(PROMPT)]]
    assert steps[0][0].prompt_token_ids is not None
    assert setting.started.witness.ends.popitem()[1] == "stop"


def test_token_ids_are_taken_as_they_are() -> None:
    with generating("!") as setting:
        steps = asyncio.run(collect(setting.generator, [BOS, *ids_of(PROMPT)]))
    assert texts_of(steps) == ["!"]
    assert steps[0][0].prompt_token_ids == [BOS, *ids_of(PROMPT)]


def test_special_tokens_can_be_left_out() -> None:
    async def scenario(generator: Generator) -> list[int] | None:
        request = PromptRequest(prompt=PROMPT, params=SamplingParams(max_tokens=1), add_special_tokens=False)
        async for deltas in generator.generate([request]):
            return deltas[0].prompt_token_ids
        return None

    with generating() as setting:
        assert asyncio.run(scenario(setting.generator)) == ids_of(PROMPT)


def test_stop_string_ends_the_sequence_in_the_engine_too() -> None:
    async def scenario(setting: Setting) -> list[list[OutputDelta]]:
        setting.runner.hold()
        setting.runner.let(len("one STOP"))
        steps = await collect(setting.generator, PROMPT, stop=("STOP",))
        setting.runner.let_go()
        return steps

    with generating("one STOP two and a long rest") as setting:
        steps = asyncio.run(scenario(setting))
    assert texts_of(steps) == ["one "]
    assert ends_of(steps) == {0: ("stop", "STOP")}
    assert list(setting.started.witness.ends.values()) == ["stop"]
    assert_all_free(setting.started.scheduler)


def test_n_sequences_are_independent_and_end_at_different_steps() -> None:
    texts = ("a", "bbbbbbbb", "cc", "ddddddddddddddd END of it")
    with generating(*texts) as setting:
        steps = asyncio.run(collect(setting.generator, PROMPT, n=4, stop=("END",)))
    assert texts_of(steps, 4) == ["a", "bbbbbbbb", "cc", "ddddddddddddddd "]
    assert ends_of(steps) == {0: ("stop", None), 1: ("stop", None), 2: ("stop", None), 3: ("stop", "END")}
    told = [delta.index for deltas in steps for delta in deltas if delta.prompt_token_ids is not None]
    assert len(told) == 1
    assert_all_free(setting.started.scheduler)


def test_sequences_of_one_step_come_in_one_list() -> None:
    async def scenario(setting: Setting) -> list[list[OutputDelta]]:
        setting.runner.hold()
        reading = asyncio.create_task(collect(setting.generator, list(range(1, 17)), n=3, max_tokens=3))
        for _ in range(5):
            await in_thread(setting.runner.entered)
            setting.runner.let(1)
        setting.runner.let_go()
        return await reading

    with generating() as setting:
        steps = asyncio.run(scenario(setting))
    assert sum(len(deltas) for deltas in steps) == 9
    assert max(len({delta.index for delta in deltas}) for deltas in steps) >= 2
    assert len(steps) < 9


def test_leaving_midway_aborts_all_sequences() -> None:
    async def scenario(setting: Setting) -> None:
        setting.runner.hold()
        setting.runner.let(1)
        steps = setting.generator.generate([PromptRequest(prompt=PROMPT, params=SamplingParams(n=3, max_tokens=None))])
        async for _ in steps:
            break
        await steps.aclose()
        leaving = await setting.generator.explain("request")  # the runner is held: their end is still to come
        assert [one.reason.partition(":")[0] for one in leaving] == ["ends"] * 3
        setting.runner.let_go()
        ended = leaving
        while [one.status for one in ended] != [ENDED] * 3:
            ended = await setting.generator.explain("request")
        assert [one.finish_reason for one in ended] == [FinishReason.ABORT] * 3

    with generating() as setting:
        asyncio.run(scenario(setting))
    assert list(setting.started.witness.ends.values()) == ["abort"] * 3
    assert_all_free(setting.started.scheduler)


def test_cancelling_the_task_aborts_all_sequences() -> None:
    async def scenario(setting: Setting) -> None:
        setting.runner.hold()
        task = asyncio.create_task(collect(setting.generator, PROMPT, n=2))
        await in_thread(setting.runner.entered)
        setting.runner.let(1)
        await in_thread(setting.runner.entered)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        setting.runner.let_go()

    with generating() as setting:
        asyncio.run(scenario(setting))
    assert list(setting.started.witness.ends.values()) == ["abort"] * 2


def test_the_same_client_id_may_run_twice_at_once() -> None:
    async def scenario(setting: Setting) -> tuple[list[list[OutputDelta]], list[list[OutputDelta]]]:
        setting.runner.hold()
        both = [asyncio.create_task(collect(setting.generator, PROMPT, request_id="same")) for _ in range(2)]
        await in_thread(setting.runner.entered)
        explanations = await setting.generator.explain("same")
        setting.runner.let_go()
        assert len({explanation.request_id for explanation in explanations}) == len(explanations) == 2
        return await both[0], await both[1]

    with generating("hello") as setting:
        first, second = asyncio.run(scenario(setting))
    assert texts_of(first) == texts_of(second) == ["hello"]
    assert len(setting.started.witness.ends) == 2


def test_explain_finds_the_sequences_of_a_client_id() -> None:
    async def scenario(setting: Setting) -> None:
        setting.runner.hold()
        reading = asyncio.create_task(collect(setting.generator, PROMPT, request_id="mine", n=2))
        await in_thread(setting.runner.entered)
        setting.runner.let(1)
        await in_thread(setting.runner.entered)
        assert len(await setting.generator.explain("mine")) == 2
        setting.runner.let_go()
        await reading
        ended = await setting.generator.explain("mine")
        assert [one.status for one in ended] == [ENDED] * 2
        assert [one.request_id for one in ended] == ["mine.0/0", "mine.0/1"]
        assert await setting.generator.explain("nobody") == []

    with generating("hello there", "hello you") as setting:
        asyncio.run(scenario(setting))


@pytest.mark.parametrize(
    ("prompt", "params", "param", "numbers"),
    [
        ([], {}, "prompt", ["empty"]),
        ([1, 2, VOCAB_SIZE], {}, "prompt", [str(VOCAB_SIZE)]),
        ([1, -2], {}, "prompt", ["-2", str(VOCAB_SIZE)]),
        (["a"], {}, "prompt", ["integers"]),
        ([True], {}, "prompt", ["integers"]),
        (PROMPT, {"logit_bias": ((191222, -100.0),)}, "logit_bias", ["191222", str(VOCAB_SIZE)]),
        (PROMPT, {"stop_token_ids": (999,)}, "stop_token_ids", ["999", str(VOCAB_SIZE)]),
        (PROMPT, {"allowed_token_ids": (1, 5000)}, "allowed_token_ids", ["5000", str(VOCAB_SIZE)]),
        (PROMPT, {"allowed_token_ids": (EOS,), "min_tokens": 3, "max_tokens": 3}, "min_tokens", ["3"]),
        (PROMPT, {"allowed_token_ids": (1, 2), "stop_token_ids": (1, 2), "min_tokens": 1}, "min_tokens", ["1"]),
        (PROMPT, {"stop_token_ids": tuple(range(VOCAB_SIZE)), "min_tokens": 1}, "min_tokens", ["1"]),
        (PROMPT, {"max_tokens": 508}, "max_tokens", ["512", "513", "5 in the prompt", "508 to generate", "507"]),
        ([7] * 512, {"max_tokens": 1}, "prompt", ["512"]),
        ([7] * 513, {"max_tokens": 0}, "prompt", ["513", "512"]),
        ([7] * 600, {"max_tokens": None}, "prompt", ["600", "512"]),
        ("\ud800", {}, "prompt", ["surrogate"]),
    ],
)
def test_what_does_not_fit_the_model_is_refused_with_field_and_numbers(
    prompt: str | list[int], params: dict[str, object], param: str, numbers: list[str]
) -> None:
    with generating() as setting:
        with pytest.raises(InvalidRequestError) as raised:
            asyncio.run(collect(setting.generator, prompt, **params))
        assert asyncio.run(collect(setting.generator, PROMPT, max_tokens=2))
    assert raised.value.param == param
    for number in numbers:
        assert number in str(raised.value)
    assert len(setting.started.witness.arrived) == 1


def test_max_tokens_may_fill_the_context_to_the_last_token() -> None:
    with generating() as setting:
        steps = asyncio.run(collect(setting.generator, PROMPT, max_tokens=507, ignore_eos=True))
        unlimited = asyncio.run(collect(setting.generator, PROMPT, max_tokens=None, ignore_eos=True))
    assert texts_of(steps) == texts_of(unlimited)
    assert len(texts_of(steps)[0]) == 507
    assert ends_of(steps) == ends_of(unlimited) == {0: ("length", None)}


def test_default_max_tokens_is_for_requests_that_set_none() -> None:
    async def scenario(started: StartedEngine) -> list[int]:
        generator = Generator(started.engine, byte_tokenizer(), limits(default_max_tokens=7))
        lengths = [len(texts_of(await collect(generator, PROMPT, max_tokens=limit))[0]) for limit in (None, 9)]
        generator.close()
        return lengths

    with StartedEngine(runner=FakeRunner(script=lambda request_id, position: 65)) as started:
        assert asyncio.run(scenario(started)) == [7, 9]


def test_no_tokens_to_generate_still_gives_the_prompts_logprobs() -> None:
    with generating() as setting:
        steps = asyncio.run(collect(setting.generator, PROMPT, max_tokens=0, prompt_logprobs=0))
    (delta,) = steps[0]
    assert (delta.text, delta.token_ids, delta.finish_reason) == ("", [], "length")
    assert [entry.token_id for entry in delta.prompt_logprobs or ()] == ids_of(PROMPT)
    assert delta.prompt_token_ids == [BOS, *ids_of(PROMPT)]


def test_prompt_logprobs_of_a_long_prompt_come_once_and_whole() -> None:
    prompt = [1 + i % 250 for i in range(300)]  # more than a step's budget
    with generating() as setting:
        steps = asyncio.run(collect(setting.generator, prompt, n=2, max_tokens=3, prompt_logprobs=0))
    told = [delta for deltas in steps for delta in deltas if delta.prompt_logprobs is not None]
    assert [(delta.index, delta.prompt_token_ids) for delta in told] == [(0, prompt)]
    assert [entry.token_id for entry in told[0].prompt_logprobs or ()] == prompt[1:]


def test_logprobs_are_parallel_to_the_tokens() -> None:
    with generating("hi") as setting:
        steps = asyncio.run(collect(setting.generator, PROMPT, logprobs=1))
    for deltas in steps:
        for delta in deltas:
            assert [entry.token_id for entry in delta.logprobs or ()] == delta.token_ids


def test_repeated_prompt_tells_how_much_of_it_was_cached() -> None:
    prompt = [1 + i % 250 for i in range(100)]
    with generating() as setting:
        first = asyncio.run(collect(setting.generator, prompt, max_tokens=2))
        second = asyncio.run(collect(setting.generator, prompt, max_tokens=2))
    assert (first[0][0].num_cached_tokens, second[0][0].num_cached_tokens) == (0, 96)


def test_seeds_differ_between_sequences_and_the_first_keeps_the_callers() -> None:
    with generating("a", "b", "c") as setting:
        asyncio.run(collect(setting.generator, PROMPT, n=3, seed=42))
        asyncio.run(collect(setting.generator, PROMPT, n=1, seed=42))
        asyncio.run(collect(setting.generator, PROMPT, n=3, seed=42))
        asyncio.run(collect(setting.generator, PROMPT, n=2, seed=None))
    seeds = [request.seed for request in setting.started.witness.arrived]
    assert seeds[0] == seeds[3] == 42
    assert seeds[:3] == seeds[4:7]
    assert len(set(seeds)) == 3 + 2
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_failure_in_the_engine_ends_the_sequence_with_its_message() -> None:
    async def scenario(started: StartedEngine) -> list[list[OutputDelta]]:
        generator = Generator(started.engine, byte_tokenizer(), limits())
        steps = await collect(generator, PROMPT)
        generator.close()
        return steps

    with StartedEngine(runner=FakeRunner(lambda batch: RuntimeError("out of luck"))) as started:
        steps = asyncio.run(scenario(started))
    assert ends_of(steps) == {0: ("error", None)}
    assert "out of luck" in (steps[-1][0].error or "")


def test_stopped_engine_refuses() -> None:
    with generating() as setting:
        setting.started.engine.stop()
        with pytest.raises(EngineStoppedError):
            asyncio.run(collect(setting.generator, PROMPT))


def test_long_prompts_are_tokenized_off_the_event_loop_and_short_ones_on_it() -> None:
    class Watched(Tokenizer):
        __slots__ = ()

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            threads[len(text)] = threading.current_thread()
            return super().encode(text, add_special_tokens)

    async def scenario(started: StartedEngine) -> None:
        generator = Generator(started.engine, byte_tokenizer(Watched), limits(max_model_len=40_000))
        for length in (10, 20_000):
            with pytest.raises(PromptTooLongError):  # by the scheduler: it came so far
                await collect(generator, "x" * length, max_tokens=1)
        generator.close()

    threads: dict[int, threading.Thread] = {}
    with StartedEngine(make_scheduler(max_model_len=8)) as started:
        asyncio.run(scenario(started))
    assert threads[10] is threading.current_thread()
    assert threads[20_000] is not threading.current_thread()


def test_text_that_is_far_too_long_costs_only_its_head() -> None:
    class Watched(Tokenizer):
        __slots__ = ()

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            lengths.append(len(text))
            return super().encode(text, add_special_tokens)

    lengths: list[int] = []
    loop = StepLoop(make_scheduler(), FakeRunner(), clock=VirtualClock())
    generator = OfflineGenerator(loop, byte_tokenizer(Watched), limits(max_model_len=32))
    with pytest.raises(PromptTooLongError, match="1000000 characters, of which the first 512 alone are 512 tokens"):
        next(generator.generate([PromptRequest(prompt="x" * 1_000_000, params=SamplingParams())]))
    assert lengths == [512]
