"""Step costs that are learned from a record: the machine of the record comes out again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hotseat import cli
from hotseat.core.batch import Batch
from hotseat.core.config import SchedulerConfig
from hotseat.errors import ConfigError
from hotseat.simulator import Arrival, LearnedCost, Simulation, StepCost, StepLog, calibrate
from hotseat.simulator.calibration import entry_delay_s
from hotseat.simulator.observer import Observer
from hotseat.simulator.prediction import simulate_with
from hotseat.simulator.summary import Summary, summarize

TRUE = StepCost(base_s=0.004, per_token_s=0.0004, per_context_token_s=5e-7)
CONFIG = SchedulerConfig(max_model_len=4096, num_kv_blocks=4096, max_num_seqs=32)


def arrivals(rate: float, seed: int, count: int = 60) -> list[Arrival]:
    random, at = Random(seed), 0.0
    made = []
    for index in range(count):
        at += random.expovariate(rate)
        lengths = {"prompt_len": random.randint(20, 600), "output_len": random.randint(5, 80)}
        made.append(Arrival(id=f"r{index}", arrival_s=at, **lengths))
    return made


def recorded(
    cost: Callable[[Batch], float], requests: list[Arrival], between: Callable[[int], float] | None = None
) -> tuple[list[dict[str, Any]], Summary]:
    log, observer = StepLog(), Observer()
    Simulation(CONFIG, requests, cost=cost, between=between, sinks=[log, observer]).run()
    return log.records, summarize(observer, None, CONFIG.max_num_seqs)


def predicted(cost: LearnedCost, requests: list[Arrival]) -> Summary:
    observer = Observer()
    simulate_with(CONFIG, requests, cost, sinks=[observer])
    return summarize(observer, None, CONFIG.max_num_seqs)


@pytest.mark.parametrize("rate", [1.0, 4.0, 12.0])
def test_another_load_is_predicted_from_what_one_record_taught(rate: float) -> None:
    records, _ = recorded(TRUE, arrivals(3.0, seed=1))
    learned = calibrate(records)
    assert learned.median_error < 0.01
    _, truth = recorded(TRUE, arrivals(rate, seed=2))
    guess = predicted(learned, arrivals(rate, seed=2))
    assert guess.all.output_throughput == pytest.approx(truth.all.output_throughput, rel=0.01)
    for name in ("ttft_ms", "tpot_ms"):
        found, wanted = getattr(guess.all, name), getattr(truth.all, name)
        assert found.p50 == pytest.approx(wanted.p50, rel=0.02)
        assert found.p99 == pytest.approx(wanted.p99, rel=0.05)


def test_a_machine_that_is_slower_with_few_rows_is_learned_as_well() -> None:
    def cost(batch: Batch) -> float:
        return 0.003 + 0.0008 * min(batch.num_tokens, 16) + 0.0001 * max(0, batch.num_tokens - 16)

    records, _ = recorded(cost, arrivals(3.0, seed=1))
    assert calibrate(records).p90_error < 0.02


def test_noise_comes_back_in_the_order_in_which_it_was_recorded() -> None:
    random = Random(3)
    records, _ = recorded(lambda batch: TRUE(batch) * random.choice([0.9, 1.0, 1.3]), arrivals(4.0, seed=1))
    learned = calibrate(records)
    assert sum(learned.residuals) / len(learned.residuals) == pytest.approx(1, abs=0.05)
    assert 0.05 < learned.median_error < 0.25
    assert predicted(learned, arrivals(4.0, seed=2)) == predicted(learned, arrivals(4.0, seed=2))


def test_the_time_between_steps_is_learned_too() -> None:
    records, truth = recorded(TRUE, arrivals(4.0, seed=1), between=lambda count: 0.001 + 0.0002 * count)
    learned = calibrate(records)
    assert learned.between_coefficients == pytest.approx((0.001, 0.0002), rel=0.05)
    assert predicted(learned, arrivals(4.0, seed=1)).all.tpot_ms.p50 == pytest.approx(truth.all.tpot_ms.p50, rel=0.02)


def test_the_way_to_the_engine_is_that_of_requests_that_came_when_nothing_ran() -> None:
    records = [{"start_s": 1.0, "duration_s": 1.0}, {"start_s": 5.0, "duration_s": 1.0}]
    lines = [
        {"arrival_s": 0.9, "added_s": 0.91},
        {"arrival_s": 1.2, "added_s": 2.0},  # waited for a step
        {"arrival_s": 3.0, "added_s": 3.03},
        {"arrival_s": 4.0, "added_s": 4.02},
    ]
    assert entry_delay_s(lines, records) == pytest.approx(0.02)
    assert entry_delay_s([], records) == 0


def test_too_few_steps_teach_nothing() -> None:
    records, _ = recorded(TRUE, [Arrival(id="a", arrival_s=0, prompt_len=10, output_len=10)])
    with pytest.raises(ConfigError, match="10 steps that computed something; 50 are needed"):
        calibrate(records)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A record, its requests and a report of its clients, who saw each first token 7 ms later."""
    requests = arrivals(3.0, seed=1)
    records, _ = recorded(TRUE, requests)
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    lines = [
        {"id": one.id, "arrival_s": one.arrival_s, "added_s": one.arrival_s, "prompt_len": one.prompt_len}
        | {"output_len": one.output_len}
        for one in requests
    ]
    (tmp_path / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    observer = Observer()
    Simulation(CONFIG, requests, cost=TRUE, sinks=[observer]).run()
    seen = [{"error": None, "sent_s": 0.0, "chunks_s": [outcome.ttft_s + 0.007]} for outcome in observer.outcomes]
    (tmp_path / "report.json").write_text(json.dumps({"requests": seen}))
    return tmp_path


def test_the_command_learns_keeps_and_uses_a_cost(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = [f"--calibrate={files}/steps.jsonl", f"--calibrate-requests={files}/requests.jsonl"]
    named += [f"--calibrate-bench={files}/report.json", f"--save-step-cost={files}/cost.json"]
    assert cli.main(["simulate", *named]) == 0
    assert "7.00 ms on the way in and out" in capsys.readouterr().out
    assert cli.main(["simulate", str(files / "requests.jsonl"), f"--step-cost={files}/cost.json"]) == 0
    text = capsys.readouterr().out
    assert "what was learned from" in text
    assert "60 completed" in text


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--save-step-cost=x.json"], "save_step_cost belongs to calibrate"),
        (["--step-cost=missing.json"], "is no file that --save-step-cost wrote"),
        (["--calibrate=FILES/steps.jsonl", "--calibrate-bench=FILES/report.json"], "needs calibrate_requests"),
        (["--calibrate=FILES/steps.jsonl", "--calibrate-requests=FILES/report.json"], "is no file that"),
        (["--calibrate=FILES/steps.jsonl"], "requests is missing"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(
    files: Path, words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["simulate", *(word.replace("FILES", str(files)) for word in words)]) == 2
    assert complaint in capsys.readouterr().err
