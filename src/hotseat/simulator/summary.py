"""The numbers of a run.

    TTFT      first token − arrival
    TPOT      (last token − first token) / (output tokens − 1)
    ITL       gap between two tokens of a request, over all gaps
    E2E       end − arrival
    goodput   completed requests that met every target of the SLO / duration
    duration  last end − first arrival

Requests that their client aborted count for nothing but their number; refused ones, and those that timed out or
failed, count as not having met the SLO.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hotseat.core.request import FinishReason
from hotseat.errors import ConfigError
from hotseat.simulator.observer import Observer, Outcome, Refusal

__all__ = ["Group", "Slo", "Spread", "Summary", "summarize"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Upper bounds in seconds that a request has to keep, each."""

    ttft_s: float = math.inf
    tpot_s: float = math.inf
    e2e_s: float = math.inf

    @classmethod
    def parse(cls, text: str) -> Slo:
        """Read ``ttft:1000,tpot:100`` (milliseconds; ``e2e`` is known too).

        Raises:
            ConfigError: it is not of this form.
        """
        bounds: dict[str, float] = {}
        for part in text.split(","):
            name, _, number = part.strip().partition(":")
            try:
                bound = float(number)
            except ValueError:
                bound = math.nan
            if name not in ("ttft", "tpot", "e2e") or not bound > 0 or f"{name}_s" in bounds:
                raise ConfigError(
                    f"slo must be written like ttft:1000,tpot:100 (milliseconds; ttft, tpot and e2e, each once), "
                    f"not {text!r}"
                )
            bounds[f"{name}_s"] = bound / 1000
        return cls(**bounds)

    def is_met_by(self, outcome: Outcome) -> bool:
        """Tell whether a request completed in time."""
        return (
            outcome.is_completed
            and outcome.ttft_s <= self.ttft_s
            and (outcome.tpot_s or 0.0) <= self.tpot_s
            and outcome.e2e_s <= self.e2e_s
        )

    def __str__(self) -> str:
        bounds = {"TTFT": self.ttft_s, "TPOT": self.tpot_s, "E2E": self.e2e_s}
        return ", ".join(f"{name} ≤ {bound * 1000:g} ms" for name, bound in bounds.items() if bound < math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: Iterable[tuple[float, int]]) -> Spread | None:
        """Return the spread of values that occur so many times each; ``None`` of none at all.

        A percentile is the smallest value that so many percent do not exceed.
        """
        ordered = sorted(seconds)
        total = sum(count for _, count in ordered)
        if not total:
            return None
        ranks = [max(1, math.ceil(total * percent / 100)) for percent in (50, 90, 99)]
        found: list[float] = []
        seen = 0
        for value, count in ordered:
            seen += count
            while len(found) < len(ranks) and seen >= ranks[len(found)]:
                found.append(value * 1000)
        mean = sum(value * count for value, count in ordered) / total
        return cls(mean=mean * 1000, p50=found[0], p90=found[1], p99=found[2], max=ordered[-1][0] * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A number of requests: all, those of a tenant, those of a priority."""

    num_requests: int
    num_completed: int
    num_cut: int  # of the completed: ended at the longest sequence that fits
    num_refused: int
    num_aborted: int
    num_timed_out: int
    num_failed: int
    num_met_slo: int | None  # None: there is no SLO
    slo_attainment: float | None  # of all that were not aborted
    goodput: float | None  # requests per second
    num_with_deadline: int
    num_met_deadline: int  # first token by then
    request_throughput: float  # per second, completed ones
    prompt_throughput: float  # tokens per second, of those that were admitted
    output_throughput: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    ttft_ms: Spread | None  # of completed requests, as the next two
    tpot_ms: Spread | None
    e2e_ms: Spread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run."""

    duration_s: float
    num_steps: int
    num_request_steps: int
    busy_share: float  # of the duration
    seat_use: float  # seats taken / seats, over the time that steps took
    budget_use: float  # tokens computed / tokens offered
    preemptions: dict[str, int]  # by cause
    itl_ms: Spread | None
    all: Group
    tenants: dict[str, Group]
    priorities: dict[int, Group]
    refused: dict[str, int]  # by kind
    refusals: list[dict[str, str]]  # the first ones


MAX_REFUSALS_SHOWN = 20


def summarize(observer: Observer, slo: Slo | None, num_seats: int) -> Summary:
    """Work out the numbers of a run that is over."""
    outcomes, refusals = observer.outcomes, observer.refusals
    assert len(outcomes) == observer.num_accepted, "an accepted request has not ended"
    begin = min((outcome.arrived_at for outcome in outcomes), default=0.0)
    duration_s = max((outcome.finished_at for outcome in outcomes), default=0.0) - begin
    rows: list[Outcome | Refusal] = [*outcomes, *refusals]
    tenants = sorted({entry.tenant for entry in rows})
    priorities = sorted({entry.priority for entry in rows})
    kinds = [refusal.kind for refusal in refusals]
    shown = [{"id": refusal.id, "error": refusal.message} for refusal in refusals[:MAX_REFUSALS_SHOWN]]

    def group(**wanted: Any) -> Group:
        return _group(_select(outcomes, wanted), _select(refusals, wanted), slo, duration_s)

    return Summary(
        duration_s=duration_s,
        num_steps=observer.num_steps,
        num_request_steps=observer.num_request_steps,
        busy_share=_ratio(observer.busy_s, duration_s),
        seat_use=_ratio(observer.seat_s, observer.busy_s * num_seats),
        budget_use=_ratio(observer.num_tokens, observer.num_tokens_offered),
        preemptions=dict(observer.preemptions),
        itl_ms=Spread.of(observer.gaps),
        all=group(),
        tenants={tenant: group(tenant=tenant) for tenant in tenants},
        priorities={priority: group(priority=priority) for priority in priorities},
        refused={kind: kinds.count(kind) for kind in sorted(set(kinds))},
        refusals=shown,
    )


def _select(entries: Sequence[Any], wanted: dict[str, Any]) -> list[Any]:
    return [entry for entry in entries if all(getattr(entry, name) == value for name, value in wanted.items())]


def _group(outcomes: Sequence[Outcome], refusals: Sequence[Refusal], slo: Slo | None, duration_s: float) -> Group:
    completed = [outcome for outcome in outcomes if outcome.is_completed]
    admitted = [outcome for outcome in outcomes if outcome.admitted_at is not None]
    reasons = [outcome.reason for outcome in outcomes]
    num_aborted = reasons.count(FinishReason.ABORT)
    num_requests = len(outcomes) + len(refusals)
    num_met = None if slo is None else sum(map(slo.is_met_by, completed))
    with_deadline = [outcome for outcome in outcomes if outcome.deadline_at is not None]
    num_prompt_tokens = sum(outcome.num_prompt_tokens for outcome in admitted)
    num_output_tokens = sum(outcome.num_output_tokens for outcome in outcomes)
    return Group(
        num_requests=num_requests,
        num_completed=len(completed),
        num_cut=sum(outcome.is_cut for outcome in completed),
        num_refused=len(refusals),
        num_aborted=num_aborted,
        num_timed_out=reasons.count(FinishReason.TIMEOUT),
        num_failed=reasons.count(FinishReason.ERROR),
        num_met_slo=num_met,
        slo_attainment=None if num_met is None else _ratio(num_met, num_requests - num_aborted),
        goodput=None if num_met is None else _ratio(num_met, duration_s),
        num_with_deadline=len(with_deadline),
        num_met_deadline=sum(map(_met_deadline, with_deadline)),
        request_throughput=_ratio(len(completed), duration_s),
        prompt_throughput=_ratio(num_prompt_tokens, duration_s),
        output_throughput=_ratio(num_output_tokens, duration_s),
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_output_tokens,
        num_cached_tokens=sum(outcome.num_cached_tokens for outcome in admitted),
        num_preemptions=sum(outcome.num_preemptions for outcome in outcomes),
        ttft_ms=Spread.of((outcome.ttft_s, 1) for outcome in completed),
        tpot_ms=Spread.of((outcome.tpot_s, 1) for outcome in completed if outcome.tpot_s is not None),
        e2e_ms=Spread.of((outcome.e2e_s, 1) for outcome in completed),
    )


def _met_deadline(outcome: Outcome) -> bool:
    if outcome.deadline_at is None or outcome.first_token_at is None:
        return False
    return outcome.first_token_at <= outcome.deadline_at


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
