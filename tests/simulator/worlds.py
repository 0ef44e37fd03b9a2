"""Simulated runs in one call, with everything that happened in them at hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from hotseat.core.batch import RequestUpdate
from hotseat.core.config import SchedulerConfig
from hotseat.core.events import EventSink, StepRecord
from hotseat.core.request import Request
from hotseat.simulator import Arrival, Simulation, Slo, StepCost, Summary
from hotseat.simulator.observer import Observer, Outcome
from hotseat.simulator.summary import summarize

COST = StepCost(base_s=0.004, per_token_s=0.0004, per_context_token_s=5e-7)


class Witness(EventSink):
    """A sink that keeps every record and every request."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []
        self.requests: dict[str, Request] = {}

    def on_step(self, record: StepRecord, updates: Sequence[RequestUpdate]) -> None:
        self.records.append(record)

    def on_arrived(self, request: Request, now: float) -> None:
        self.requests[request.id] = request


class Run:
    """One simulation, run to its end."""

    def __init__(self, arrivals: Iterable[Arrival], cost: StepCost = COST, **options: Any) -> None:
        defaults = {"max_model_len": 65536, "num_kv_blocks": 16384}
        self.config = SchedulerConfig(**(defaults | options))
        self.observer, self.witness = Observer(), Witness()
        self.simulation = Simulation(self.config, arrivals, cost=cost, sinks=[self.observer, self.witness])
        self.simulation.run()
        self.simulation.scheduler.check_invariants()

    @property
    def records(self) -> list[StepRecord]:
        return self.witness.records

    @property
    def outcomes(self) -> dict[str, Outcome]:
        return {outcome.id: outcome for outcome in self.observer.outcomes}

    def summary(self, slo: str | None = None) -> Summary:
        """Return the run's numbers."""
        return summarize(self.observer, None if slo is None else Slo.parse(slo), self.config.max_num_seqs)

    def step_of_admission(self, request_id: str) -> int:
        """Return the index of the record in which a request first sat down."""
        return next(index for index, record in enumerate(self.records) if request_id in record.admitted)

    def step_of_first_token(self, request_id: str) -> int:
        """Return the index of the record in which a request got its first token."""
        for index, record in enumerate(self.records):
            for chunk in record.chunks:
                if chunk.request_id == request_id and chunk.samples:
                    return index
        raise AssertionError(f"{request_id} never got a token")


def heavy_tailed(num_requests: int, rate: float, seed: int = 0, **fields: Any) -> list[Arrival]:
    """Return chats as they come: Poisson arrivals, log-normal lengths."""
    random, now, arrivals = Random(seed), 0.0, []
    for index in range(num_requests):
        now += random.expovariate(rate)
        arrivals.append(
            Arrival(
                id=f"r{index}",
                arrival_s=now,
                prompt_len=min(8000, max(1, int(random.lognormvariate(5.5, 1.0)))),
                output_len=min(2000, max(1, int(random.lognormvariate(4.5, 1.0)))),
                **fields,
            )
        )
    return arrivals
