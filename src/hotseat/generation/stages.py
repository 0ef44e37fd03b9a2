"""Stages that each delta of a sequence passes between the detokenizer and its reader, in order.

What rewrites or splits the text of an answer belongs here, as a stage of its own: a stage sees the deltas of one
sequence, may hold text back until a later delta, and may end the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from hotseat.core.batch import TokenLogprobs
from hotseat.core.request import FinishReason, SamplingParams
from hotseat.formats import CallDelta, OutputParser, merge_calls
from hotseat.text import StopStrings

__all__ = ["OutputDelta", "OutputStage", "ParserStage", "RequestTimes", "StopStage", "stages_for"]


class RequestTimes(NamedTuple):
    """Instants of a sequence on the engine's clock, in seconds; ``None`` where it did not come so far."""

    arrived_at: float
    admitted_at: float | None  # took its first seat
    first_token_at: float | None
    finished_at: float | None  # None: a stop string ended it, and the engine does not know yet


@dataclass(slots=True)
class OutputDelta:
    """The output of one engine step for one sequence; the texts of all deltas concatenate to the sequence's text.

    ``token_ids`` may come with no text yet (an unfinished character, a possible beginning of a stop string).
    ``logprobs``, when asked for, are parallel to ``token_ids``. The last delta has a ``finish_reason``, the value of a
    ``FinishReason``; ``stop_reason`` is the stop string or stop token id that matched, ``None`` for the model's end.
    """

    prompt: int  # position of its prompt among those that were sent together
    index: int  # of the prompt's n sequences
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    num_cached_tokens: int = 0  # prompt tokens that came from the prefix cache
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None  # for finish_reason "error" and "timeout"
    times: RequestTimes | None = None  # in the last delta
    prompt_token_ids: list[int] | None = None  # once per prompt, in the first delta
    prompt_logprobs: list[TokenLogprobs] | None = None  # beside prompt_token_ids; entry i is about prompt token i + 1
    # Where the answer is parsed, ``text`` is its content alone:
    reasoning: str = ""
    calls: list[CallDelta] | None = None
    num_reasoning_tokens: int = 0


class OutputStage(Protocol):
    """One stage of one sequence's output."""

    def process(self, delta: OutputDelta, pieces: Sequence[str]) -> None:
        """Change ``delta`` in place.

        ``pieces`` are the detokenized texts of its tokens one by one, less a hidden stop token; the last delta has one
        more, the end that the detokenizer held back. After the last delta, which has a ``finish_reason``, nothing may
        be held back any more.
        """
        ...


class StopStage:
    """Cut at the first stop string and end the sequence with the very token that completes it."""

    __slots__ = ("_num_unchecked", "_stops")

    def __init__(self, params: SamplingParams) -> None:
        self._stops = StopStrings(params.stop, include=params.include_stop_str_in_output)
        self._num_unchecked = params.min_tokens  # tokens whose text cannot match a stop string

    def process(self, delta: OutputDelta, pieces: Sequence[str]) -> None:
        """Hold back what may become a stop string; drop the tokens after the one that completes it."""
        texts: list[str] = []
        for count, piece in enumerate(pieces, start=1):
            if self._num_unchecked > 0:
                self._num_unchecked -= 1
                texts.append(piece)
                continue
            text, stop = self._stops.feed(piece)
            texts.append(text)
            if stop is not None:
                _end(delta, count, stop)
                break
        else:
            if delta.finish_reason is not None:
                texts.append(self._stops.flush())
        delta.text = "".join(texts)


class ParserStage:
    """Split the text into reasoning, content and calls."""

    __slots__ = ("_parser",)

    def __init__(self, parser: OutputParser) -> None:
        self._parser = parser

    def process(self, delta: OutputDelta, pieces: Sequence[str]) -> None:
        """Leave the content in ``text``; token by token, so that the count of those of the reasoning is exact."""
        parser = self._parser
        texts = pieces if delta.text == "".join(pieces) else [delta.text]  # a stop string may hold some of it back
        num_tokens = len(texts) - (delta.finish_reason is not None)
        parts = []
        for number, text in enumerate(texts):
            was_reasoning = parser.is_reasoning
            parts.append(parser.feed(text))
            reasons = was_reasoning or parser.is_reasoning or bool(parts[-1].reasoning)
            delta.num_reasoning_tokens += reasons and number < num_tokens
        if delta.finish_reason is not None:
            parts.append(parser.finish())
        delta.reasoning = "".join(part.reasoning for part in parts)
        delta.text = "".join(part.content for part in parts)
        delta.calls = merge_calls(call for part in parts for call in part.calls)


def stages_for(params: SamplingParams, parser: OutputParser | None = None) -> tuple[OutputStage, ...]:
    """Return the stages that a sequence with ``params`` needs, in order; most need none."""
    stages: list[OutputStage] = [StopStage(params)] if params.stop else []
    if parser is not None:
        stages.append(ParserStage(parser))
    return tuple(stages)


def _end(delta: OutputDelta, num_tokens: int, stop: str) -> None:
    delta.token_ids = delta.token_ids[:num_tokens]
    if delta.logprobs is not None:
        delta.logprobs = delta.logprobs[:num_tokens]
    delta.finish_reason, delta.stop_reason, delta.error = FinishReason.STOP.value, stop, None
