"""Metrics over the real scheduler: what is counted adds up, and Prometheus can read it."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.fakes import FakeRunner, make_request, make_scheduler
from hotseat.core.batch import Batch, StepOutput
from hotseat.core.request import FinishReason, Request, RequestId
from hotseat.core.scheduler import Scheduler
from hotseat.engine import StepLoop, VirtualClock
from hotseat.errors import HotseatError
from hotseat.telemetry import EngineMetrics, Exposition

STEP_S = 0.5


class SteadyRunner(FakeRunner):
    """Each step takes ``STEP_S``."""

    def __init__(self, clock: VirtualClock, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self._clock = clock

    def execute(self, batch: Batch) -> StepOutput:
        self._clock.advance(STEP_S)
        return super().execute(batch)


class Setting:
    def __init__(self, scheduler: Scheduler | None = None, **runner_options: object) -> None:
        self.clock = VirtualClock()
        self.scheduler = scheduler or make_scheduler()
        self.metrics = EngineMetrics(max_model_len=512, num_blocks=self.scheduler.config.num_kv_blocks)
        runner = SteadyRunner(self.clock, **runner_options)
        self.loop = StepLoop(self.scheduler, runner, clock=self.clock, sinks=[self.metrics])
        self.exposition = Exposition(
            self.metrics,
            model_name="tiny",
            cache_info={"block_size": "16", "num_gpu_blocks": str(self.scheduler.config.num_kv_blocks)},
            num_seats=self.scheduler.config.max_num_seqs,
        )

    def add(self, *requests: Request) -> None:
        for request in requests:
            request.arrived_at = self.clock.now()
            self.loop.add(request)

    def run(self) -> None:
        while self.loop.has_work:
            self.loop.step()
            self.check_gauges()

    def check_gauges(self) -> None:
        metrics, scheduler = self.metrics, self.scheduler
        assert (metrics.num_running, metrics.num_waiting) == (scheduler.num_running, scheduler.num_waiting)
        assert metrics.num_accepted == metrics.num_ended.total() + metrics.num_running + metrics.num_waiting

    def samples(self) -> dict[str, float]:
        return scrape(self.exposition.render())


def scrape(page: bytes) -> dict[str, float]:
    """Return values by name, with the labels that are not on every sample."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            own = {key: value for key, value in sample.labels.items() if key not in ("model_name", "engine")}
            if sample.name.startswith(("vllm:", "hotseat:")):
                assert sample.labels["model_name"] == "tiny"
                assert sample.labels["engine"] == "0"
            values[f"{sample.name}{_braced(own)}"] = sample.value
    return values


def _braced(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{key}={value}" for key, value in labels.items()) + "}" if labels else ""


def test_latencies_of_one_request_are_exact() -> None:
    setting = Setting()
    setting.add(make_request("a", 10, max_tokens=5))
    setting.clock.advance(2.0)
    setting.run()
    metrics = setting.metrics
    assert (metrics.ttft_s.count, metrics.ttft_s.sum) == (1, 2.5)
    assert (metrics.itl_s.count, metrics.itl_s.sum) == (4, 2.0)
    assert (metrics.tpot_s.count, metrics.tpot_s.sum) == (1, 0.5)
    assert (metrics.e2e_s.count, metrics.e2e_s.sum) == (1, 4.5)
    assert (metrics.queue_s.sum, metrics.prefill_s.sum, metrics.decode_s.sum) == (2.0, 0.5, 2.0)
    assert metrics.inference_s.sum == 2.5
    assert (metrics.prompt_tokens, metrics.generation_tokens) == (10, 5)
    assert (metrics.num_steps, metrics.computed_tokens, metrics.step_s.sum) == (5, 14, 2.5)


def test_inter_token_latency_of_a_request_that_missed_steps_is_its_own() -> None:
    setting = Setting(make_scheduler(max_num_seqs=4, num_kv_blocks=8, block_size=4, watermark=0.0))
    setting.add(*(make_request(f"r{i}", 7, max_tokens=14) for i in range(2)))
    setting.run()
    metrics = setting.metrics
    assert metrics.num_preemptions.total() > 0
    assert metrics.itl_s.count == 2 * 13
    # What one request lost by being preempted is in the sum: both took their whole decode time.
    assert metrics.itl_s.sum == pytest.approx(metrics.decode_s.sum)


