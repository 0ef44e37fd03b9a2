"""From the token ids of sequences to their text, delta by delta."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hotseat.core.batch import RequestUpdate, TokenLogprobs
from hotseat.core.request import FinishReason, Request, RequestId
from hotseat.formats import AnswerParser
from hotseat.generation.prompts import PromptRequest
from hotseat.generation.stages import OutputDelta, RequestTimes, stages_for
from hotseat.text import Detokenizer, Tokenizer

__all__ = ["OutputDelta", "SequenceOutput", "SequenceOutputs"]


class SequenceOutput:
    """Detokenize one sequence and pass its deltas through its stages.

    A stage may end a sequence before the engine knows: then a delta has a ``finish_reason`` while its update had none,
    and the caller tells the engine. Updates after the end are ignored.
    """

    __slots__ = (
        "_detokenizer",
        "_keeps_stop",
        "_prompt_logprobs",
        "_request",
        "_stages",
        "index",
        "is_finished",
        "prompt",
    )

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer,
        *,
        prompt: int = 0,
        index: int = 0,
        parser: AnswerParser | None = None,
        hides_reasoning: bool = False,
    ) -> None:
        params = request.params
        self._request = request
        self.prompt = prompt
        self.index = index
        self.is_finished = False
        skips = params.skip_special_tokens
        self._detokenizer: Detokenizer | _NoText = (
            tokenizer.detokenizer(request.prompt_token_ids, skip_special_tokens=skips)
            if params.detokenize
            else _NoText()
        )
        self._keeps_stop = params.include_stop_str_in_output
        self._stages = stages_for(params, parser, hides_reasoning=hides_reasoning)
        self._prompt_logprobs: list[TokenLogprobs] | None = None

    def feed(self, update: RequestUpdate) -> OutputDelta | None:
        """Return what ``update`` brings, or ``None`` when there is nothing to say yet."""
        if self.is_finished:
            return None
        if update.prompt_logprobs is not None:
            self._prompt_logprobs = (self._prompt_logprobs or []) + update.prompt_logprobs
        token_ids, reason = update.new_token_ids, update.finish_reason
        if reason is None:
            if not token_ids:
                return None
            if not self._stages:  # by far the most common way through this function
                text = self._detokenizer.add(token_ids)
                return OutputDelta(self.prompt, self.index, text, token_ids, update.logprobs, update.num_cached_tokens)
        return self._feed_rest(update)

    def take_prompt_logprobs(self) -> list[TokenLogprobs] | None:
        """Return the log-probabilities of the prompt that came with the updates so far, once."""
        taken, self._prompt_logprobs = self._prompt_logprobs, None
        return taken

    def _feed_rest(self, update: RequestUpdate) -> OutputDelta:
        """Detokenize token by token for the stages, and to the end when the sequence ends."""
        token_ids, reason = update.new_token_ids, update.finish_reason
        delta = OutputDelta(self.prompt, self.index, "", token_ids, update.logprobs, update.num_cached_tokens)
        delta.num_draft_tokens, delta.num_accepted_tokens = update.num_draft_tokens, update.num_accepted_tokens
        visible = token_ids
        if reason is not None:
            delta.pooled = update.pooled
            delta.finish_reason, delta.stop_reason, delta.error = reason.value, update.stop_token_id, update.error
            if reason is FinishReason.STOP and not self._keeps_stop:
                visible = token_ids[:-1]  # the token that ended the sequence, an EOS or a stop token
        pieces = [self._detokenizer.add([token_id]) for token_id in visible]
        if reason is not None:
            pieces.append(self._detokenizer.flush())
        delta.text = "".join(pieces)
        for stage in self._stages:
            stage.process(delta, pieces)
        self.is_finished = delta.finish_reason is not None
        if self.is_finished:
            request = self._request
            delta.times = RequestTimes(
                request.arrived_at, request.admitted_at, request.first_token_at, request.finished_at
            )
        return delta


class _NoText:
    """Stands for a detokenizer where nobody reads the text."""

    def add(self, token_ids: Sequence[int]) -> str:
        return ""

    def flush(self) -> str:
        return ""


class SequenceOutputs:
    """The outputs of all sequences of some prompts; ``requests`` hold a list for each prompt.

    ``prompts`` tell how answers are parsed.
    ``finish`` is called for a request that a stage has ended: the engine cannot know.
    """

    def __init__(
        self,
        requests: Sequence[Sequence[Request]],
        tokenizer: Tokenizer,
        finish: Callable[[RequestId, FinishReason], object],
        prompts: Sequence[PromptRequest] = (),
    ) -> None:
        asked: Sequence[PromptRequest | None] = prompts or [None] * len(requests)
        self._outputs = {
            request.id: SequenceOutput(
                request,
                tokenizer,
                prompt=prompt,
                index=index,
                parser=one.make_parser() if one is not None and one.make_parser is not None else None,
                hides_reasoning=one is not None and one.hides_reasoning,
            )
            for prompt, (siblings, one) in enumerate(zip(requests, asked, strict=True))
            for index, request in enumerate(siblings)
        }
        self.num_open = len(self._outputs)
        self._finish = finish
        self._untold = {prompt: siblings[0] for prompt, siblings in enumerate(requests)}  # until a delta told of it

    def feed(self, updates: Iterable[RequestUpdate]) -> list[OutputDelta]:
        """Return the deltas that ``updates`` bring."""
        deltas = []
        for update in updates:
            output = self._outputs[update.request_id]
            delta = output.feed(update)
            if delta is None:
                continue
            if delta.finish_reason is not None:
                self.num_open -= 1
                if update.finish_reason is None:
                    self._finish(update.request_id, FinishReason.STOP)
            if self._untold:
                self._tell_prompt(delta, output)
            deltas.append(delta)
        return deltas

    def _tell_prompt(self, delta: OutputDelta, output: SequenceOutput) -> None:
        """Add what the first delta of a prompt tells of it; log-probabilities come with the first sequence."""
        first = self._untold.get(delta.prompt)
        if first is None or (first.params.prompt_logprobs is not None and delta.index > 0):
            return
        del self._untold[delta.prompt]
        delta.prompt_token_ids, delta.prompt_logprobs = first.prompt_token_ids, output.take_prompt_logprobs()
