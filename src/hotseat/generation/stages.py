"""Stages that each delta of a sequence passes between the detokenizer and its reader, in order.

What rewrites or splits the text of an answer belongs here, as a stage of its own: a stage sees the deltas of one
sequence, may hold text back until a later delta, and may end the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from hotseat.core.batch import TokenLogprobs
from hotseat.core.request import FinishReason, SamplingParams
from hotseat.formats import AnswerParser, CallDelta, ParsedText, merge_calls
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
    num_draft_tokens: int = 0  # in the last delta: guessed and verified
    num_accepted_tokens: int = 0  # of these, found true
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None  # for finish_reason "error" and "timeout"
    times: RequestTimes | None = None  # in the last delta
    prompt_token_ids: list[int] | None = None  # once per prompt, in the first delta
    prompt_logprobs: list[TokenLogprobs] | None = None  # beside prompt_token_ids; entry i is about prompt token i + 1
    pooled: Any = None  # of a prompt with a pooling: float32[hidden_size], in its last delta
    # Where the answer is parsed, ``text`` is its content alone:
    reasoning: str = ""
    calls: list[CallDelta] | None = None
    num_reasoning_tokens: int = 0
    num_hidden_tokens: int = 0  # of the reasoning, that are not in token_ids


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
    """Split the text into reasoning, content and calls; cut reasoning and content at the first stop string.

    Stop strings are looked for in what the reader sees as text: never in the markers around calls, nor in arguments.
    """

    __slots__ = ("_content_stops", "_hides_reasoning", "_num_unchecked", "_parser", "_reasoning_stops")

    def __init__(self, parser: AnswerParser, params: SamplingParams, *, hides_reasoning: bool = False) -> None:
        self._parser = parser
        self._hides_reasoning = hides_reasoning
        include = params.include_stop_str_in_output
        self._content_stops = StopStrings(params.stop, include=include) if params.stop else None
        self._reasoning_stops = StopStrings(params.stop, include=include) if params.stop else None
        self._num_unchecked = params.min_tokens  # tokens whose text cannot match a stop string

    def process(self, delta: OutputDelta, pieces: Sequence[str]) -> None:
        """Leave the content in ``text``; token by token, so that the count of those of the reasoning is exact."""
        parser = self._parser
        num_tokens = len(pieces) - (delta.finish_reason is not None)
        reasoning: list[str] = []
        content: list[str] = []
        calls: list[CallDelta] = []
        are_reasoning: list[bool] = []
        for number, piece in enumerate(pieces):
            was_reasoning = parser.is_reasoning
            part = parser.feed(piece)
            if number < num_tokens:
                are_reasoning.append(was_reasoning or parser.is_reasoning or bool(part.reasoning))
            is_last = delta.finish_reason is not None and number == len(pieces) - 1
            stop = self._cut(part, reasoning, content)
            calls += part.calls
            if stop is None and is_last:
                part = parser.finish()
                calls += part.calls
                stop = self._cut(part, reasoning, content)
            if stop is not None or (parser.is_done and not is_last):
                _end(delta, number + 1, stop)
                break
        if delta.finish_reason is not None and delta.stop_reason is None:
            self._flush(reasoning, content)
        delta.reasoning, delta.text, delta.calls = "".join(reasoning), "".join(content), merge_calls(calls)
        delta.num_reasoning_tokens = sum(are_reasoning)
        if self._hides_reasoning and delta.num_reasoning_tokens:
            _hide(delta, are_reasoning)

    def _cut(self, part: ParsedText, reasoning: list[str], content: list[str]) -> str | None:
        """Add the text of ``part``, as far as no stop string ends it; return the one that does."""
        is_checked = self._num_unchecked <= 0
        self._num_unchecked -= 1
        for stops, text, texts in (
            (self._reasoning_stops, part.reasoning, reasoning),
            (self._content_stops, part.content, content),
        ):
            if stops is None or not is_checked or not text:
                texts.append(text)
                continue
            passed, stop = stops.feed(text)
            texts.append(passed)
            if stop is not None:
                return stop
        return None

    def _flush(self, reasoning: list[str], content: list[str]) -> None:
        """Add what was held back because it could have become a stop string."""
        for stops, texts in ((self._reasoning_stops, reasoning), (self._content_stops, content)):
            if stops is not None:
                texts.append(stops.flush())


def stages_for(
    params: SamplingParams, parser: AnswerParser | None = None, *, hides_reasoning: bool = False
) -> tuple[OutputStage, ...]:
    """Return the stages that a sequence with ``params`` needs, in order; most need none."""
    if parser is not None:
        return (ParserStage(parser, params, hides_reasoning=hides_reasoning),)
    return (StopStage(params),) if params.stop else ()


def _hide(delta: OutputDelta, are_hidden: Sequence[bool]) -> None:
    """Take the tokens of the reasoning out of what spells them; they still count."""
    shown = [at for at in range(len(delta.token_ids)) if at >= len(are_hidden) or not are_hidden[at]]
    delta.num_hidden_tokens = len(delta.token_ids) - len(shown)
    delta.token_ids = [delta.token_ids[at] for at in shown]
    if delta.logprobs is not None:
        delta.logprobs = [delta.logprobs[at] for at in shown]


def _end(delta: OutputDelta, num_tokens: int, stop: str | None) -> None:
    delta.token_ids = delta.token_ids[:num_tokens]
    if delta.logprobs is not None:
        delta.logprobs = delta.logprobs[:num_tokens]
    delta.finish_reason, delta.stop_reason, delta.error = FinishReason.STOP.value, stop, None
