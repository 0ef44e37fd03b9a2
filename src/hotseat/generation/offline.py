"""From prompts to text in the caller's own thread, with no event loop."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing

from hotseat.engine import StepLoop
from hotseat.generation.grammars import Grammars
from hotseat.generation.prompts import ModelLimits, PromptReader, PromptRequest
from hotseat.generation.sequence import OutputDelta, SequenceOutputs
from hotseat.text import Tokenizer

__all__ = ["OfflineGenerator"]


class OfflineGenerator:
    """Run many prompts at once on ``loop``."""

    def __init__(self, loop: StepLoop, tokenizer: Tokenizer, limits: ModelLimits) -> None:
        self._loop = loop
        self._tokenizer = tokenizer
        self._grammars = Grammars(tokenizer, limits)
        self._reader = PromptReader(tokenizer, limits)

    def generate(self, prompts: Sequence[PromptRequest]) -> Generator[list[OutputDelta]]:
        """Yield, step by step, the deltas of all prompts.

        All prompts are checked before the first runs. Leaving early aborts what has not ended.

        Raises:
            InvalidRequestError: a prompt or parameters do not fit the model.
        """
        now = self._loop.clock.now()
        requests = [
            self._reader.requests(prompt, str(number), now, self._grammars.get(prompt.params))
            for number, prompt in enumerate(prompts)
        ]
        outputs = SequenceOutputs(requests, self._tokenizer, self._loop.finish, prompts)
        with closing(self._loop.run(request for siblings in requests for request in siblings)) as steps:
            for updates in steps:
                deltas = outputs.feed(updates)
                if deltas:
                    yield deltas
