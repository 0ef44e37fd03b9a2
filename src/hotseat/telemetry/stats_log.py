"""A line in the log every ten seconds while there is work: throughput, queue, cache. Its words are vLLM's."""

from __future__ import annotations

import logging
from typing import NamedTuple

from hotseat.telemetry.metrics import EngineMetrics

__all__ = ["StatsLog"]

logger = logging.getLogger("hotseat.stats")

INTERVAL_S = 10.0


class _Totals(NamedTuple):
    prompt_tokens: int
    generation_tokens: int
    prefix_queries: int
    prefix_hits: int
    ended: int


class StatsLog:
    """Logs what changed in ``metrics`` at INFO to ``hotseat.stats``; the server calls ``tick`` about once a second."""

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics
        self._since: float | None = None
        self._before = self._totals()
        self._hit_rate = 0.0  # of the last interval that looked anything up

    def tick(self, now: float) -> None:
        """Log, if ten seconds have passed since the last line and anything happened in them."""
        if self._since is None:
            self._since = now
        took_s = now - self._since
        if took_s < INTERVAL_S:
            return
        before, totals = self._before, self._totals()
        self._since, self._before = now, totals
        metrics = self._metrics
        if totals == before and not metrics.num_running and not metrics.num_waiting:
            return
        queries = totals.prefix_queries - before.prefix_queries
        if queries:
            self._hit_rate = (totals.prefix_hits - before.prefix_hits) / queries
        num_blocks = metrics.blocks_used + metrics.blocks_free
        logger.info(
            "Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s, Running: %d reqs, "
            "Waiting: %d reqs, KV cache usage: %.1f%%, Prefix cache hit rate: %.1f%%",
            (totals.prompt_tokens - before.prompt_tokens) / took_s,
            (totals.generation_tokens - before.generation_tokens) / took_s,
            metrics.num_running,
            metrics.num_waiting,
            100 * metrics.blocks_used / num_blocks if num_blocks else 0.0,
            100 * self._hit_rate,
        )

    def _totals(self) -> _Totals:
        metrics = self._metrics
        return _Totals(
            prompt_tokens=metrics.prompt_tokens,
            generation_tokens=metrics.generation_tokens,
            prefix_queries=metrics.prefix_queries,
            prefix_hits=metrics.prefix_hits,
            ended=sum(metrics.num_ended.values()),
        )
