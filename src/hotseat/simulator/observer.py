"""Outcomes of requests and sums over steps, collected during a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hotseat.core.batch import RequestUpdate
from hotseat.core.events import StepRecord
from hotseat.core.request import FinishReason, Request, RequestId
from hotseat.errors import PromptTooLongError, QueueFullError

__all__ = ["Observer", "Outcome", "Refusal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The times and the end of an accepted request."""

    id: str
    tenant: str
    priority: int
    reason: FinishReason
    arrived_at: float
    deadline_at: float | None
    admitted_at: float | None
    first_token_at: float | None
    finished_at: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    is_cut: bool  # it had more to say than a sequence, or the KV cache, holds

    @property
    def is_completed(self) -> bool:
        return self.reason in (FinishReason.STOP, FinishReason.LENGTH)

    @property
    def ttft_s(self) -> float:
        """Return the time to the first token; to the end when no token was asked for."""
        return (self.finished_at if self.first_token_at is None else self.first_token_at) - self.arrived_at

    @property
    def tpot_s(self) -> float | None:
        """Return the mean time per output token after the first; ``None`` when there is no second."""
        if self.first_token_at is None or self.num_output_tokens < 2:
            return None
        return (self.finished_at - self.first_token_at) / (self.num_output_tokens - 1)

    @property
    def e2e_s(self) -> float:
        return self.finished_at - self.arrived_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A request that never entered the queue."""

    id: str
    tenant: str
    priority: int
    kind: str  # "too long", "queue full" or "invalid"
    message: str


class Observer:
    """An event sink that keeps an outcome for each request and sums over steps; a step costs it O(what changed).

    Every request that decodes gets a token in every step, so the gap between its tokens is the time since the step
    before. Only a gap over a preemption has to be measured.
    """

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.refusals: list[Refusal] = []
        self.gaps: list[tuple[float, int]] = []  # seconds between two tokens of a request, and how many waited so long
        self.preemptions: Counter[str] = Counter()  # by cause
        self.num_accepted = 0
        self.num_steps = 0  # that computed something
        self.num_request_steps = 0
        self.num_tokens = 0  # computed
        self.num_tokens_offered = 0
        self.busy_s = 0.0
        self.seat_s = 0.0  # seats taken, summed over time
        self._live: dict[RequestId, Request] = {}
        self._interrupted: dict[RequestId, float] = {}  # preempted after a token: when that was
        self._aborted: set[RequestId] = set()  # since the last step
        self._last_end = 0.0

    def on_arrived(self, request: Request, now: float) -> None:
        self._live[request.id] = request
        self.num_accepted += 1

    def on_rejected(self, request: Request, error: Exception, now: float) -> None:
        kinds = {PromptTooLongError: "too long", QueueFullError: "queue full"}
        self.refusals.append(
            Refusal(
                id=request.id,
                tenant=request.tenant,
                priority=request.priority,
                kind=kinds.get(type(error), "invalid"),
                message=str(error),
            )
        )

    def on_step(self, record: StepRecord, updates: Sequence[RequestUpdate]) -> None:
        end = record.start_s + record.duration_s
        for request_id, cause in record.preempted:
            self.preemptions[cause.partition(":")[0]] += 1
            request = self._live.get(request_id)
            if request is not None and request.output_token_ids:
                self._interrupted.setdefault(request_id, self._last_end)
        if record.chunks:
            self._note_work(record)
            self._note_gaps(record, end)
        self._aborted.clear()
        self._last_end = end

    def on_finished(self, request: Request, update: RequestUpdate, now: float) -> None:
        assert update.finish_reason is not None, "a request ends for a reason"
        del self._live[request.id]
        self._interrupted.pop(request.id, None)
        if update.finish_reason is FinishReason.ABORT:
            self._aborted.add(request.id)
        self.outcomes.append(
            Outcome(
                id=request.id,
                tenant=request.tenant,
                priority=request.priority,
                reason=update.finish_reason,
                arrived_at=request.arrived_at,
                deadline_at=request.deadline_at,
                admitted_at=request.admitted_at,
                first_token_at=request.first_token_at,
                finished_at=now,
                num_prompt_tokens=len(request.prompt_token_ids),
                num_output_tokens=len(request.output_token_ids),
                num_cached_tokens=request.num_cached_tokens,
                num_preemptions=request.num_preemptions,
                is_cut=_is_cut(request, update),
            )
        )

    def _note_work(self, record: StepRecord) -> None:
        num_decodes = record.num_decodes
        num_tokens = num_decodes + sum([chunk.end - chunk.start for chunk in record.chunks[num_decodes:]])
        self.num_steps += 1
        self.num_request_steps += len(record.chunks)
        self.num_tokens += num_tokens
        self.num_tokens_offered += record.budget
        self.busy_s += record.duration_s
        self.seat_s += record.duration_s * len(record.chunks)

    def _note_gaps(self, record: StepRecord, end: float) -> None:
        num_steady = record.num_decodes
        if self._aborted:
            num_steady -= sum(chunk.request_id in self._aborted for chunk in record.chunks[:num_steady])
        if num_steady:
            self.gaps.append((end - self._last_end, num_steady))
        if self._interrupted:
            for chunk in record.chunks[record.num_decodes :]:
                if chunk.samples and chunk.request_id in self._interrupted:
                    self.gaps.append((end - self._interrupted.pop(chunk.request_id), 1))


def _is_cut(request: Request, update: RequestUpdate) -> bool:
    wanted = request.params.max_tokens
    ended_by_length = update.finish_reason is FinishReason.LENGTH
    return ended_by_length and wanted is not None and len(request.output_token_ids) < wanted
