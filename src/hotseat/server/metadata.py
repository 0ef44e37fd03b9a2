"""Metadata of a response and the usage counted so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hotseat.core.batch import TokenLogprobs
from hotseat.generation import OutputDelta
from hotseat.server.errors import ApiError

__all__ = ["PromptMetadata", "ResponseMetadata", "Usage", "UsageCounter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseMetadata:
    """The properties of one answer that do not change while it is generated."""

    id: str
    model: str
    created: int
    num_prompts: int = 1
    prompts: Sequence[str | list[int]] = ()  # as sent, where they are to be repeated
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
    is_parsed: bool = False  # chat: split into reasoning, content and calls
    shows_reasoning: bool = True
    has_named_tool: bool = False  # a call of one tool was asked for by its name

    @property
    def num_choices(self) -> int:
        return self.n * self.num_prompts


@dataclass(slots=True)
class PromptMetadata:
    """A prompt's tokens and cache hits, known when its generation begins."""

    token_ids: list[int]
    num_cached_tokens: int = 0
    logprobs: list[TokenLogprobs | None] | None = None


class Usage(NamedTuple):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int | None = None  # of an answer that is parsed
    draft_tokens: int = 0  # guessed and verified
    accepted_tokens: int = 0  # of these, found true

    def as_json(self) -> bytes:
        """Return the ``usage`` object."""
        prompt, completion, cached, reasoning, drafted, accepted = self
        parts = [] if reasoning is None else [b'"reasoning_tokens":%d' % reasoning]
        if drafted:
            rejected = drafted - accepted
            parts.append(b'"accepted_prediction_tokens":%d,"rejected_prediction_tokens":%d' % (accepted, rejected))
        details = b',"completion_tokens_details":{%b}' % b",".join(parts) if parts else b""
        return (
            b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}%b}'
            % (prompt, completion, prompt + completion, cached, details)
        )


@dataclass(slots=True)
class UsageCounter:
    """Count the tokens of an answer and its choices that have not ended."""

    metadata: ResponseMetadata
    prompts: dict[int, PromptMetadata] = field(default_factory=dict)
    completion_tokens: dict[int, int] = field(init=False)
    reasoning_tokens: dict[int, int] = field(init=False)
    draft_tokens: dict[int, tuple[int, int]] = field(default_factory=dict)  # of choices that ended: all, found true
    calling: set[int] = field(default_factory=set)  # choices that call tools
    unfinished: set[int] = field(init=False)

    def __post_init__(self) -> None:
        choices = range(self.metadata.num_choices)
        self.completion_tokens = dict.fromkeys(choices, 0)
        self.reasoning_tokens = dict.fromkeys(choices, 0)
        self.unfinished = set(choices)

    def add(self, delta: OutputDelta) -> int:
        """Count ``delta`` and return the index of its choice.

        Raises:
            ApiError: the choice failed or ran out of time.
        """
        choice = delta.prompt * self.metadata.n + delta.index
        if delta.prompt_token_ids is not None:
            self._note_prompt(delta.prompt_token_ids, delta)
        self.completion_tokens[choice] += len(delta.token_ids) + delta.num_hidden_tokens
        if self.metadata.is_parsed:
            self._note_parts(choice, delta)
        if delta.finish_reason is not None:
            _raise_failure(delta)
            self.draft_tokens[choice] = delta.num_draft_tokens, delta.num_accepted_tokens
            self.unfinished.discard(choice)
        return choice

    def usage(self, choice: int | None = None) -> Usage:
        """Return the tokens of all choices, or of one."""
        if choice is None:
            prompts = list(self.prompts.values())
            completion, reasoning = sum(self.completion_tokens.values()), sum(self.reasoning_tokens.values())
        else:
            prompts = [self.prompts[choice // self.metadata.n]]
            completion, reasoning = self.completion_tokens[choice], self.reasoning_tokens[choice]
        prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
        cached = sum(prompt.num_cached_tokens for prompt in prompts)
        drafted = list(self.draft_tokens.values()) if choice is None else [self.draft_tokens.get(choice, (0, 0))]
        return Usage(
            prompt_tokens,
            completion,
            cached,
            reasoning if self.metadata.is_parsed else None,
            sum(num for num, _ in drafted),
            sum(num for _, num in drafted),
        )

    def _note_parts(self, choice: int, delta: OutputDelta) -> None:
        self.reasoning_tokens[choice] += delta.num_reasoning_tokens
        if delta.calls:
            self.calling.add(choice)
        # OpenAI says "stop" after a call of a tool that was named in the request.
        if delta.finish_reason == "stop" and choice in self.calling and not self.metadata.has_named_tool:
            delta.finish_reason = "tool_calls"

    def _note_prompt(self, token_ids: list[int], delta: OutputDelta) -> None:
        logprobs: list[TokenLogprobs | None] | None = None
        if delta.prompt_logprobs is not None:
            logprobs = [None, *delta.prompt_logprobs]
        self.prompts[delta.prompt] = PromptMetadata(token_ids, delta.num_cached_tokens, logprobs)


def _raise_failure(delta: OutputDelta) -> None:
    if delta.finish_reason == "error":
        raise ApiError(500, delta.error or "The engine could not compute this request.")
    if delta.finish_reason == "timeout":
        limit = f": {delta.error}" if delta.error else ""
        raise ApiError(504, f"The request ran out of time{limit}.", retry=True)
