"""Admission limits and time-outs of requests and of the queue."""

from __future__ import annotations

import heapq

from hotseat.core.config import SchedulerConfig
from hotseat.core.request import Request, RequestStatus
from hotseat.errors import InvalidRequestError, PromptTooLongError, QueueFullError

__all__ = ["Limits", "check_context"]

# What a waiting request takes in a server, measured: its connection, tasks and text, and its ids.
BYTES_PER_REQUEST = 28_672
BYTES_PER_TOKEN = 48


def check_context(num_prompt_tokens: int, max_tokens: int | None, max_model_len: int) -> str:
    """Refuse a prompt that is empty or does not fit ``max_model_len``; return what is said of what follows it.

    Raises:
        PromptTooLongError: the prompt, and one token unless ``max_tokens`` is 0, exceed ``max_model_len``.
        InvalidRequestError: the prompt is empty.
    """
    if num_prompt_tokens == 0:
        raise InvalidRequestError("the prompt is empty: at least one token is needed", param="prompt")
    rest = "" if max_tokens == 0 else " and at least one token is generated"
    if num_prompt_tokens + (max_tokens != 0) > max_model_len:
        raise PromptTooLongError(
            f"the prompt has {num_prompt_tokens} tokens{rest}, but this model's maximum context length "
            f"(max_model_len) is {max_model_len} tokens",
            param="prompt",
        )
    return rest


class Limits:
    """Bounds of a request, of the queue and of time. A request that once had a seat is never counted as queued."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.num_queued = 0
        self.num_queued_tokens = 0
        self.has_timeouts = config.queue_timeout_s is not None or config.request_timeout_s is not None
        self._num_alive = 0
        self._config = config
        self._queued: list[tuple[float, int, Request]] = []  # by arrival; dropped when they come up after they left
        self._alive: list[tuple[float, int, Request]] = []

    def check_fits(self, request: Request) -> None:
        """Refuse what can never run.

        Raises:
            PromptTooLongError: prompt and one token exceed ``max_model_len`` or the whole KV cache.
            InvalidRequestError: the prompt is empty.
        """
        config, num_prompt = self._config, len(request.prompt_token_ids)
        rest = check_context(num_prompt, request.params.max_tokens, config.max_model_len)
        num_blocks = config.num_blocks_of(num_prompt + bool(rest))
        if num_blocks > config.num_kv_blocks:
            raise PromptTooLongError(
                f"the prompt has {num_prompt} tokens{rest}, which needs {num_blocks} blocks of {config.block_size} "
                f"tokens, but the KV cache has {config.num_kv_blocks} blocks "
                f"({config.max_cached_tokens} tokens)",
                param="prompt",
            )

    def check_room(self, request: Request, num_free_seats: int) -> None:
        """Refuse what would wait in a queue that is at its limit; a request that finds a free seat does not wait.

        Raises:
            QueueFullError: too many requests wait, or too many of their tokens, or they take too much memory.
        """
        num_waiting = self.num_queued - num_free_seats
        if num_waiting < 0:
            return
        config, num_more = self._config, len(request.prompt_token_ids)
        max_tokens = config.max_num_queued_tokens
        if config.max_num_queued_reqs is not None and num_waiting >= config.max_num_queued_reqs:
            raise QueueFullError(
                f"{num_waiting} requests wait for a seat and max_num_queued_reqs is {config.max_num_queued_reqs}; "
                "try again later"
            )
        if (
            config.max_num_queued_tokens is not None
            and self.num_queued_tokens + num_more > config.max_num_queued_tokens
        ):
            raise QueueFullError(
                f"{self.num_queued_tokens} prompt tokens wait for a seat, {num_more} more would exceed "
                f"max_num_queued_tokens = {max_tokens}; try again later"
            )
        num_bytes = (self.num_queued + 1) * BYTES_PER_REQUEST + (self.num_queued_tokens + num_more) * BYTES_PER_TOKEN
        if config.max_queue_memory_bytes is not None and num_bytes > config.max_queue_memory_bytes:
            raise QueueFullError(
                f"{self.num_queued} requests with {self.num_queued_tokens} prompt tokens wait for a seat; with this "
                f"one of {num_more} they would take about {num_bytes} bytes, and max_queue_memory_bytes is "
                f"{config.max_queue_memory_bytes}; try again later"
            )

    def add(self, request: Request) -> None:
        """Count a request that arrived."""
        self.num_queued += 1
        self.num_queued_tokens += len(request.prompt_token_ids)
        self._num_alive += 1
        entry = (request.arrived_at, request.serial, request)
        if self._config.queue_timeout_s is not None or self._config.batching == "dynamic":
            heapq.heappush(self._queued, entry)
        if self._config.request_timeout_s is not None:
            heapq.heappush(self._alive, entry)
        self._tidy()

    def left_queue(self, request: Request) -> None:
        """Stop counting a request that takes its first seat, or ends without one."""
        self.num_queued -= 1
        self.num_queued_tokens -= len(request.prompt_token_ids)

    def ended(self) -> None:
        """Stop counting a request."""
        self._num_alive -= 1

    def oldest_queued_at(self) -> float | None:
        """Return the arrival of the oldest request that never had a seat; known where something depends on it."""
        queued = self._queued
        while queued and not _is_queued(queued[0][2]):
            heapq.heappop(queued)
        return queued[0][0] if queued else None

    def timed_out(self, now: float) -> list[tuple[Request, str]]:
        """Return requests that waited or lived too long, each with the option that says so. The caller ends them."""
        config, found = self._config, []
        if config.queue_timeout_s is not None:
            while (oldest := self.oldest_queued_at()) is not None and now >= oldest + config.queue_timeout_s:
                found.append(
                    (heapq.heappop(self._queued)[2], f"found no seat in queue_timeout_s = {config.queue_timeout_s:g}")
                )
        if config.request_timeout_s is not None:
            while (oldest := self._oldest_alive_at()) is not None and now >= oldest + config.request_timeout_s:
                request = heapq.heappop(self._alive)[2]
                found.append((request, f"did not end in request_timeout_s = {config.request_timeout_s:g}"))
        return found

    def next_at(self) -> float | None:
        """Return when the next request will have timed out."""
        times = []
        if self._config.queue_timeout_s is not None and (oldest := self.oldest_queued_at()) is not None:
            times.append(oldest + self._config.queue_timeout_s)
        if self._config.request_timeout_s is not None and (oldest := self._oldest_alive_at()) is not None:
            times.append(oldest + self._config.request_timeout_s)
        return min(times, default=None)

    def _tidy(self) -> None:
        """Let go of requests that left, once they are the majority."""
        if len(self._queued) > 2 * self.num_queued + 64:
            self._queued = [entry for entry in self._queued if _is_queued(entry[2])]
            heapq.heapify(self._queued)
        if len(self._alive) > 2 * self._num_alive + 64:
            self._alive = [entry for entry in self._alive if entry[2].status is not RequestStatus.FINISHED]
            heapq.heapify(self._alive)

    def _oldest_alive_at(self) -> float | None:
        alive = self._alive
        while alive and alive[0][2].status is RequestStatus.FINISHED:
            heapq.heappop(alive)
        return alive[0][0] if alive else None


def _is_queued(request: Request) -> bool:
    return request.status is RequestStatus.WAITING and request.admitted_at is None
