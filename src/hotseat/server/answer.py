"""What an answer is about, and what has been generated of it so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hotseat.core.batch import TokenLogprobs
from hotseat.generation import OutputDelta
from hotseat.server.errors import ApiError

__all__ = ["Answer", "NumberedDelta", "PromptFacts", "Tally", "Usage"]


class NumberedDelta(NamedTuple):
    """A delta and which of the request's prompts it belongs to."""

    prompt: int
    delta: OutputDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The facts of one answer that do not change while it is generated."""

    id: str
    model: str
    created: int
    prompts: Sequence[str | list[int]]  # as sent; a chat has one
    n: int = 1
    is_chat: bool = False
    logprobs: int | None = None  # alternatives to show for each token
    skip_special_tokens: bool = True
    tokens_as_ids: bool = False
    return_token_ids: bool = False
    prompt_logprobs: bool = False
    echo: bool = False
    echo_text: str = ""  # chat: the message that the answer continues, when it is to be repeated
    max_tokens: int | None = None
    include_usage: bool = False
    continuous_usage: bool = False
    role: str = "assistant"

    @property
    def num_choices(self) -> int:
        return self.n * len(self.prompts)

    @property
    def request_ids(self) -> list[str]:
        """What the generations of its prompts are called."""
        if len(self.prompts) == 1:
            return [self.id]
        return [f"{self.id}-p{number}" for number in range(len(self.prompts))]


@dataclass(slots=True)
class PromptFacts:
    """What became known of a prompt when its generation began."""

    token_ids: list[int]
    num_cached_tokens: int = 0
    logprobs: list[TokenLogprobs | None] | None = None


class Usage(NamedTuple):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def as_json(self) -> bytes:
        """Return the ``usage`` object."""
        prompt, completion, cached = self
        return (
            b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}'
            % (prompt, completion, prompt + completion, cached)
        )


@dataclass(slots=True)
class Tally:
    """Count the tokens of an answer and know which choices have not ended."""

    answer: Answer
    prompts: dict[int, PromptFacts] = field(default_factory=dict)
    completion_tokens: dict[int, int] = field(init=False)
    unfinished: set[int] = field(init=False)

    def __post_init__(self) -> None:
        choices = range(self.answer.num_choices)
        self.completion_tokens = dict.fromkeys(choices, 0)
        self.unfinished = set(choices)

    def add(self, item: NumberedDelta) -> int:
        """Take note of ``item`` and return the index of its choice.

        Raises:
            ApiError: the choice failed or ran out of time.
        """
        prompt, delta = item
        choice = prompt * self.answer.n + delta.index
        if delta.prompt_token_ids is not None:
            self._note_prompt(prompt, delta.prompt_token_ids, delta)
        self.completion_tokens[choice] += len(delta.token_ids)
        if delta.finish_reason is not None:
            _raise_failure(delta)
            self.unfinished.discard(choice)
        return choice

    def usage(self, choice: int | None = None) -> Usage:
        """Return the tokens of all choices, or of one."""
        if choice is None:
            facts = list(self.prompts.values())
            completion = sum(self.completion_tokens.values())
        else:
            facts = [self.prompts[choice // self.answer.n]]
            completion = self.completion_tokens[choice]
        prompt_tokens = sum(len(fact.token_ids) for fact in facts)
        return Usage(prompt_tokens, completion, sum(fact.num_cached_tokens for fact in facts))

    def _note_prompt(self, prompt: int, token_ids: list[int], delta: OutputDelta) -> None:
        logprobs: list[TokenLogprobs | None] | None = None
        if delta.prompt_logprobs is not None:
            logprobs = [None, *delta.prompt_logprobs]
        self.prompts[prompt] = PromptFacts(token_ids, delta.num_cached_tokens, logprobs)


def _raise_failure(delta: OutputDelta) -> None:
    if delta.finish_reason == "error":
        raise ApiError(500, delta.error or "The engine could not compute this request.")
    if delta.finish_reason == "timeout":
        limit = f": {delta.error}" if delta.error else ""
        raise ApiError(504, f"The request ran out of time{limit}.", retry=True)
