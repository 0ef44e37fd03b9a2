"""Outputs in vLLM's shapes, collected from the deltas of a prompt."""

from __future__ import annotations

import copy
import logging
import math
from dataclasses import dataclass, field

from hotseat.core.batch import TokenLogprobs
from hotseat.generation import OutputDelta, PromptRequest, RequestTimes
from hotseat.text import Tokenizer

__all__ = [
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "Logprob",
    "OutputCollector",
    "RequestMetrics",
    "RequestOutput",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Logprob:
    """The log-probability of one token at one position; ``rank`` 1 is the most probable."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One of the ``n`` answers to a prompt."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None  # stop, length, abort, error, timeout
    stop_reason: str | int | None = None  # the stop string or stop token id that matched
    lora_request: None = None


@dataclass(slots=True, kw_only=True)
class RequestMetrics:
    """Instants of a request, in seconds on the engine's clock (``time.monotonic``).

    Of several answers, the first to be scheduled and to have a token count, and the last to end.
    """

    arrival_time: float
    first_scheduled_time: float | None
    first_token_time: float | None
    last_token_time: float | None
    finished_time: float | None
    time_in_queue: float | None  # seconds until the first seat
    num_generation_tokens: int


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """A prompt and its answers."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    outputs: list[CompletionOutput]
    finished: bool = False
    metrics: RequestMetrics | None = None  # when it has finished
    num_cached_tokens: int = 0
    lora_request: None = None


@dataclass(slots=True, kw_only=True)
class EmbeddingOutput:
    """A vector that stands for a text."""

    embedding: list[float]


@dataclass(slots=True, kw_only=True)
class EmbeddingRequestOutput:
    """A prompt and its embedding."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool = True


class OutputCollector:
    """Collects the deltas of one prompt."""

    def __init__(self, request_id: str, request: PromptRequest, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        wants = request.params.logprobs is not None
        self._texts: list[list[str]] = [[] for _ in range(request.params.n)]
        self._times: list[RequestTimes] = []
        self._num_tokens = 0
        self.result = RequestOutput(
            request_id=request_id,
            prompt=request.prompt if isinstance(request.prompt, str) else None,
            outputs=[
                CompletionOutput(index=index, logprobs=[] if wants else None, cumulative_logprob=0.0 if wants else None)
                for index in range(request.params.n)
            ],
        )

    def add(self, delta: OutputDelta, now: float) -> bool:
        """Take ``delta``; true when it was the last of the last answer."""
        result, output = self.result, self.result.outputs[delta.index]
        self._texts[delta.index].append(delta.text)
        output.token_ids += delta.token_ids
        self._num_tokens += len(delta.token_ids)
        if delta.logprobs is not None and output.logprobs is not None:
            output.logprobs += [self._logprobs(entry) for entry in delta.logprobs]
            output.cumulative_logprob = math.fsum(
                [output.cumulative_logprob or 0.0, *(entry.logprob for entry in delta.logprobs)]
            )
        if delta.prompt_token_ids is not None:
            result.prompt_token_ids = delta.prompt_token_ids
            if delta.prompt_logprobs is not None:
                result.prompt_logprobs = [None, *(self._logprobs(entry) for entry in delta.prompt_logprobs)]
        return self._finish(delta, output, now) if delta.finish_reason is not None else False

    def snapshot(self) -> RequestOutput:
        """Return a copy of what is there so far."""
        outputs = []
        for output, texts in zip(self.result.outputs, self._texts, strict=True):
            copied = copy.copy(output)
            copied.text = "".join(texts)
            copied.token_ids = list(output.token_ids)
            copied.logprobs = None if output.logprobs is None else list(output.logprobs)
            outputs.append(copied)
        result = copy.copy(self.result)
        result.outputs = outputs
        return result

    def take(self) -> RequestOutput:
        """Return what came since the last call, and forget its tokens and texts."""
        taken = self.snapshot()
        for output, texts in zip(self.result.outputs, self._texts, strict=True):
            output.token_ids = []
            output.logprobs = None if output.logprobs is None else []
            texts.clear()
        return taken

    def _finish(self, delta: OutputDelta, output: CompletionOutput, now: float) -> bool:
        result = self.result
        output.text = "".join(self._texts[delta.index])
        output.finish_reason, output.stop_reason = delta.finish_reason, delta.stop_reason
        result.num_cached_tokens = max(result.num_cached_tokens, delta.num_cached_tokens)
        result.finished = all(other.finish_reason for other in result.outputs)
        if delta.times is not None:
            self._times.append(delta.times)
        if result.finished and self._times:
            result.metrics = _metrics(self._times, self._num_tokens, now)
        if delta.error:
            logger.warning("request %s failed: %s", result.request_id, delta.error)
        return result.finished

    def _logprobs(self, entry: TokenLogprobs) -> dict[int, Logprob]:
        text = self._tokenizer.token_text
        named = {token: Logprob(value, rank, text(token)) for rank, (token, value) in enumerate(entry.top, start=1)}
        return {entry.token_id: Logprob(entry.logprob, entry.rank, text(entry.token_id))} | named


def _metrics(times: list[RequestTimes], num_tokens: int, now: float) -> RequestMetrics:
    arrived_at = min(one.arrived_at for one in times)
    admitted_at = min((one.admitted_at for one in times if one.admitted_at is not None), default=None)
    first_token_at = min((one.first_token_at for one in times if one.first_token_at is not None), default=None)
    finished_at = max(now if one.finished_at is None else one.finished_at for one in times)
    return RequestMetrics(
        arrival_time=arrived_at,
        first_scheduled_time=admitted_at,
        first_token_time=first_token_at,
        last_token_time=None if first_token_at is None else finished_at,
        finished_time=finished_at,
        time_in_queue=None if admitted_at is None else admitted_at - arrived_at,
        num_generation_tokens=num_tokens,
    )
