"""Drafters that know the answer, and spoil it as often as they are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from core.fake_runner import VOCABULARY_SIZE, expected_output
from hotseat.core.request import Request

Answer = Callable[[Request, int], Sequence[int]]  # the request's output, at least so many tokens of it


def fake_answer(request: Request, length: int) -> Sequence[int]:
    """Return what the fake runner answers."""
    return expected_output(request.prompt_token_ids, length)


class OracleDrafter:
    """Proposes the answer itself; each token is right with probability ``rate``, and else a random one."""

    def __init__(self, answer: Answer, rate: float, *, vocab_size: int = VOCABULARY_SIZE, seed: int = 0) -> None:
        self.ended_ids: list[str] = []
        self._answer = answer
        self._rate = rate
        self._vocab_size = vocab_size
        self._random = Random(seed)

    def propose(self, request: Request, num_tokens: int) -> list[int]:
        """Return the next tokens, spoiled."""
        known = len(request.output_token_ids)
        true = list(self._answer(request, known + num_tokens))[known : known + num_tokens]
        assert true or self._rate < 1, "the answer is known"
        return [
            token_id if self._random.random() < self._rate else self._random.randrange(self._vocab_size)
            for token_id in true
        ]

    def ended(self, request: Request) -> None:
        """Note it."""
        self.ended_ids.append(request.id)
