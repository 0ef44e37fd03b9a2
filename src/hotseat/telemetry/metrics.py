"""The numbers of an engine, counted as its events arrive.

Relations that hold at any time, after any mix of ends, aborts and preemptions:

    accepted = sum of ended over all reasons + running + waiting
    ended[stop] + ended[length] = count of e2e, queue, prefill, decode, inference and of the token histograms
    count of ttft = requests that got a first token, whatever became of them
    prompt tokens, prefix queries and prefix hits: each request once, however often it was preempted
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hotseat.core.batch import RequestUpdate
from hotseat.core.events import EventSink, StepRecord
from hotseat.core.request import FinishReason, Request, RequestId
from hotseat.errors import InvalidRequestError, PromptTooLongError, QueueFullError
from hotseat.telemetry import histogram
from hotseat.telemetry.histogram import Histogram, token_bounds
from hotseat.telemetry.pauses import Pauses

__all__ = ["EngineMetrics"]

QUEUE_LIMITS = ("max_num_queued_reqs", "max_num_queued_tokens", "max_queue_memory_bytes")
_COMPLETED = (FinishReason.STOP, FinishReason.LENGTH)


@dataclass(slots=True)
class _Live:
    """Instants and counts of a request that has not ended."""

    request: Request
    is_running: bool = False
    was_admitted: bool = False
    last_token_at: float | None = None


class EngineMetrics(EventSink):
    """An event sink that counts. It does no more than additions; ``exposition`` shapes them when it is scraped."""

    def __init__(self, *, max_model_len: int, num_blocks: int, counts_prefix_cache: bool = True) -> None:
        self._counts_prefix_cache = counts_prefix_cache
        self._live: dict[RequestId, _Live] = {}
        self._last_step_end = 0.0
        self._init_gauges(num_blocks)
        self._init_counters()
        self._init_histograms(max_model_len)

    def _init_gauges(self, num_blocks: int) -> None:
        self.num_running = 0
        self.num_waiting = 0
        self.num_deferred = 0
        self.blocks_used = 0
        self.blocks_cached = 0
        self.blocks_free = num_blocks

    def _init_counters(self) -> None:
        self.num_accepted = 0
        self.num_ended: Counter[str] = Counter({reason.value: 0 for reason in FinishReason})
        self.num_rejected: Counter[str] = Counter()
        self.num_queue_rejections: Counter[str] = Counter(dict.fromkeys(QUEUE_LIMITS, 0))
        self.num_preemptions: Counter[str] = Counter()
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.prompt_tokens = 0
        self.prompt_tokens_cached = 0
        self.generation_tokens = 0
        self.num_drafts = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens: Counter[str] = Counter()  # by place in the draft, 0 the first
        self.num_steps = 0
        self.seat_steps = 0
        self.computed_tokens = 0
        self.offered_tokens = 0

    def _init_histograms(self, max_model_len: int) -> None:
        self.engine_pauses = Pauses()
        self.loop_lags = Pauses()
        tokens = token_bounds(max_model_len)
        self.step_s = Histogram(histogram.STEP_BOUNDS_S)
        self.iteration_tokens = Histogram(histogram.ITERATION_TOKEN_BOUNDS)
        self.ttft_s = Histogram(histogram.TTFT_BOUNDS_S)
        self.itl_s = Histogram(histogram.ITL_BOUNDS_S)
        self.tpot_s = Histogram(histogram.ITL_BOUNDS_S)
        self.e2e_s = Histogram(histogram.LATENCY_BOUNDS_S)
        self.queue_s = Histogram(histogram.LATENCY_BOUNDS_S)
        self.prefill_s = Histogram(histogram.LATENCY_BOUNDS_S)
        self.decode_s = Histogram(histogram.LATENCY_BOUNDS_S)
        self.inference_s = Histogram(histogram.LATENCY_BOUNDS_S)
        self.request_prompt_tokens = Histogram(tokens)
        self.request_generation_tokens = Histogram(tokens)
        self.request_max_tokens = Histogram(tokens)
        self.request_computed_prompt_tokens = Histogram(tokens)
        self.request_n = Histogram(histogram.NUM_SEQUENCE_BOUNDS)
        self.request_preemptions = Histogram(histogram.NUM_PREEMPTION_BOUNDS)

    def on_arrived(self, request: Request, now: float) -> None:
        self._live[request.id] = _Live(request)
        self.num_accepted += 1
        self.num_waiting += 1

    def on_rejected(self, request: Request, error: Exception, now: float) -> None:
        match error:
            case QueueFullError():
                limit = next((name for name in QUEUE_LIMITS if name in str(error)), QUEUE_LIMITS[0])
                self.num_queue_rejections[limit] += 1
                self.num_rejected["queue_full"] += 1
            case PromptTooLongError():
                self.num_rejected["prompt_too_long"] += 1
            case InvalidRequestError():
                self.num_rejected["invalid"] += 1
            case _:
                self.num_rejected["other"] += 1

    def on_step(self, record: StepRecord, updates: Sequence[RequestUpdate]) -> None:
        self.blocks_used = record.blocks_used
        self.blocks_cached = record.blocks_cached
        self.blocks_free = record.blocks_free
        self.num_deferred = len(record.deferred)
        for request_id in record.admitted:
            self._note_admission(request_id)
        for request_id, cause in record.preempted:
            self._note_preemption(request_id, cause)
        if record.chunks:
            self._note_work(record)
        self._note_tokens(updates, record.start_s + record.duration_s)

    def on_finished(self, request: Request, update: RequestUpdate, now: float) -> None:
        live = self._live.pop(request.id)
        if live.is_running:
            self.num_running -= 1
        else:
            self.num_waiting -= 1
        assert update.finish_reason is not None, "a request ends for a reason"
        self.num_ended[update.finish_reason.value] += 1
        if update.finish_reason in _COMPLETED:
            self._note_completion(live, now)

    def _note_admission(self, request_id: RequestId) -> None:
        live = self._live.get(request_id)
        if live is None:  # aborted while the step that admitted it was computed
            return
        live.is_running = True
        self.num_running += 1
        self.num_waiting -= 1
        if live.was_admitted:
            return
        live.was_admitted = True
        request = live.request
        if self._counts_prefix_cache and request.params.prompt_logprobs is None:
            self.prefix_queries += len(request.prompt_token_ids)
            self.prefix_hits += request.num_cached_tokens

    def _note_preemption(self, request_id: RequestId, cause: str) -> None:
        self.num_preemptions[cause.partition(":")[0]] += 1
        live = self._live.get(request_id)
        if live is not None and live.is_running:
            live.is_running = False
            self.num_running -= 1
            self.num_waiting += 1

    def _note_work(self, record: StepRecord) -> None:
        num_decodes = record.num_decodes
        for _, num_draft_tokens, num_accepted in record.drafts:
            self.num_drafts += 1
            self.num_draft_tokens += num_draft_tokens
            self.num_accepted_tokens.update(map(str, range(num_accepted)))
        num_tokens = (
            num_decodes
            + sum([num for _, num, _ in record.drafts])
            + sum([chunk.end - chunk.start for chunk in record.chunks[num_decodes:]])
        )
        self.num_steps += 1
        self.seat_steps += len(record.chunks)
        self.computed_tokens += num_tokens
        self.offered_tokens += record.budget
        self.iteration_tokens.observe(num_tokens)
        self.step_s.observe(record.duration_s)

    def _note_tokens(self, updates: Sequence[RequestUpdate], now: float) -> None:
        num_tokens = num_steady = 0
        last_step_end, self._last_step_end = self._last_step_end, now
        for update in updates:
            num_new = len(update.new_token_ids)
            if not num_new:
                continue
            num_tokens += num_new
            live = self._live[update.request_id]
            last_token_at, live.last_token_at = live.last_token_at, now
            if last_token_at == last_step_end:
                num_steady += 1  # those that got a token in the last step too all waited equally long
            elif last_token_at is None:
                self._note_first_token(live.request, now)
            else:
                self.itl_s.observe(now - last_token_at)
        self.generation_tokens += num_tokens
        if num_steady:
            self.itl_s.observe(now - last_step_end, num_steady)

    def _note_first_token(self, request: Request, now: float) -> None:
        self.ttft_s.observe(now - request.arrived_at)
        self.prompt_tokens += len(request.prompt_token_ids)
        self.prompt_tokens_cached += request.num_cached_tokens

    def _note_completion(self, live: _Live, now: float) -> None:
        request, params = live.request, live.request.params
        num_prompt, num_output = len(request.prompt_token_ids), len(request.output_token_ids)
        admitted_at = now if request.admitted_at is None else request.admitted_at
        last_at = now if live.last_token_at is None else live.last_token_at
        first_at = last_at if request.first_token_at is None else request.first_token_at
        self.e2e_s.observe(now - request.arrived_at)
        self.queue_s.observe(admitted_at - request.arrived_at)
        self.prefill_s.observe(first_at - admitted_at)
        self.decode_s.observe(last_at - first_at)
        self.inference_s.observe(last_at - admitted_at)
        if num_output > 1:
            self.tpot_s.observe((last_at - first_at) / (num_output - 1))
        self.request_prompt_tokens.observe(num_prompt)
        self.request_generation_tokens.observe(num_output)
        self.request_computed_prompt_tokens.observe(num_prompt - request.num_cached_tokens)
        self.request_n.observe(params.n)
        self.request_preemptions.observe(request.num_preemptions)
        if params.max_tokens is not None:
            self.request_max_tokens.observe(params.max_tokens)
        if live.last_token_at is None:  # max_tokens 0: the prompt was computed, no token marked it
            self.prompt_tokens += num_prompt
            self.prompt_tokens_cached += request.num_cached_tokens
