"""From prompts to text in the caller's own thread, with no event loop."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from hotseat.core.request import Request, RequestId, SamplingParams
from hotseat.engine import StepLoop
from hotseat.generation.choices import Choices
from hotseat.generation.grammars import Grammars
from hotseat.generation.prompts import ModelLimits, PromptReader, RequestFactory, RequestOptions
from hotseat.generation.sequence import OutputDelta
from hotseat.text import Tokenizer

__all__ = ["Job", "OfflineGenerator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A prompt and what to make of it."""

    prompt: str | list[int]
    params: SamplingParams
    options: RequestOptions = field(default_factory=RequestOptions)
    add_special_tokens: bool = True


class OfflineGenerator:
    """Run many prompts at once on ``loop``."""

    def __init__(self, loop: StepLoop, tokenizer: Tokenizer, limits: ModelLimits) -> None:
        self._loop = loop
        self._grammars = Grammars(tokenizer, limits)
        self._tokenizer = tokenizer
        self._reader = PromptReader(tokenizer, limits.max_model_len)
        self._requests = RequestFactory(limits)

    def generate(self, jobs: Sequence[Job]) -> Generator[list[tuple[int, OutputDelta]]]:
        """Yield, step by step, the deltas of all jobs, each with the position of its job.

        All jobs are checked before the first runs. Leaving early aborts what has not ended.

        Raises:
            InvalidRequestError: a prompt or parameters do not fit the model.
        """
        prepared = [self._requests_of(position, job) for position, job in enumerate(jobs)]
        owners: dict[RequestId, tuple[int, Choices]] = {}
        for position, requests in enumerate(prepared):
            choices = Choices(requests, self._tokenizer, self._loop.finish)
            owners.update((request.id, (position, choices)) for request in requests)
        with closing(self._loop.run(request for requests in prepared for request in requests)) as steps:
            for updates in steps:
                deltas: list[tuple[int, OutputDelta]] = []
                for update in updates:
                    position, choices = owners[update.request_id]
                    delta = choices.feed(update)
                    if delta is not None:
                        deltas.append((position, delta))
                if deltas:
                    yield deltas

    def _requests_of(self, position: int, job: Job) -> list[Request]:
        prompt = job.prompt
        if isinstance(prompt, str):
            prompt = self._reader.read(prompt, job.add_special_tokens)
        return self._requests.build(
            list(prompt),
            job.params,
            request_id=str(position),
            arrived_at=self._loop.clock.now(),
            options=job.options,
            grammar=self._grammars.get(job.params),
        )
