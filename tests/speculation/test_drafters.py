"""Drafters without a model: what they propose, for whom, and what they forget."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from hotseat.core.request import Request, RequestId, SamplingParams
from hotseat.speculation import NgramDrafter, SuffixDrafter, UserDrafter
from hotseat.speculation import drafters as drafters_module
from hotseat.speculation.token_index import SEPARATOR, Match, TokenIndex


def make_request(prompt: list[int], output: list[int] | None = None, name: str = "r", salt: str = "") -> Request:
    """Return a request that has written ``output``."""
    return Request(
        id=RequestId(name),
        prompt_token_ids=prompt,
        params=SamplingParams(),
        arrived_at=0.0,
        output_token_ids=list(output or []),
        cache_salt=salt,
    )


def longest_match(tokens: list[int], max_length: int) -> int:
    """Return the length of the longest end of ``tokens`` that occurs before, by looking everywhere."""
    best = 0
    for follower in range(1, len(tokens)):
        length = 0
        while length < min(follower, max_length) and tokens[follower - 1 - length] == tokens[-1 - length]:
            length += 1
        best = max(best, length)
    return best


@pytest.mark.parametrize("seed", range(20))
def test_a_text_that_grows_in_pieces_is_searched_as_a_whole(seed: int) -> None:
    random = Random(seed)
    index = TokenIndex(2)
    tokens: list[int] = []
    for _ in range(40):
        piece = [random.randint(0, 5) for _ in range(random.randint(1, 4))]
        tokens += piece
        index.extend(piece)
        match = index.find(index.tokens, 6)
        assert (match is not None) == (longest_match(tokens, 6) >= 2)
        if match is not None:  # only the latest places are compared, so it may not be the longest
            start = match.follower
            assert tokens[start - match.length : start] == tokens[len(tokens) - match.length :]


def test_the_longest_of_the_latest_places_counts() -> None:
    index = TokenIndex(2)
    index.extend([1, 2, 3, 4, 50, 9, 2, 3, 4, 60, 7, 3, 4, 70, 1, 2, 3, 4])
    assert index.find(index.tokens, 24) == Match(follower=4, length=4)
    assert index.find(index.tokens, 3) == Match(follower=9, length=3)
    assert index.find(index.tokens, 2) == Match(follower=13, length=2)


def test_a_loop_goes_on_beyond_the_end_of_the_text() -> None:
    drafter = NgramDrafter(2, 8)
    assert list(drafter.propose(make_request([9, 1, 2, 3, 1, 2, 3, 1, 2, 3]), 7)) == [1, 2, 3, 1, 2, 3, 1]


def test_ngrams_look_into_prompt_and_output() -> None:
    drafter = NgramDrafter(3, 8)
    request = make_request([1, 2, 3, 4, 5, 6], [7, 8, 1, 2])
    assert list(drafter.propose(request, 4)) == []
    request.output_token_ids.append(3)
    assert list(drafter.propose(request, 3)) == [4, 5, 6]


def test_a_draft_is_no_longer_than_what_matched() -> None:
    text = list(range(10, 30))
    assert list(SuffixDrafter().propose(make_request([*text, *text[:4]]), 16)) == text[4:8]
    assert list(SuffixDrafter(max_spec_factor=2.0).propose(make_request([*text, *text[:4]]), 16)) == text[4:12]


def test_recent_answers_serve_others_under_the_same_salt_alone() -> None:
    drafter = SuffixDrafter()
    answer = list(range(100, 120))
    drafter.ended(make_request([1], answer, "first", salt="tenant"))
    asks = {"salt": "tenant"}, {"salt": ""}, {"salt": "other"}
    found = [list(drafter.propose(make_request([5], answer[:6], str(ask), **ask), 6)) for ask in asks]
    assert found == [answer[6:12], [], []]


def test_a_draft_ends_with_the_answer_that_it_comes_from() -> None:
    drafter = SuffixDrafter()
    drafter.ended(make_request([1], [11, 12, 13, 14, 15], "first"))
    drafter.ended(make_request([1], [21, 22, 23, 24, 25], "second"))
    proposed = list(drafter.propose(make_request([5], [11, 12, 13]), 3))
    assert proposed == [14, 15]
    assert SEPARATOR not in proposed


def test_old_answers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafters_module, "MAX_STORED_TOKENS", 100)
    drafter = SuffixDrafter()
    answers = [[1000 * i + j for j in range(40)] for i in range(8)]
    for i, answer in enumerate(answers):
        drafter.ended(make_request([1], answer, str(i)))
    asks = [make_request([5], answer[:10], f"new {i}") for i, answer in enumerate(answers)]
    found = [bool(drafter.propose(ask, 4)) for ask in asks]
    drafter_of_none = SuffixDrafter(max_answers=0)
    drafter_of_none.ended(make_request([1], answers[0]))
    assert found[-1]
    assert not found[0]
    assert sum(found) <= 5
    assert not drafter_of_none.propose(make_request([5], answers[0][:10], "none"), 4)


class Broken:
    """Raises, or proposes what is no token."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.num_asked = 0

    def propose(self, token_ids: list[int], k: int) -> Any:
        """Fail."""
        self.num_asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", [RuntimeError("no"), [5, -1], [500], ["x"], None])
def test_a_drafter_that_fails_is_not_asked_again(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    broken = Broken(answer)
    drafter = UserDrafter(broken, vocab_size=500)
    request = make_request([1, 2])
    assert list(drafter.propose(request, 4)) == list(drafter.propose(request, 4)) == []
    assert broken.num_asked == 1
    assert "is not asked any more" in caplog.text


def test_a_users_drafter_gets_all_tokens_and_may_propose_more_than_fit() -> None:
    seen: list[list[int]] = []

    class Own:
        def propose(self, token_ids: list[int], k: int) -> list[int]:
            seen.append(token_ids)
            return [7] * (k + 3)

    assert list(UserDrafter(Own(), 500).propose(make_request([1, 2], [3]), 4)) == [7] * 4
    assert seen == [[1, 2, 3]]
