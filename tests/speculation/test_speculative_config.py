"""The option speculative_config: vLLM's names, and errors that say what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from hotseat.errors import ConfigError
from hotseat.speculation import SpeculativeConfig


def test_what_is_left_out_has_a_default() -> None:
    ngram, suffix = (SpeculativeConfig.from_values({"method": method}) for method in ("ngram", "suffix"))
    assert (ngram.num_tokens, ngram.lookup, suffix.num_tokens) == (8, (3, 24), 16)


@pytest.mark.parametrize(
    ("values", "lookup"),
    [
        ({"prompt_lookup_max": 5}, (5, 5)),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 5}, (2, 5)),
        ({"prompt_lookup_min": 4}, (4, 24)),
    ],
)
def test_one_end_of_the_lookup_gives_the_other(values: dict[str, int], lookup: tuple[int, int]) -> None:
    assert SpeculativeConfig.from_values({"method": "ngram", **values}).lookup == lookup


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "method is missing"),
        ({"method": "eagle"}, "method must be ngram, suffix"),
        ({"method": "draft_model", "model": "x"}, "model is not known"),
        ({"method": "ngram", "num_speculative_tokens": 65}, "num_speculative_tokens must be from 1 to 64, not 65"),
        ({"method": "ngram", "num_speculative_tokens": "5"}, "num_speculative_tokens must be of type int"),
        ({"method": "ngram", "adaptive": 1}, "adaptive must be of type bool"),
        ({"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 4}, "prompt_lookup_max must be from 5"),
        ({"method": "no_such_module:Class"}, "cannot be used: No module named"),
        ({"method": "collections:OrderedDict"}, r"has no method propose\(token_ids, k\)"),
    ],
)
def test_a_wrong_value_is_named(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=f"speculative_config: .*{text}"):
        SpeculativeConfig.from_values(values).make(4, 500)


def test_a_step_verifies_what_its_seats_may_draft_up_to_a_limit() -> None:
    config = SpeculativeConfig.from_values({"method": "ngram", "num_speculative_tokens": 5})
    assert [config.max_num_drafts(seats) for seats in (1, 4, 256)] == [5, 20, 64]
