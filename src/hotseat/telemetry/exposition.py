"""The metrics in Prometheus' text format, shaped when they are scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hotseat.telemetry.histogram import Histogram
from hotseat.telemetry.metrics import EngineMetrics

__all__ = ["Exposition"]


Samples: TypeAlias = Iterable[tuple[str | None, float]]  # value by label


class Row(NamedTuple):
    """A gauge or counter; with ``label``, one sample for each key of what ``read`` returns."""

    name: str
    text: str
    read: Callable[[EngineMetrics], float | Mapping[str, int]]
    label: str | None = None


class HistogramRow(NamedTuple):
    name: str
    text: str
    read: Callable[[EngineMetrics], Histogram]


# Names of vLLM, with its meanings: dashboards, gateways and autoscalers know them.
_GAUGES = (
    Row("num_requests_running", "Requests that hold a seat.", lambda m: m.num_running),
    Row("num_requests_waiting", "Requests that wait for a seat.", lambda m: m.num_waiting),
    Row(
        "num_requests_waiting_by_reason",
        "Waiting requests: for capacity, or deferred for a reason of their own.",
        lambda m: _waiting_by_reason(m),
        "reason",
    ),
    Row("kv_cache_usage_perc", "Used part of the KV cache, 0 to 1.", lambda m: _kv_usage(m)),
)
_COUNTERS = (
    Row("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", lambda m: m.prefix_queries),
    Row("prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda m: m.prefix_hits),
    Row("num_preemptions", "Preemptions.", lambda m: m.num_preemptions.total()),
    Row("prompt_tokens", "Prompt tokens whose prefill is complete, cached ones included.", lambda m: m.prompt_tokens),
    Row("prompt_tokens_cached", "Those of them that came from the prefix cache.", lambda m: m.prompt_tokens_cached),
    Row(
        "prompt_tokens_by_source",
        "Prompt tokens by where their keys and values came from.",
        lambda m: _prompt_tokens_by_source(m),
        "source",
    ),
    Row("generation_tokens", "Generated tokens.", lambda m: m.generation_tokens),
    Row("spec_decode_num_drafts", "Drafts that were verified.", lambda m: m.num_drafts),
    Row("spec_decode_num_draft_tokens", "Tokens of drafts that were verified.", lambda m: m.num_draft_tokens),
    Row("spec_decode_num_accepted_tokens", "Those found true.", lambda m: m.num_accepted_tokens.total()),
    Row(
        "spec_decode_num_accepted_tokens_per_pos",
        "Those found true, by place in the draft.",
        lambda m: m.num_accepted_tokens,
        "position",
    ),
    Row("request_success", "Requests that ended, by reason.", lambda m: m.num_ended, "finished_reason"),
    Row("admission_rejections", "Requests refused by a full queue.", lambda m: m.num_queue_rejections, "reason"),
)
_HISTOGRAMS = (
    HistogramRow("iteration_tokens_total", "Tokens computed in a step.", lambda m: m.iteration_tokens),
    HistogramRow("time_to_first_token_seconds", "From arrival to the first token.", lambda m: m.ttft_s),
    HistogramRow("inter_token_latency_seconds", "Between two tokens of a request.", lambda m: m.itl_s),
    HistogramRow("request_time_per_output_token_seconds", "Decode time per token after the first.", lambda m: m.tpot_s),
    HistogramRow("e2e_request_latency_seconds", "From arrival to the end.", lambda m: m.e2e_s),
    HistogramRow("request_queue_time_seconds", "From arrival to the first seat.", lambda m: m.queue_s),
    HistogramRow("request_prefill_time_seconds", "From the first seat to the first token.", lambda m: m.prefill_s),
    HistogramRow("request_decode_time_seconds", "From the first token to the last.", lambda m: m.decode_s),
    HistogramRow("request_inference_time_seconds", "From the first seat to the last token.", lambda m: m.inference_s),
    HistogramRow("request_prompt_tokens", "Prompt tokens of a request.", lambda m: m.request_prompt_tokens),
    HistogramRow("request_generation_tokens", "Generated tokens of a request.", lambda m: m.request_generation_tokens),
    HistogramRow("request_params_max_tokens", "max_tokens of a request.", lambda m: m.request_max_tokens),
    HistogramRow("request_params_n", "n of the request that a sequence belongs to.", lambda m: m.request_n),
    HistogramRow("request_num_preemptions", "Preemptions of a request.", lambda m: m.request_preemptions),
    HistogramRow(
        "request_prefill_kv_computed_tokens",
        "Prompt tokens of a request that were not cached.",
        lambda m: m.request_computed_prompt_tokens,
    ),
)

# Ours, always under the prefix hotseat.
_OWN_GAUGES = (
    Row("blocks_used", "KV cache blocks held by running requests.", lambda m: m.blocks_used),
    Row("blocks_free", "KV cache blocks that can be taken, cached ones included.", lambda m: m.blocks_free),
    Row("blocks_cached", "Free blocks whose content a prefix hit can use.", lambda m: m.blocks_cached),
    Row("engine_pause_max_seconds", "Longest pause of the last minute or two.", lambda m: m.engine_pauses.longest_s),
    Row("event_loop_lag_max_seconds", "Longest lag of the last minute or two.", lambda m: m.loop_lags.longest_s),
)
_OWN_COUNTERS = (
    Row("requests_accepted", "Requests that entered the queue.", lambda m: m.num_accepted),
    Row("requests_rejected", "Requests that the scheduler refused.", lambda m: m.num_rejected, "reason"),
    Row("preemptions", "Preemptions by what ran short.", lambda m: m.num_preemptions, "cause"),
    Row("steps", "Steps that computed something.", lambda m: m.num_steps),
    Row("seat_steps", "Seats computed, summed over steps.", lambda m: m.seat_steps),
    Row("computed_tokens", "Tokens computed, recomputation included.", lambda m: m.computed_tokens),
    Row("offered_tokens", "Token budgets, summed over steps.", lambda m: m.offered_tokens),
)
_OWN_HISTOGRAMS = (
    HistogramRow("step_duration_seconds", "Duration of a step that computed.", lambda m: m.step_s),
    HistogramRow("engine_pause_seconds", "Between two steps with work left.", lambda m: m.engine_pauses.histogram),
    HistogramRow("event_loop_lag_seconds", "Delay of the event loop's timers.", lambda m: m.loop_lags.histogram),
)


class Exposition(Collector):
    """Write ``metrics`` for Prometheus.

    ``names`` is the prefix of what vLLM also has: ``vllm``, ``native`` (``hotseat``) or ``both``. ``cache_info``
    becomes the labels of ``cache_config_info``: at least ``block_size`` and ``num_gpu_blocks``. ``num_seats`` is
    ``max_num_seqs``. ``read_step_time_error`` returns how wrong the scheduler's guesses of step times are, or ``None``
    when it makes none.
    """

    def __init__(
        self,
        metrics: EngineMetrics,
        *,
        model_name: str,
        cache_info: Mapping[str, str],
        num_seats: int,
        names: str = "vllm",
        read_step_time_error: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._metrics = metrics
        self._labels = {"model_name": model_name, "engine": "0"}
        self._cache_info = dict(cache_info)
        self._num_seats = num_seats
        self._read_step_time_error = read_step_time_error
        self._prefixes = {"vllm": ("vllm",), "native": ("hotseat",), "both": ("vllm", "hotseat")}[names]
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Return nothing: names are not checked against other collectors, of which there are none."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield every family with its present values."""
        for prefix in self._prefixes:
            yield self._info(f"{prefix}:cache_config_info")
            yield from self._families(prefix, _GAUGES, _COUNTERS, _HISTOGRAMS)
        yield self._gauge("hotseat:seats", "Seats (max_num_seqs).", [(None, self._num_seats)])
        error = self._read_step_time_error()
        if error is not None:
            text = "Running mean of |predicted - taken| / taken over steps, with a latency target."
            yield self._gauge("hotseat:step_time_prediction_error", text, [(None, error)])
        yield from self._families("hotseat", _OWN_GAUGES, _OWN_COUNTERS, _OWN_HISTOGRAMS)

    def _families(
        self, prefix: str, gauges: Iterable[Row], counters: Iterable[Row], histograms: Iterable[HistogramRow]
    ) -> Iterator[Metric]:
        for row in gauges:
            yield self._gauge(f"{prefix}:{row.name}", row.text, self._samples(row), row.label)
        for row in counters:
            yield self._counter(f"{prefix}:{row.name}", row.text, self._samples(row), row.label)
        for histogram in histograms:
            yield self._histogram(f"{prefix}:{histogram.name}", histogram.text, histogram.read(self._metrics))

    def _samples(self, row: Row) -> Samples:
        value = row.read(self._metrics)
        return tuple(value.items()) if isinstance(value, Mapping) else ((None, value),)

    def _gauge(self, name: str, text: str, samples: Samples, label: str | None = None) -> Metric:
        family = GaugeMetricFamily(name, text, labels=self._label_names(label))
        for key, value in samples:
            family.add_metric(self._label_values(key), value)
        return family

    def _counter(self, name: str, text: str, samples: Samples, label: str | None) -> Metric:
        family = CounterMetricFamily(name, text, labels=self._label_names(label))
        for key, value in samples:
            family.add_metric(self._label_values(key), value)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, text, labels=self._label_names(None))
        family.add_metric(self._label_values(None), buckets=histogram.cumulative(), sum_value=histogram.sum)
        return family

    def _info(self, name: str) -> Metric:
        labels = self._labels | self._cache_info
        family = GaugeMetricFamily(name, "The KV cache's configuration, in labels.", labels=list(labels))
        family.add_metric(list(labels.values()), 1)
        return family

    def _label_names(self, label: str | None) -> list[str]:
        return [*self._labels] if label is None else [*self._labels, label]

    def _label_values(self, key: str | None) -> list[str]:
        return [*self._labels.values()] if key is None else [*self._labels.values(), key]


def _kv_usage(metrics: EngineMetrics) -> float:
    used, free = metrics.blocks_used, metrics.blocks_free
    return used / (used + free) if used + free else 0.0


def _waiting_by_reason(metrics: EngineMetrics) -> dict[str, int]:
    deferred = min(metrics.num_deferred, metrics.num_waiting)
    return {"capacity": metrics.num_waiting - deferred, "deferred": deferred}


def _prompt_tokens_by_source(metrics: EngineMetrics) -> dict[str, int]:
    cached = metrics.prompt_tokens_cached
    return {"local_compute": metrics.prompt_tokens - cached, "local_cache_hit": cached}
