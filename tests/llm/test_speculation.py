"""LLM with speculative_config: the answers of the plain run, to the bit, and what was drafted in metrics."""

from collections.abc import Sequence
from typing import Any

import pytest

from hotseat import LLM, SamplingParams
from hotseat.errors import ConfigError

PROMPTS = ["one two one two one two one", "a b c d e f a b c d e f a b", "the hot seat", "x y x y x y x y"]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=60, ignore_eos=True),
    SamplingParams(temperature=1, seed=3, max_tokens=60, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.2, seed=4, max_tokens=50, stop=["z", "qu"]),
    SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, n=1, repetition_penalty=1.1, bad_words=["the"]),
]


class Guess:
    """A drafter of one's own: the last token again."""

    def propose(self, token_ids: list[int], k: int) -> list[int]:
        """Return the last token k times."""
        return token_ids[-1:] * k


def answers(model: str, **options: Any) -> Sequence[Any]:
    """Return what each prompt gets: text, tokens, log-probabilities and the end."""
    with LLM(model, max_num_seqs=4, max_model_len=256, **options) as llm:
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    return [
        (one.text, one.token_ids, one.logprobs, one.finish_reason, one.stop_reason)
        for output in outputs
        for one in output.outputs
    ]


@pytest.mark.parametrize("method", ["ngram", "suffix", "llm.test_speculation:Guess"])
def test_answers_are_those_of_the_plain_run(tiny_model: str, method: str) -> None:
    config = {"method": method, "num_speculative_tokens": 6, "adaptive": False}
    assert answers(tiny_model, speculative_config=config) == answers(tiny_model)


def test_an_unknown_method_is_refused(tiny_model: str) -> None:
    with pytest.raises(ConfigError, match="speculative_config: method must be"):
        LLM(tiny_model, speculative_config={"method": "eagle3"})
