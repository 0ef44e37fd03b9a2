"""From the token ids of one sequence to the text of it, delta by delta."""

from __future__ import annotations

from dataclasses import dataclass

from hotseat.core.batch import RequestUpdate, TokenLogprobs
from hotseat.core.request import FinishReason, SamplingParams
from hotseat.text import StopStrings, Tokenizer

__all__ = ["OutputDelta", "SequenceOutput"]


@dataclass(slots=True)
class OutputDelta:
    """What one engine step brought for one sequence; the texts of all deltas concatenate to the sequence's text.

    ``token_ids`` may come with no text yet (an unfinished character, a possible beginning of a stop string).
    ``logprobs``, when asked for, are parallel to ``token_ids``. The last delta has a ``finish_reason``, the value of a
    ``FinishReason``; ``stop_reason`` is the stop string or stop token id that matched, ``None`` for the model's end.
    """

    index: int  # which of the n sequences
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None  # for finish_reason "error" and "timeout"
    num_cached_tokens: int = 0  # prompt tokens that came from the prefix cache
    prompt_token_ids: list[int] | None = None  # once per prompt, in the first delta
    prompt_logprobs: list[TokenLogprobs] | None = None  # beside prompt_token_ids; entry i is about prompt token i + 1


class SequenceOutput:
    """Detokenize one sequence and cut it at its stop strings.

    The text layer ends a sequence before the engine knows: once ``is_finished`` while the update had no
    ``finish_reason``, the caller tells the engine. Updates after the end are ignored.
    """

    __slots__ = (
        "_detokenizer",
        "_keeps_stop",
        "_num_unchecked",
        "_prompt_logprobs",
        "_stops",
        "index",
        "is_finished",
    )

    def __init__(self, index: int, tokenizer: Tokenizer, params: SamplingParams, prompt_ids: list[int]) -> None:
        self.index = index
        self.is_finished = False
        self._detokenizer = tokenizer.detokenizer(prompt_ids, skip_special_tokens=params.skip_special_tokens)
        self._keeps_stop = params.include_stop_str_in_output
        self._stops = StopStrings(params.stop, include=self._keeps_stop) if params.stop else None
        self._num_unchecked = params.min_tokens  # tokens whose text cannot match a stop string
        self._prompt_logprobs: list[TokenLogprobs] | None = None

    def feed(self, update: RequestUpdate) -> OutputDelta | None:
        """Return what ``update`` brings, or ``None`` when there is nothing to say yet."""
        if self.is_finished:
            return None
        if update.prompt_logprobs is not None:
            self._prompt_logprobs = (self._prompt_logprobs or []) + update.prompt_logprobs
        token_ids, reason = update.new_token_ids, update.finish_reason
        if not token_ids and reason is None:
            return None
        if self._stops is not None:
            return self._feed_with_stops(update, self._stops)
        visible = token_ids if reason is None else self._visible(token_ids, reason)
        text = self._detokenizer.add(visible)
        if reason is None:  # by far the most common end of this function
            return OutputDelta(self.index, text, token_ids, update.logprobs, None, None, None, update.num_cached_tokens)
        return self._last(update, text + self._detokenizer.flush())

    def take_prompt_logprobs(self) -> list[TokenLogprobs] | None:
        """Return the log-probabilities of the prompt that came with the updates so far, once."""
        taken, self._prompt_logprobs = self._prompt_logprobs, None
        return taken

    def _feed_with_stops(self, update: RequestUpdate, stops: StopStrings) -> OutputDelta:
        """Go token by token, so that a sequence ends with the very token that completes a stop string."""
        texts: list[str] = []
        token_ids, reason = update.new_token_ids, update.finish_reason
        visible = token_ids if reason is None else self._visible(token_ids, reason)
        for count, token_id in enumerate(visible, start=1):
            text, stop = self._checked(stops, self._detokenizer.add([token_id]))
            texts.append(text)
            if stop is not None:
                return self._stopped(update, count, "".join(texts), stop)
        if reason is None:
            text = "".join(texts)
            return OutputDelta(self.index, text, token_ids, update.logprobs, None, None, None, update.num_cached_tokens)
        text, stop = self._checked(stops, self._detokenizer.flush())
        texts.append(text)
        if stop is not None:
            return self._stopped(update, len(token_ids), "".join(texts), stop)
        texts.append(stops.flush())
        return self._last(update, "".join(texts))

    def _checked(self, stops: StopStrings, text: str) -> tuple[str, str | None]:
        if self._num_unchecked > 0:
            self._num_unchecked -= 1
            return text, None
        return stops.feed(text)

    def _visible(self, token_ids: list[int], reason: FinishReason) -> list[int]:
        """Leave out the token that ended the sequence by being an EOS or a stop token."""
        return token_ids[:-1] if reason is FinishReason.STOP and not self._keeps_stop else token_ids

    def _last(self, update: RequestUpdate, text: str) -> OutputDelta:
        assert update.finish_reason is not None, "only the last update ends a sequence"
        self.is_finished = True
        return OutputDelta(
            index=self.index,
            text=text,
            token_ids=update.new_token_ids,
            logprobs=update.logprobs,
            finish_reason=update.finish_reason.value,
            stop_reason=update.stop_token_id,
            error=update.error,
            num_cached_tokens=update.num_cached_tokens,
        )

    def _stopped(self, update: RequestUpdate, num_tokens: int, text: str, stop: str) -> OutputDelta:
        self.is_finished = True
        return OutputDelta(
            index=self.index,
            text=text,
            token_ids=update.new_token_ids[:num_tokens],
            logprobs=None if update.logprobs is None else update.logprobs[:num_tokens],
            finish_reason=FinishReason.STOP.value,
            stop_reason=stop,
            num_cached_tokens=update.num_cached_tokens,
        )
