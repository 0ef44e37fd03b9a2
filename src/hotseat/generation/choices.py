"""The n sequences of one prompt on their way through the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hotseat.core.batch import RequestUpdate
from hotseat.core.request import FinishReason, Request, RequestId
from hotseat.generation.sequence import OutputDelta, SequenceOutput
from hotseat.text import Tokenizer

__all__ = ["Choices"]


class Choices:
    """Turn the updates of ``requests``, all of one prompt, into deltas.

    ``finish`` is called for a request that a stop string has ended: the engine cannot know.
    """

    def __init__(
        self, requests: Sequence[Request], tokenizer: Tokenizer, finish: Callable[[RequestId, FinishReason], object]
    ) -> None:
        self.num_open = len(requests)
        self._finish = finish
        self._prompt_ids: list[int] | None = requests[0].prompt_token_ids  # until it was handed out
        self._wants_prompt_logprobs = requests[0].params.prompt_logprobs is not None
        self._outputs = {
            request.id: SequenceOutput(index, tokenizer, request.params, request.prompt_token_ids)
            for index, request in enumerate(requests)
        }

    def feed(self, update: RequestUpdate) -> OutputDelta | None:
        """Return the delta that ``update`` brings, or ``None`` when it brings nothing to say."""
        output = self._outputs[update.request_id]
        delta = output.feed(update)
        if delta is None:
            return None
        if output.is_finished:
            self.num_open -= 1
            if update.finish_reason is None:
                self._finish(update.request_id, FinishReason.STOP)
        if self._prompt_ids is not None:
            delta = self._with_prompt(delta, output)
        return delta

    def _with_prompt(self, delta: OutputDelta, output: SequenceOutput) -> OutputDelta:
        """Add what the first delta tells of the prompt; its log-probabilities come with the first sequence."""
        if self._wants_prompt_logprobs and output.index > 0:
            return delta
        prompt_ids, self._prompt_ids = self._prompt_ids, None
        delta.prompt_token_ids, delta.prompt_logprobs = prompt_ids, output.take_prompt_logprobs()
        return delta
