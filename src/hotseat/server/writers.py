"""Base classes of what turns deltas into the bytes of an API: one streams, one collects."""

from __future__ import annotations

from abc import ABC, abstractmethod

from hotseat.generation import OutputDelta
from hotseat.server.errors import ApiError
from hotseat.server.metadata import UsageCounter
from hotseat.server.sse import KEEP_ALIVE

LARGE = 4096  # tokens and choices
LARGE_WITH_LOGPROBS = 256

__all__ = ["StreamWriter", "WholeWriter"]


class StreamWriter(ABC):
    """Turn batches of deltas into the events of a stream."""

    counter: UsageCounter

    @abstractmethod
    def write(self, batch: list[OutputDelta]) -> bytes:
        """Return the events for what one step brought; empty when there is nothing to tell.

        Raises:
            ApiError: a choice failed; the stream must end with ``write_error``.
        """

    @abstractmethod
    def write_abort(self) -> bytes:
        """Return the end of a stream whose unfinished choices were aborted."""

    @abstractmethod
    def write_error(self, error: ApiError) -> bytes:
        """Return the end of a stream that failed after its headers were sent."""

    def keep_alive(self) -> bytes:
        """Return what is sent while there is nothing to tell."""
        return KEEP_ALIVE


class WholeWriter(ABC):
    """Collect the deltas of an answer; ``write`` gives the response's body."""

    counter: UsageCounter

    @property
    def is_large(self) -> bool:
        """Tell whether ``write`` takes so long that it belongs in a thread."""
        counter, metadata = self.counter, self.counter.metadata
        num_tokens = sum(counter.completion_tokens.values())
        if metadata.echo or metadata.prompt_logprobs or metadata.return_token_ids:
            num_tokens += sum(len(prompt.token_ids) for prompt in counter.prompts.values())
        has_logprobs = metadata.logprobs is not None or metadata.prompt_logprobs
        return num_tokens + len(counter.completion_tokens) > (LARGE_WITH_LOGPROBS if has_logprobs else LARGE)

    @abstractmethod
    def add(self, batch: list[OutputDelta]) -> None:
        """Take what one step brought.

        Raises:
            ApiError: a choice failed, so the answer as a whole does.
        """

    @abstractmethod
    def write(self) -> bytes:
        """Return the body; choices that have not ended count as aborted."""