def test_preempted_requests_count_their_prompt_once_and_are_no_prefix_hits() -> None:
    setting = Setting(make_scheduler(max_num_seqs=4, num_kv_blocks=12, block_size=4, watermark=0.0))
    requests = [make_request(f"r{i}", 9, max_tokens=20) for i in range(4)]
    setting.add(*requests)
    setting.run()
    metrics = setting.metrics
    assert sum(request.num_preemptions for request in requests) == metrics.num_preemptions.total() > 0
    assert set(metrics.num_preemptions) == {"blocks"}
    assert metrics.prompt_tokens == metrics.prefix_queries == 4 * 9
    assert metrics.prefix_hits == metrics.prompt_tokens_cached == 0
    assert metrics.generation_tokens == 4 * 20
    assert metrics.computed_tokens > 4 * (9 + 19), "recomputation is work"
    assert metrics.ttft_s.count == 4


def test_prefix_hits_are_counted_in_tokens() -> None:
    setting = Setting()
    prompt = range(1000, 1100)
    for name in ("a", "b"):
        setting.add(make_request(name, prompt, max_tokens=2))
        setting.run()
    metrics = setting.metrics
    assert (metrics.prefix_queries, metrics.prefix_hits) == (200, 96)
    samples = setting.samples()
    assert samples["vllm:prompt_tokens_by_source_total{source=local_compute}"] == 104
    assert samples["vllm:prompt_tokens_by_source_total{source=local_cache_hit}"] == 96


def test_aborts_and_errors_are_counted_apart() -> None:
    setting = Setting(fails=lambda batch: ValueError("no") if batch.step == 2 else None)
    setting.add(make_request("short", max_tokens=1), make_request("left", max_tokens=50))
    setting.loop.step()
    setting.loop.abort(RequestId("left"))
    setting.check_gauges()
    setting.loop.step()
    setting.add(make_request("unlucky", max_tokens=50), make_request("waiting", max_tokens=50))
    setting.loop.abort(RequestId("waiting"))
    setting.run()
    metrics = setting.metrics
    assert metrics.num_ended == {"length": 1, "abort": 2, "error": 1, "stop": 0, "timeout": 0}
    assert metrics.ttft_s.count == 2, "short and left had a first token"
    assert metrics.e2e_s.count == metrics.queue_s.count == metrics.request_generation_tokens.count == 1


def test_refusals_are_counted_by_reason() -> None:
    setting = Setting(make_scheduler(max_num_seqs=1, max_num_queued_reqs=1, max_num_queued_tokens=50))
    refused = {
        "many": make_request("many"),
        "twice": make_request("seated"),
        "long": make_request("long", 5000),
        "empty": make_request("empty", 0),
    }
    setting.add(make_request("seated"))
    setting.loop.step()
    with pytest.raises(HotseatError):
        setting.add(make_request("big", 60))
    setting.add(make_request("queued"))
    for request in refused.values():
        with pytest.raises(HotseatError):
            setting.add(request)
    metrics = setting.metrics
    assert metrics.num_rejected == {"queue_full": 2, "prompt_too_long": 1, "invalid": 2}
    assert metrics.num_queue_rejections == {
        "max_num_queued_reqs": 1,
        "max_num_queued_tokens": 1,
        "max_queue_memory_bytes": 0,
    }
    assert metrics.num_accepted == 2


def test_gauges_follow_the_blocks_and_come_back_to_zero() -> None:
    setting = Setting()
    setting.add(*(make_request(f"r{i}", 40, max_tokens=4) for i in range(8)))
    assert setting.samples()["vllm:num_requests_waiting"] == 8
    setting.loop.step()
    setting.loop.step()
    samples = setting.samples()
    used = setting.scheduler.stats().blocks_used
    assert used > 0
    assert samples["vllm:kv_cache_usage_perc"] == used / 256
    assert samples["hotseat:blocks_used"] == used
    assert samples["hotseat:blocks_free"] == 256 - used
    setting.run()
    samples = setting.samples()
    assert samples["vllm:kv_cache_usage_perc"] == samples["vllm:num_requests_running"] == 0
    assert samples["vllm:num_requests_waiting"] == 0


