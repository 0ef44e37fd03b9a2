"""The sampling parameters that came from vLLM: bad words, logits processors, truncation, no text."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hotseat import LLM, SamplingParams
from hotseat.errors import InvalidRequestError

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
RUNNERS = ("reference", "native")


@pytest.fixture(scope="module", params=RUNNERS)
def llm(request: pytest.FixtureRequest, tiny_model: str) -> Iterator[LLM]:
    with LLM(tiny_model, runner=request.param, dtype="fp32", max_num_seqs=4) as made:
        yield made


def tokens(llm: LLM, prompts: Any, params: Any) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]


def test_a_bad_word_of_one_token_is_never_written(llm: LLM) -> None:
    (free,) = tokens(llm, "a hot seat", GREEDY)
    tokenizer = llm.get_tokenizer()
    word = next(text for token in free if tokenizer.encode(text := tokenizer.decode(token)) == [token])
    (kept,) = tokens(llm, "a hot seat", GREEDY.clone(bad_words=[word]))
    assert tokenizer.encode(word)[0] not in kept
    assert len(kept) == 8


def test_a_bad_word_of_two_tokens_loses_its_second_after_its_first(llm: LLM) -> None:
    (free,) = tokens(llm, "a hot seat", GREEDY)
    tokenizer = llm.get_tokenizer()
    at = next(
        i
        for i in range(7)
        if (text := tokenizer.decode(free[i : i + 2])).strip() == text and tokenizer.encode(text) == free[i : i + 2]
    )
    (kept,) = tokens(llm, "a hot seat", GREEDY.clone(bad_words=[tokenizer.decode(free[at : at + 2])]))
    assert kept[: at + 1] == free[: at + 1]
    assert kept[at + 1] != free[at + 1]
    assert free[at : at + 2] not in [kept[i : i + 2] for i in range(7)]


def test_bad_words_that_do_not_come_change_nothing(llm: LLM) -> None:
    params = GREEDY.clone(bad_words=["zebra"])
    assert tokens(llm, "a hot seat", params) == tokens(llm, "a hot seat", GREEDY)


def test_bad_words_hold_beside_a_form(llm: LLM) -> None:
    form = {"regex": "[ab]{6}"}
    params = SamplingParams(temperature=0, max_tokens=40, structured_outputs=form, bad_words=["a"])
    (output,) = llm.generate("x", params, use_tqdm=False)
    assert set(output.outputs[0].text) <= {"a", "b"}
    assert llm.get_tokenizer().encode("a")[0] not in output.outputs[0].token_ids


def test_a_logits_processor_decides(llm: LLM) -> None:
    seen: list[tuple[list[int], int]] = []

    def only_seven(output_ids: list[int], logits: np.ndarray) -> np.ndarray:
        seen.append((output_ids, len(logits)))
        changed = np.full_like(logits, -np.inf)
        changed[7] = 0
        return changed

    assert tokens(llm, "a hot seat", GREEDY.clone(logits_processors=[only_seven])) == [[7] * 8]
    assert [len(ids) for ids, _ in seen] == list(range(8))
    assert {size for _, size in seen} == {llm.get_tokenizer().vocab_size}


def test_a_logits_processor_of_three_arguments_has_the_prompt(llm: LLM) -> None:
    prompts: list[list[int]] = []

    def look(prompt_ids: list[int], output_ids: list[int], logits: np.ndarray) -> np.ndarray:
        prompts.append(prompt_ids)
        return logits

    ids = llm.get_tokenizer().encode("a hot seat")
    assert tokens(llm, "a hot seat", GREEDY.clone(logits_processors=[look])) == tokens(llm, "a hot seat", GREEDY)
    assert prompts == [ids] * 8


def test_log_probabilities_are_of_the_processed_token_and_the_unprocessed_row(llm: LLM) -> None:
    def second(output_ids: list[int], logits: np.ndarray) -> np.ndarray:
        logits[int(np.argmax(logits))] = -np.inf
        return logits

    params = GREEDY.clone(logits_processors=[second], logprobs=2, prompt_logprobs=1, max_tokens=1)
    (output,) = llm.generate("a hot seat", params, use_tqdm=False)
    (entry,) = output.outputs[0].logprobs or []
    assert entry[output.outputs[0].token_ids[0]].rank == 2


@pytest.mark.parametrize("broken", [lambda ids, row: row[:3], lambda ids, row: row * np.nan, lambda ids, row: 1 / 0])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_processor_that_fails_ends_its_own_request(llm: LLM, broken: Any) -> None:
    params = [GREEDY, GREEDY.clone(logits_processors=[broken])]
    whole, failed = llm.generate(["a hot seat"] * 2, params, use_tqdm=False)
    assert failed.outputs[0].finish_reason == "error"
    assert [whole.outputs[0].token_ids] == tokens(llm, "a hot seat", GREEDY)


def test_processors_and_bad_words_give_the_same_alone_and_in_a_crowd(llm: LLM) -> None:
    def flatten(output_ids: list[int], logits: np.ndarray) -> np.ndarray:
        return logits / np.float32(1 + len(output_ids) % 3)

    plain = SamplingParams(max_tokens=12, seed=3, ignore_eos=True)
    changed = [plain.clone(logits_processors=[flatten]), plain.clone(bad_words=["e", "th"]), plain]
    prompts = [f"{i} number of the crowd" for i in range(9)]
    scoring = plain.clone(prompt_logprobs=1)  # whose rows of logits share the step's memory
    together = tokens(llm, [*prompts, "score me"], [*(changed * 3), scoring])[:9]
    assert together == [tokens(llm, prompt, params)[0] for prompt, params in zip(prompts, changed * 3, strict=True)]


def test_truncation_keeps_the_end_of_the_prompt(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("one two three four five")
    (output,) = llm.generate("one two three four five", GREEDY.clone(truncate_prompt_tokens=3), use_tqdm=False)
    assert output.prompt_token_ids == ids[-3:]
    (whole,) = llm.generate("one two", GREEDY.clone(truncate_prompt_tokens=-1), use_tqdm=False)
    assert whole.prompt_token_ids == llm.get_tokenizer().encode("one two")
    long = llm.generate([ids * 80], GREEDY.clone(truncate_prompt_tokens=-1), use_tqdm=False)
    assert long[0].prompt_token_ids == (ids * 80)[-len(long[0].prompt_token_ids) :]
    assert long[0].outputs[0].finish_reason == "length"


def test_without_detokenizing_there_are_tokens_and_no_text(llm: LLM) -> None:
    (output,) = llm.generate("a hot seat", GREEDY.clone(detokenize=False), use_tqdm=False)
    assert output.outputs[0].text == ""
    assert [output.outputs[0].token_ids] == tokens(llm, "a hot seat", GREEDY)


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"bad_words": [""]}, "bad_words must hold texts"),
        ({"bad_words": ["a"] * 257}, "bad_words takes at most 256"),
        ({"logits_processors": [3]}, "logits_processors must hold callables"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens must be between 1"),
        ({"detokenize": False, "stop": ["a"]}, "detokenize must be true where stop strings"),
        ({"output_kind": 1}, "output_kind must be a RequestOutputKind"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], rule: str) -> None:
    with pytest.raises(InvalidRequestError, match=rule):
        SamplingParams(**values)


def test_a_seed_of_the_engine_fixes_a_whole_run(tiny_model: str) -> None:
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    runs = []
    for seed in (5, 5, 6):
        with LLM(tiny_model, runner="reference", seed=seed) as made:
            runs.append(tokens(made, ["a hot seat", "a hot seat"], params))
    assert runs[0] == runs[1] != runs[2]
    assert runs[0][0] != runs[0][1]


def test_a_default_limit_holds_for_requests_that_name_none(tiny_model: str) -> None:
    with LLM(tiny_model, runner="reference", default_max_tokens=5) as made:
        assert len(tokens(made, "a", SamplingParams(max_tokens=None, ignore_eos=True))[0]) == 5
        assert len(tokens(made, "a", SamplingParams(max_tokens=9, ignore_eos=True))[0]) == 9
