"""Simulated requests: prompts, content ids, outputs."""

from __future__ import annotations

from typing import Any

from hotseat.core.request import Request
from hotseat.simulator.arrivals import EOS_TOKEN_ID, Arrival, Script, rescaled


def arrival(**fields: Any) -> Arrival:
    defaults: dict[str, Any] = {"id": "r", "arrival_s": 0.0, "prompt_len": 10, "output_len": 6, "content_block": 4}
    return Arrival(**(defaults | fields))


def sequence(serial: int, **fields: Any) -> list[int]:
    """Return prompt and output as a run would see them."""
    one = arrival(**fields)
    script = Script(one, serial)
    return script.prompt() + [script.token_at(one.prompt_len + index) for index in range(one.output_len)]


def shared(first: list[int], second: list[int]) -> int:
    """Return how many tokens two sequences begin with in common."""
    return next(
        (index for index, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), len(first)
    )


def test_requests_without_content_ids_share_not_even_their_first_token() -> None:
    assert shared(sequence(0), sequence(1)) == 0


def test_equal_content_ids_give_equal_tokens_up_to_where_they_end() -> None:
    assert shared(sequence(0, content_ids=(7, 8)), sequence(1, content_ids=(7, 8))) == 8
    assert shared(sequence(0, content_ids=(7, 8)), sequence(1, content_ids=(7, 9))) == 4
    assert shared(sequence(0, content_ids=(0,)), sequence(1, content_ids=(1,))) == 0


def test_a_content_id_is_no_other_requests_own_content() -> None:
    own = {sequence(serial)[0] for serial in range(50)}
    named = {sequence(0, content_ids=(content_id,))[0] for content_id in range(50)}
    assert len(own) == len(named) == 50
    assert own.isdisjoint(named)


def test_a_prompt_cuts_its_last_content_block() -> None:
    tokens = arrival(prompt_len=6, content_ids=(7, 8)).to_request(0).prompt_token_ids
    assert len(tokens) == 6
    assert shared(tokens, sequence(1, prompt_len=8, content_ids=(7, 8))) == 6


def test_two_requests_with_the_same_prompt_give_different_answers() -> None:
    same = {"prompt_len": 8, "content_ids": (7, 8)}
    assert shared(sequence(0, **same), sequence(1, **same)) == 8


def test_content_ids_beyond_the_prompt_name_the_answer() -> None:
    first = sequence(0, prompt_len=6, output_len=6, content_ids=(1, 2, 3))
    next_turn = sequence(1, prompt_len=20, content_ids=(1, 2, 3, 4))
    assert shared(first, next_turn) == 12


def test_content_ids_that_name_the_prompt_alone_leave_the_answer_its_own() -> None:
    fields: dict[str, Any] = {"prompt_len": 6, "content_ids": (1, 2), "content_is_prompt": True}
    assert shared(sequence(0, **fields), sequence(1, **fields)) == 6


def test_a_request_asks_for_exactly_its_output_unless_told_otherwise() -> None:
    request = arrival().to_request(0)
    assert request.params.max_tokens == 6
    assert request.params.ignore_eos
    asking = arrival(max_tokens=100)
    assert asking.to_request(0).params.max_tokens == 100
    script = Script(asking, 0)
    assert [script.token_at(position) == EOS_TOKEN_ID for position in range(10, 16)] == [False] * 5 + [True]


def test_a_request_carries_what_its_line_says() -> None:
    request: Request = arrival(arrival_s=2.0, priority=-3, tenant="acme", deadline_ms=500.0).to_request(0)
    assert (request.arrived_at, request.priority, request.tenant, request.deadline_at) == (2.0, -3, "acme", 2.5)


def test_speeding_up_moves_arrivals_and_keeps_patience_and_deadlines() -> None:
    (one,) = rescaled([arrival(arrival_s=10.0, abort_at_s=13.0, deadline_ms=700.0, added_s=10.5)], 4.0)
    assert (one.arrival_s, one.abort_at_s, one.added_s, one.deadline_ms) == (2.5, 5.5, 3.0, 700.0)
