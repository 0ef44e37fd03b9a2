"""The numbers of a run, against their definitions."""

from __future__ import annotations

from typing import Any

import pytest

from hotseat.core.request import FinishReason
from hotseat.errors import ConfigError
from hotseat.simulator import Arrival, Slo, StepCost
from hotseat.simulator.observer import Outcome
from hotseat.simulator.summary import Spread
from hotseat.simulator.tables import format_comparison, format_summary
from simulator.worlds import Run


def outcome(**fields: Any) -> Outcome:
    defaults: dict[str, Any] = {
        "id": "r",
        "tenant": "",
        "priority": 0,
        "reason": FinishReason.LENGTH,
        "arrived_at": 1.0,
        "deadline_at": None,
        "admitted_at": 1.5,
        "first_token_at": 2.0,
        "finished_at": 5.0,
        "num_prompt_tokens": 9,
        "num_output_tokens": 4,
        "num_cached_tokens": 0,
        "num_preemptions": 0,
        "is_cut": False,
    }
    return Outcome(**(defaults | fields))


def test_percentiles_are_values_that_occurred() -> None:
    spread = Spread.of((value / 1000, 1) for value in range(1, 101))
    assert spread is not None
    assert (spread.p50, spread.p90, spread.p99, spread.max, spread.mean) == (50, 90, 99, 100, pytest.approx(50.5))


def test_a_value_counts_as_often_as_it_occurred() -> None:
    spread = Spread.of([(2.0, 1), (0.5, 98), (1.0, 1)])
    assert spread is not None
    assert (spread.p50, spread.p90, spread.p99, spread.max) == (500, 500, 1000, 2000)
    assert Spread.of([]) is None


def test_times_are_what_their_names_say() -> None:
    one = outcome()
    assert (one.ttft_s, one.tpot_s, one.e2e_s) == (1.0, 1.0, 4.0)
    assert outcome(num_output_tokens=1).tpot_s is None
    assert outcome(first_token_at=None, num_output_tokens=0).ttft_s == 4.0


@pytest.mark.parametrize(
    ("slo", "fields", "is_met"),
    [
        ("ttft:1000", {}, True),
        ("ttft:999", {}, False),
        ("ttft:1000,tpot:1000,e2e:4000", {}, True),
        ("tpot:999", {}, False),
        ("tpot:1", {"num_output_tokens": 1}, True),
        ("e2e:3999", {}, False),
        ("ttft:1000", {"reason": FinishReason.TIMEOUT}, False),
        ("ttft:1000", {"reason": FinishReason.ABORT}, False),
    ],
)
def test_an_slo_is_met_when_every_bound_is_kept(slo: str, fields: dict[str, Any], is_met: bool) -> None:
    assert Slo.parse(slo).is_met_by(outcome(**fields)) is is_met


@pytest.mark.parametrize("text", ["", "ttft", "ttft:", "ttft:x", "ttft:-1", "itl:5", "ttft:1,ttft:2", "ttft:nan"])
def test_a_wrong_slo_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ConfigError, match="slo must be written like ttft:1000,tpot:100") as caught:
        Slo.parse(text)
    assert repr(text) in str(caught.value)


def two_tenants() -> Run:
    fields: dict[str, Any] = {"prompt_len": 10, "output_len": 3}
    arrivals = [
        Arrival(id="a1", arrival_s=0.0, tenant="a", **fields),
        Arrival(id="a2", arrival_s=0.0, tenant="a", priority=1, **fields),
        Arrival(id="b1", arrival_s=0.0, tenant="b", deadline_ms=5000, **fields),
        Arrival(id="b2", arrival_s=1.0, tenant="b", abort_at_s=1.5, **fields),
        Arrival(id="b3", arrival_s=0.0, tenant="b", **(fields | {"prompt_len": 900})),
    ]
    return Run(
        arrivals, StepCost(base_s=1.0, per_token_s=0.0, per_context_token_s=0.0), max_model_len=500, max_num_seqs=2
    )


def test_tenants_and_priorities_add_up_to_the_whole() -> None:
    summary = two_tenants().summary("ttft:1500")
    assert list(summary.tenants) == ["a", "b"]
    assert list(summary.priorities) == [0, 1]
    for groups in (summary.tenants.values(), summary.priorities.values()):
        for name in ("num_requests", "num_completed", "num_refused", "num_aborted", "num_met_slo", "num_output_tokens"):
            assert sum(getattr(group, name) for group in groups) == getattr(summary.all, name), name


def test_goodput_counts_who_kept_the_slo_and_leaves_out_who_was_aborted() -> None:
    summary = two_tenants().summary("ttft:1500")
    # a1 and a2 run from 0 to 3, then b1, b2 is aborted, b3 is refused.
    assert summary.duration_s == 6.0
    assert summary.all.num_met_slo == 2
    assert summary.all.goodput == 2 / 6
    assert summary.all.slo_attainment == 2 / 4
    assert (summary.all.num_with_deadline, summary.all.num_met_deadline) == (1, 1)
    assert summary.all.num_aborted == summary.all.num_refused == 1


def test_use_of_seats_and_budget_is_measured_over_busy_time() -> None:
    run = Run(
        [Arrival(id="r", arrival_s=5.0, prompt_len=64, output_len=4)],
        StepCost(base_s=1.0, per_token_s=0.0, per_context_token_s=0.0),
        max_num_seqs=4,
        max_num_batched_tokens=64,
    )
    summary = run.summary()
    assert summary.seat_use == 0.25
    assert summary.budget_use == (64 + 3) / (4 * 64)
    assert (summary.num_steps, summary.num_request_steps, summary.busy_share) == (4, 4, 1.0)


def test_the_table_shows_every_number_by_name() -> None:
    summary = two_tenants().summary("ttft:1500")
    table = format_summary(summary, Slo.parse("ttft:1500"), 2)
    for word in ("TTFT", "TPOT", "ITL", "E2E", "throughput", "goodput", "preemptions", "seat use", "deadlines met"):
        assert word in table, word
    assert "refused: too long" in table
    assert "b3: the prompt has 900 tokens" in table
    assert table.count("\na ") == table.count("\nb ") == 1


def test_runs_stand_side_by_side() -> None:
    summary = two_tenants().summary("ttft:1500")
    lines = format_comparison({"static": summary, "my.module:Policy": summary}, Slo.parse("ttft:1500")).splitlines()
    assert lines[1].split() == ["static", "my.module:Policy"]
    assert ["goodput", "requests/s", "0.333", "0.333"] in [line.split() for line in lines]
    assert any(line.startswith("tenant b goodput") for line in lines)


def test_an_empty_run_has_a_table_too() -> None:
    run = Run([Arrival(id="r", arrival_s=0.0, prompt_len=900, output_len=3)], max_model_len=100)
    assert "1 refused" in format_summary(run.summary("ttft:1"), Slo.parse("ttft:1"), 64)
