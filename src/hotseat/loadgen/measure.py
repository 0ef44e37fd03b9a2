"""Measurements of each request, and the formulas of the report.

For a request that is sent at ``t0`` and whose text arrives in chunks at ``t1 … tk``, with ``n`` output tokens by the
server's count (these are vLLM's definitions):

    TTFT  t1 - t0                       time to first token
    E2E   tk - t0                       latency of the whole answer
    TPOT  (E2E - TTFT) / (n - 1)        time per output token after the first; undefined for n = 1
    ITL   t2 - t1, t3 - t2, …           inter-token latency: the gaps between chunks, all requests together

Chunks that carry neither text nor a finish reason (an opening chunk with the role, the usage) are not counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Distribution", "Measurement", "RequestResult", "Summary", "percentile", "summarize"]


@dataclass(slots=True, kw_only=True)
class RequestResult:
    """Times of one request, in seconds on one clock; ``error`` is set when it failed."""

    index: int
    sent_at: float = 0.0
    chunk_times: list[float] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    counted_by_server: bool = False  # else num_output_tokens counts chunks
    finish_reason: str | None = None
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        return self.chunk_times[0] - self.sent_at

    @property
    def latency_s(self) -> float:
        return self.chunk_times[-1] - self.sent_at

    @property
    def tpot_s(self) -> float | None:
        if self.num_output_tokens < 2:
            return None
        return (self.latency_s - self.ttft_s) / (self.num_output_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        return [later - sooner for sooner, later in zip(self.chunk_times, self.chunk_times[1:], strict=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Mean and percentiles in milliseconds; all ``None`` when nothing was measured."""

    mean_ms: float | None
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    max_ms: float | None

    @classmethod
    def of_seconds(cls, values: Sequence[float]) -> Distribution:
        if not values:
            return cls(mean_ms=None, p50_ms=None, p90_ms=None, p99_ms=None, max_ms=None)
        ordered = sorted(values)
        p50, p90, p99 = (round(1e3 * percentile(ordered, share), 3) for share in (0.5, 0.9, 0.99))
        mean = round(1e3 * math.fsum(ordered) / len(ordered), 3)
        return cls(mean_ms=mean, p50_ms=p50, p90_ms=p90, p99_ms=p99, max_ms=round(1e3 * ordered[-1], 3))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value at ``share`` of a sorted sequence, interpolating linearly as NumPy does."""
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run in numbers. Token counts and times are of the completed requests."""

    completed: int
    failed: int
    errors: dict[str, int]  # message → how many requests
    duration_s: float  # first request sent → last chunk of any request
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    mean_prompt_tokens: float
    mean_output_tokens: float
    request_throughput: float  # completed requests per second
    output_throughput: float  # output tokens per second
    total_throughput: float  # prompt and output tokens per second
    peak_concurrency: int
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    e2e: Distribution
    counted_by_server: bool  # false: the server sent no usage for some request, whose chunks were counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A finished run."""

    model: str
    server: dict[str, object]
    started_at: str  # local time, ISO 8601
    results: list[RequestResult]
    summary: Summary


def summarize(results: Sequence[RequestResult], duration_s: float) -> Summary:
    """Apply the formulas to a run of ``duration_s`` seconds."""
    good = [result for result in results if result.error is None]
    num_prompt = sum(result.num_prompt_tokens for result in good)
    num_output = sum(result.num_output_tokens for result in good)
    return Summary(
        completed=len(good),
        failed=len(results) - len(good),
        errors=dict(Counter(result.error for result in results if result.error is not None).most_common()),
        duration_s=round(duration_s, 6),
        num_prompt_tokens=num_prompt,
        num_output_tokens=num_output,
        num_cached_tokens=sum(result.num_cached_tokens for result in good),
        mean_prompt_tokens=round(num_prompt / max(1, len(good)), 2),
        mean_output_tokens=round(num_output / max(1, len(good)), 2),
        request_throughput=round(len(good) / duration_s, 4) if duration_s > 0 else 0.0,
        output_throughput=round(num_output / duration_s, 3) if duration_s > 0 else 0.0,
        total_throughput=round((num_prompt + num_output) / duration_s, 3) if duration_s > 0 else 0.0,
        peak_concurrency=_peak_concurrency(good),
        ttft=Distribution.of_seconds([result.ttft_s for result in good]),
        tpot=Distribution.of_seconds([tpot for result in good if (tpot := result.tpot_s) is not None]),
        itl=Distribution.of_seconds([gap for result in good for gap in result.gaps_s]),
        e2e=Distribution.of_seconds([result.latency_s for result in good]),
        counted_by_server=all(result.counted_by_server for result in good),
    )


def _peak_concurrency(results: Sequence[RequestResult]) -> int:
    """Return the largest number of requests in flight at one instant; one that ends as another begins has ended."""
    events = sorted([(r.sent_at, 1) for r in results] + [(r.chunk_times[-1], -1) for r in results])
    peak = current = 0
    for _, change in events:
        current += change
        peak = max(peak, current)
    return peak