def test_any_mix_of_ends_adds_up() -> None:
    choose = random.Random(7)
    setting = Setting(
        make_scheduler(max_num_seqs=6, num_kv_blocks=24, block_size=4, max_num_queued_reqs=12, watermark=0.0),
        fails=lambda batch: OSError("flaky") if choose.random() < 0.02 else None,
    )
    alive: list[RequestId] = []
    num_refused = 0
    for number in range(600):
        request = make_request(f"r{number}", choose.randint(1, 20), max_tokens=choose.randint(0, 30))
        try:
            setting.add(request)
            alive.append(request.id)
        except HotseatError:
            num_refused += 1
        for _ in range(choose.randint(0, 3)):
            setting.loop.step()
            setting.check_gauges()
        if choose.random() < 0.3:
            reason = choose.choice((FinishReason.ABORT, FinishReason.STOP))
            setting.loop.finish(choose.choice(alive), reason)
            setting.check_gauges()
    setting.run()
    metrics = setting.metrics
    assert all(metrics.num_ended[reason] > 0 for reason in ("abort", "stop", "length", "error"))
    assert metrics.num_accepted == metrics.num_ended.total() == 600 - num_refused
    assert metrics.num_rejected.total() == num_refused > 0
    completed = metrics.num_ended["stop"] + metrics.num_ended["length"]
    for histogram in (metrics.e2e_s, metrics.queue_s, metrics.prefill_s, metrics.decode_s, metrics.inference_s):
        assert histogram.count == completed
    assert metrics.blocks_used == 0
    assert not metrics._live


def test_page_has_the_names_that_dashboards_and_gateways_read() -> None:
    setting = Setting()
    setting.add(make_request("a", max_tokens=3))
    setting.run()
    samples = setting.samples()
    for name in (
        *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total"),
        *("prefix_cache_queries_total", "prefix_cache_hits_total", "prompt_tokens_total", "generation_tokens_total"),
        *("request_success_total{finished_reason=stop}", "request_success_total{finished_reason=length}"),
        *("request_success_total{finished_reason=abort}", "request_success_total{finished_reason=error}"),
        *("num_requests_waiting_by_reason{reason=capacity}", "num_requests_waiting_by_reason{reason=deferred}"),
        "admission_rejections_total{reason=max_num_queued_reqs}",
        "cache_config_info{block_size=16,num_gpu_blocks=256}",
    ):
        assert f"vllm:{name}" in samples
    for name in (
        *("iteration_tokens_total", "time_to_first_token_seconds", "inter_token_latency_seconds"),
        *("request_time_per_output_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"),
        *("request_prefill_time_seconds", "request_decode_time_seconds", "request_inference_time_seconds"),
        *("request_prompt_tokens", "request_generation_tokens", "request_params_n", "request_params_max_tokens"),
    ):
        assert samples[f"vllm:{name}_count"] == samples[f"vllm:{name}_bucket{{le=+Inf}}"] > 0
    assert samples["vllm:cache_config_info{block_size=16,num_gpu_blocks=256}"] == 1
    assert samples["vllm:request_success_total{finished_reason=length}"] == 1
    assert samples["hotseat:step_duration_seconds_sum"] == 3 * STEP_S
    assert samples["hotseat:seats"] == 64
    assert samples["vllm:request_generation_tokens_bucket{le=2.0}"] == 0
    assert samples["vllm:request_generation_tokens_bucket{le=5.0}"] == 1


@pytest.mark.parametrize(
    ("names", "has_vllm", "has_own"), [("vllm", True, False), ("native", False, True), ("both", True, True)]
)
def test_prefix_of_the_common_names_can_be_chosen(names: str, has_vllm: bool, has_own: bool) -> None:
    metrics = EngineMetrics(max_model_len=64, num_blocks=4)
    page = Exposition(metrics, model_name="tiny", cache_info={}, num_seats=4, names=names).render().decode()
    assert ("vllm:num_requests_running{" in page) == has_vllm
    assert ("hotseat:num_requests_running{" in page) == has_own
    assert "hotseat:steps_total{" in page


def test_model_name_with_quotes_and_line_breaks_is_escaped() -> None:
    metrics = EngineMetrics(max_model_len=64, num_blocks=4)
    page = Exposition(metrics, model_name='a"b\nc\\d', cache_info={}, num_seats=4).render().decode()
    families = list(text_string_to_metric_families(page))
    assert any(sample.labels.get("model_name") == 'a"b\nc\\d' for family in families for sample in family.samples)


def test_the_error_of_predicted_step_times_is_shown_when_there_is_one() -> None:
    def page(error: float | None) -> str:
        setting = Setting()
        return (
            Exposition(
                setting.metrics, model_name="tiny", cache_info={}, num_seats=4, read_step_time_error=lambda: error
            )
            .render()
            .decode()
        )

    name = "hotseat:step_time_prediction_error"
    assert f'{name}{{engine="0",model_name="tiny"}} 0.25\n' in page(0.25)
    assert name not in page(None)
