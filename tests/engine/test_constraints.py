"""A grammar masks its own request alone, goes on with its tokens, and ends it when it cannot."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from engine.fakes import FakeRunner, Witness, assert_all_free, expected_tokens, make_request, make_scheduler
from hotseat.core.batch import Batch, StepOutput
from hotseat.core.request import Request
from hotseat.engine import StepLoop, VirtualClock
from hotseat.errors import GrammarError


class ScriptedConstraint:
    """Takes ``tokens`` in their order; fails to tell a mask at the positions ``mute``."""

    ends_answer = True

    def __init__(self, tokens: Iterable[int], mute: Iterable[int] = ()) -> None:
        self.tokens = list(tokens)
        self.num_accepted = 0
        self._mute = set(mute)

    def mask(self) -> bytes:
        if self.num_accepted in self._mute:
            raise GrammarError("out of fuel")
        return self.tokens[self.num_accepted].to_bytes(4, "little")

    def accept(self, token_id: int) -> None:
        if token_id != self.tokens[self.num_accepted]:
            raise GrammarError(f"token {token_id} is not {self.tokens[self.num_accepted]}")
        self.num_accepted += 1

    def rollback(self, num_tokens: int) -> None:
        self.num_accepted -= num_tokens


class MaskedRunner(FakeRunner):
    """Remembers the masks that it was given, by request."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: dict[str, list[int]] = {}

    def execute(self, batch: Batch) -> StepOutput:
        output = super().execute(batch)
        by_seat = {chunk.seat: chunk.request_id for chunk in batch.chunks}
        for seat, words, _ in batch.token_masks:
            self.masks.setdefault(by_seat[seat], []).append(int.from_bytes(words, "little"))
        return output


def constrained(request: Request, constraint: ScriptedConstraint) -> Request:
    request.constraint = constraint
    return request


def run(requests: list[Request], **options: object) -> tuple[dict[str, list[int]], Witness, MaskedRunner]:
    scheduler, runner, witness = make_scheduler(**options), MaskedRunner(), Witness()
    loop = StepLoop(scheduler, runner, clock=VirtualClock(), sinks=[witness])
    tokens: dict[str, list[int]] = {request.id: [] for request in requests}
    for updates in loop.run(requests):
        for update in updates:
            tokens[update.request_id] += update.new_token_ids
    assert_all_free(scheduler)
    return tokens, witness, runner


def test_only_a_constrained_request_is_masked_once_for_each_token_that_it_samples() -> None:
    one, other = make_request("one", 300), make_request("other")
    expected = expected_tokens(one)
    tokens, _, runner = run([constrained(one, ScriptedConstraint(expected)), other], max_num_batched_tokens=64)
    assert tokens == {"one": expected, "other": expected_tokens(other)}
    assert runner.masks == {"one": expected}


@pytest.mark.parametrize("mute", [(), (3,)])
def test_a_grammar_that_fails_ends_its_request_alone(mute: tuple[int, ...]) -> None:
    one, other = make_request("one"), make_request("other")
    expected = expected_tokens(one)
    wrong = expected if mute else [*expected[:3], 999, *expected[4:]]
    tokens, witness, _ = run([constrained(one, ScriptedConstraint(wrong, mute)), other])
    assert tokens == {"one": expected[:3], "other": expected_tokens(other)}
    assert witness.ends == {"one": "error", "other": "length"}
    errors = [update.error for request, update in witness.finished if request.id == "one"]
    assert errors[0] is not None
    assert ("out of fuel" if mute else "is not 999") in errors[0]


def test_a_grammar_goes_on_after_preemptions() -> None:
    requests = [make_request(f"r{i}", 20, max_tokens=60) for i in range(4)]
    constraints = [ScriptedConstraint(expected_tokens(request)) for request in requests]
    for request, constraint in zip(requests, constraints, strict=True):
        request.constraint = constraint
    tokens, witness, _ = run(requests, num_kv_blocks=12, max_num_seqs=4)
    assert tokens == {request.id: expected_tokens(request) for request in requests}
    assert sum(request.num_preemptions for request, _ in witness.finished) > 0
    assert [constraint.num_accepted for constraint in constraints] == [60] * 4


def test_an_end_under_a_grammar_counts_before_min_tokens_and_although_ends_are_ignored() -> None:
    request = make_request("one", 5, max_tokens=50, min_tokens=40)
    expected = expected_tokens(request)
    request.eos_token_ids = frozenset({expected[4]})
    tokens, witness, _ = run([constrained(request, ScriptedConstraint(expected))])
    assert tokens == {"one": expected[:5]}
    assert witness.ends == {"one": "stop"}
    assert witness.finished[0][1].stop_token_id is None
