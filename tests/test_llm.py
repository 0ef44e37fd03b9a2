"""The offline API, with a tiny model and the NumPy runner."""

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotseat import LLM, RequestOutput, SamplingParams
from hotseat.errors import ConfigError, InvalidRequestError
from tiny_models import write_tiny_hf_model

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_hf_model(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[LLM]:
    with LLM(model, runner="reference", dtype="fp32", max_num_seqs=4) as made:
        yield made


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


@pytest.mark.parametrize("prompts", [123, None, [4.5], ["a", {"text": "b"}], b"bytes"])
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any) -> None:
    with pytest.raises(InvalidRequestError, match="a prompt is a text"):
        llm.generate(prompts, GREEDY, use_tqdm=False)


def test_outputs_are_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [f"number {index} of the prompts" for index in range(10)]
    params = [SamplingParams(temperature=0, max_tokens=10 - index, ignore_eos=True) for index in range(10)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == list(range(10, 0, -1))
    assert all(output.finished for output in outputs)
    assert len({output.request_id for output in outputs}) == 10


def test_a_prompt_gives_the_same_alone_and_among_others(llm: LLM) -> None:
    prompts = [f"{index}: a hot seat" for index in range(6)]
    together = texts(llm.generate(prompts, GREEDY, use_tqdm=False))
    assert together == [texts(llm.generate(prompt, GREEDY, use_tqdm=False))[0] for prompt in prompts]


def test_prompts_may_be_texts_or_token_ids(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("a hot seat")
    outputs = llm.generate(["a hot seat", {"prompt": "a hot seat"}, {"prompt_token_ids": ids}], GREEDY, use_tqdm=False)
    assert len(set(texts(outputs))) == 1
    assert [output.prompt_token_ids for output in outputs] == [ids] * 3
    assert outputs[2].prompt is None


def test_an_output_has_vllms_fields(llm: LLM) -> None:
    (output,) = llm.generate("a hot seat", SamplingParams(max_tokens=4, seed=1, ignore_eos=True), use_tqdm=False)
    (completion,) = output.outputs
    assert completion.finish_reason == "length"
    assert completion.stop_reason is None
    assert completion.logprobs is None
    assert completion.cumulative_logprob is None
    assert output.prompt_logprobs is None
    assert completion.text == llm.get_tokenizer().decode(completion.token_ids)


def test_logprobs_have_token_rank_and_text(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    (output,) = llm.generate("a hot seat", params, use_tqdm=False)
    (completion,) = output.outputs
    assert completion.logprobs is not None
    assert len(completion.logprobs) == 3
    for token_id, entry in zip(completion.token_ids, completion.logprobs, strict=True):
        assert len(entry) == 2
        assert entry[token_id].rank == 1
        assert entry[token_id].decoded_token == llm.get_tokenizer().token_text(token_id)
    total = math.fsum(
        entry[token].logprob for token, entry in zip(completion.token_ids, completion.logprobs, strict=True)
    )
    assert completion.cumulative_logprob == pytest.approx(total)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    for token_id, known in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        assert known is not None
        assert token_id in known


def test_n_gives_n_answers_and_a_seed_fixes_them(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=7, max_tokens=6, ignore_eos=True)
    (first,) = llm.generate("once upon a time", params, use_tqdm=False)
    (second,) = llm.generate("once upon a time", params, use_tqdm=False)
    assert [completion.index for completion in first.outputs] == [0, 1, 2]
    assert [c.token_ids for c in first.outputs] == [c.token_ids for c in second.outputs]
    assert len({tuple(completion.token_ids) for completion in first.outputs}) > 1


def test_a_stop_string_ends_an_answer(llm: LLM) -> None:
    (whole,) = texts(
        llm.generate("count", SamplingParams(temperature=0, max_tokens=20, ignore_eos=True), use_tqdm=False)
    )
    stop = whole[5:7]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, stop=(stop,))
    (output,) = llm.generate("count", params, use_tqdm=False)
    assert output.outputs[0].text == whole[: whole.index(stop)]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", stop)


def test_chat_renders_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False)
    assert output.prompt == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert len(output.outputs[0].token_ids) == 8
    several = llm.chat([messages, [{"role": "user", "content": "bye"}]], GREEDY, use_tqdm=False)
    assert several[0].outputs[0].token_ids == output.outputs[0].token_ids
    assert several[1].prompt_token_ids != several[0].prompt_token_ids


def test_streams_say_the_same_as_whole_answers(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    assert "".join(llm.stream_chat(messages, GREEDY)) == texts(llm.chat(messages, GREEDY, use_tqdm=False))[0]
    assert "".join(llm.stream("a hot", GREEDY)) == texts(llm.generate("a hot", GREEDY, use_tqdm=False))[0]


def test_leaving_a_stream_early_leaves_nothing_behind(llm: LLM) -> None:
    pieces = llm.stream("a hot seat", SamplingParams(max_tokens=100, ignore_eos=True))
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    assert llm._components.scheduler.num_running == 0


class BarThatIsInterrupted(io.StringIO):
    """A progress bar at whose second update somebody presses Ctrl-C."""

    updates = 0

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        assert "toks/s" in text

    def update(self, count: int) -> None:
        BarThatIsInterrupted.updates += count
        if BarThatIsInterrupted.updates == 2:
            raise KeyboardInterrupt


def test_ctrl_c_aborts_all_and_the_model_lives_on(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=4 * (index + 1), ignore_eos=True) for index in range(8)]
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a hot seat"] * 8, params, use_tqdm=BarThatIsInterrupted)
    assert not llm._components.scheduler.num_running
    assert not llm._components.scheduler.num_waiting
    assert len(texts(llm.generate("again", GREEDY, use_tqdm=False))) == 1


def test_progress_is_shown_on_standard_error(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], GREEDY)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "2/2" in captured.err
    assert "output:" in captured.err


@pytest.mark.parametrize(
    "prompt", [7, {"text": "x"}, {"prompt_token_ids": [99999]}, {"prompt_token_ids": []}, "x " * 600]
)
def test_a_wrong_prompt_is_refused_before_anything_runs(llm: LLM, prompt: object) -> None:
    with pytest.raises(InvalidRequestError):
        llm.generate(["fine", prompt], GREEDY, use_tqdm=False)
    assert not llm._components.scheduler.has_work


def test_lists_of_different_lengths_are_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="2 prompts, but 1"):
        llm.generate(["a", "b"], [GREEDY], use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="2 prompts, but 1 priorities"):
        llm.generate(["a", "b"], GREEDY, use_tqdm=False, priority=[1])


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert llm.generate([], GREEDY, use_tqdm=False) == []


def test_an_unknown_option_gets_the_nearest_one(model: str) -> None:
    with pytest.raises(ConfigError, match="unknown option max_seqs for LLM; did you mean max_num_seqs"):
        LLM(model, max_seqs=3)


def test_closing_twice_is_fine(model: str, tmp_path: Path) -> None:
    llm = LLM(model, runner="reference", max_num_seqs=1)
    llm.close()
    llm.close()
