"""Which sampling parameters are refused, and how."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hotseat.core.request import MAX_STOP_STRINGS, Request, RequestId, RequestStatus, SamplingParams
from hotseat.errors import InvalidRequestError


def test_defaults_are_valid() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.max_tokens) == (1, 1.0, 16)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("n", 0, "between 1 and 128, not 0"),
        ("n", 129, "between 1 and 128, not 129"),
        ("n", True, "a whole number, not True"),
        ("n", 2.0, "a whole number, not 2.0"),
        ("temperature", -0.1, "at least 0, not -0.1"),
        ("temperature", math.nan, "a finite number, not nan"),
        ("temperature", math.inf, "a finite number, not inf"),
        ("temperature", "hot", "a finite number, not 'hot'"),
        ("top_p", 0.0, "greater than 0 and at most 1, not 0.0"),
        ("top_p", 1.01, "greater than 0 and at most 1, not 1.01"),
        ("top_k", -2, "between 0 and 2147483647, not -2"),
        ("min_p", -0.01, "at least 0 and at most 1, not -0.01"),
        ("min_p", 1.5, "at least 0 and at most 1, not 1.5"),
        ("presence_penalty", 2.1, "at least -2 and at most 2, not 2.1"),
        ("frequency_penalty", -2.1, "at least -2 and at most 2, not -2.1"),
        ("repetition_penalty", 0.0, "greater than 0, not 0.0"),
        ("repetition_penalty", math.nan, "a finite number, not nan"),
        ("seed", 2**63, "between -9223372036854775808 and 9223372036854775807"),
        ("seed", 1.5, "a whole number, not 1.5"),
        ("max_tokens", -1, "between 0 and 2147483647, not -1"),
        ("min_tokens", -1, "between 0 and 2147483647, not -1"),
        ("min_tokens", 17, "must not exceed max_tokens = 16, not 17"),
        ("logprobs", 21, "between 0 and 20, not 21"),
        ("logprobs", 10**9, "between 0 and 20, not 1000000000"),
        ("prompt_logprobs", -1, "between 0 and 20, not -1"),
        ("stop", ("",), "strings that are not empty, not ''"),
        ("stop", (None,), "strings that are not empty, not None"),
        ("stop", ("a",) * (MAX_STOP_STRINGS + 1), "at most 16 strings, not 17"),
        ("stop", 5, "must be a list, not 5"),
        ("stop_token_ids", (None,), "a whole number, not None"),
        ("stop_token_ids", (-1,), "between 0 and 2147483647, not -1"),
        ("logit_bias", {"AI": -100}, "a whole number, not 'AI'"),
        ("logit_bias", {1: 101.0}, "at least -100 and at most 100, not 101.0"),
        ("logit_bias", {1: math.nan}, "a finite number, not nan"),
        ("logit_bias", ((1, 2, 3),), "pairs of a token id and a bias, not (1, 2, 3)"),
        ("allowed_token_ids", (), "must not be empty"),
        ("allowed_token_ids", ("a",), "a whole number, not 'a'"),
        ("ignore_eos", 1, "must be true or false, not 1"),
    ],
)
def test_value_out_of_range_is_refused_with_field_and_value(name: str, value: Any, rule: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert str(caught.value).startswith(f"{name} ")
    assert rule in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "meaning"),
    [
        ("top_k", -1, 0),
        ("seed", -1, None),
        ("stop", "\n", ("\n",)),
        ("stop", ["a", "b"], ("a", "b")),
        ("stop_token_ids", [1, 2], (1, 2)),
        ("logit_bias", {5: -100}, ((5, -100),)),
        ("allowed_token_ids", [3], (3,)),
        ("max_tokens", None, None),
        ("max_tokens", 0, 0),
        ("temperature", 0, 0),
        ("seed", -(2**63), -(2**63)),
        ("logprobs", 20, 20),
    ],
)
def test_value_is_taken_and_brought_to_one_form(name: str, value: Any, meaning: Any) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == meaning


def test_min_tokens_needs_no_limit_when_max_tokens_is_none() -> None:
    assert SamplingParams(min_tokens=1000, max_tokens=None).min_tokens == 1000


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(temperature="x" * 10_000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 120


def make_request(status: RequestStatus) -> Request:
    return Request(id=RequestId("r"), prompt_token_ids=[1], params=SamplingParams(), arrived_at=0.0, status=status)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (RequestStatus.WAITING, RequestStatus.RUNNING),
        (RequestStatus.WAITING, RequestStatus.FINISHED),
        (RequestStatus.RUNNING, RequestStatus.WAITING),
        (RequestStatus.RUNNING, RequestStatus.FINISHED),
    ],
)
def test_status_changes_along_the_table(before: RequestStatus, after: RequestStatus) -> None:
    request = make_request(before)
    request.move_to(after)
    assert request.status is after


@pytest.mark.parametrize("after", list(RequestStatus))
def test_what_is_finished_stays_finished(after: RequestStatus) -> None:
    with pytest.raises(AssertionError, match="no way from finished"):
        make_request(RequestStatus.FINISHED).move_to(after)
