"""``hotseat simulate`` and ``hotseat bench scheduler`` from the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hotseat import cli

COST = ["--step-cost", "0.01,0.001,0"]


class LongestFirst:
    """A user's own policy."""

    def key(self, request: Any, now: float) -> tuple[float, ...]:
        return (-request.num_prompt_tokens,)

    def may_preempt(self, waiting: Any, running: Any) -> bool:
        return False


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HOTSEAT_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    lines = [
        {
            "id": f"r{index}",
            "arrival_s": 0.05 * index,
            "prompt_len": 40 + 7 * (index * 11 % 30),
            "output_len": 10 + index % 5,
            "tenant": "ab"[index % 2],
            "priority": index % 3,
        }
        for index in range(30)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str | Path, status: int = 0) -> str:
    assert cli.main(["simulate", *map(str, words)]) == status
    captured = capsys.readouterr()
    return captured.out if status == 0 else captured.out + captured.err


def test_a_run_prints_its_numbers_and_writes_its_record(
    requests: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record.jsonl"
    out = run(capsys, "--requests", requests, *COST, "--max-num-seqs", "4", "--record", record, "--slo", "ttft:500")
    assert "30 completed" in out
    assert "seat use" in out
    assert "TTFT ≤ 500 ms" in out
    steps = [json.loads(line) for line in record.read_text().splitlines()]
    assert list(steps[0]) == [
        *("step", "start_s", "duration_s", "scheduled", "admitted", "finished", "preempted", "deferred", "waiting"),
        *("blocks_used", "blocks_cached", "blocks_free", "budget", "schedule_s"),
    ]
    assert steps[0]["scheduled"] == [{"id": "r0", "seat": 0, "start": 0, "end": 40, "phase": "prefill"}]
    assert steps[0]["duration_s"] == pytest.approx(0.01 + 40 * 0.001)
    assert [step["step"] for step in steps] == list(range(len(steps)))
    assert max(len(step["scheduled"]) for step in steps) == 4
    ended = [end["id"] for step in steps for end in step["finished"]]
    assert sorted(ended) == sorted(f"r{index}" for index in range(30))


def test_the_same_run_as_json(requests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, requests, *COST, "--json", "--limit", "10", "--slo", "ttft:500,tpot:50")
    document = json.loads(out)
    assert document["schema"] == "hotseat.simulate/1"
    assert document["command"].startswith("hotseat simulate ")
    summary = document["runs"]["fcfs"]["summary"]
    assert summary["all"]["num_completed"] == 10
    assert summary["all"]["ttft_ms"]["p50"] > 0
    assert set(summary["tenants"]) == {"a", "b"}
    assert document["runs"]["fcfs"]["scheduler"]["max_num_seqs"] == 64


def test_batching_modes_side_by_side_have_a_record_each(
    requests: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "out.jsonl"
    words = ("--compare", "static,dynamic,continuous", "--batch-size", "8", "--record", record)
    out = run(capsys, "--requests", requests, *COST, *words)
    assert ["static", "dynamic", "continuous"] in [line.split() for line in out.splitlines()]
    assert {path.name for path in tmp_path.glob("out*")} == {
        f"out.{mode}.jsonl" for mode in ("static", "dynamic", "continuous")
    }


def test_policies_side_by_side_may_be_the_users_own(requests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--compare-policy", "fcfs,sjf,simulator.test_command:LongestFirst", "--max-num-seqs", "2")
    out = run(capsys, "--requests", requests, *COST, *words)
    ttft = next(line.split()[-3:] for line in out.splitlines() if line.startswith("TTFT p50"))
    assert len(set(ttft)) == 3, "three policies, three orders"


def test_capacity_policies_side_by_side_show_what_reserving_costs_and_saves(
    requests: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--compare-capacity", "max-utilization,no-evict", "--num-kv-blocks", "24", "--json")
    runs = json.loads(run(capsys, "--requests", requests, *COST, *words))["runs"]
    assert list(runs) == ["max-utilization", "no-evict"]
    preempts, reserves = (entry["summary"] for entry in runs.values())
    assert reserves["preemptions"] == {}
    assert reserves["seat_use"] < preempts["seat_use"]


def test_options_come_from_a_file_as_well(requests: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("max-num-seqs: 3\nscheduling_policy: sjf\nstep-cost: 0.01,0,0\n")
    document = json.loads(run(capsys, "--requests", requests, "--config", config, "--json"))
    assert document["runs"]["sjf"]["scheduler"]["max_num_seqs"] == 3


def test_more_seats_than_the_default_budget_raise_it(requests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(capsys, "--requests", requests, "--max-num-seqs", "1000", "--json"))
    assert document["runs"]["fcfs"]["scheduler"]["max_num_batched_tokens"] == 1000


def test_what_can_never_fit_is_named_and_the_others_go_on(requests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "--requests", requests, *COST, "--max-model-len", "200")
    assert "7 refused" in out
    assert "r13: the prompt has 201 tokens" in out


def test_a_replay_of_a_record_tells_whether_the_batches_are_the_same(
    requests: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record.jsonl"
    run(capsys, "--requests", requests, *COST, "--record", record)
    steps = record.read_text().count("\n")
    out = run(capsys, "--requests", requests, "--replay", record)
    assert f"{steps} steps replayed" in out
    assert f"{steps} with the same batch" in out
    assert not json.loads(
        run(capsys, "--requests", requests, "--replay", record, "--max-num-seqs", "2", "--json", status=1)
    )["is_equal"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "requests is missing"),
        (["nothing.jsonl"], "nothing.jsonl cannot be read"),
        (
            ["FILE", "--compare", "static,magic"],
            "compare must list some of continuous, static, dynamic, not 'static",
        ),
        (["FILE", "--compare", "static", "--compare-policy", "sjf"], "exclude each other"),
        (
            ["FILE", "--compare-capacity", "no-evict,all"],
            "compare_capacity must list some of max-utilization, no-evict",
        ),
        (["FILE", "--compare-policy", "fcfs,,sjf"], "compare_policy must list different words"),
        (["FILE", "--compare-policy", "fcfs,lottery"], "scheduling_policy must be fcfs, priority"),
        (["FILE", "--slo", "fast"], "slo must be written like ttft:1000,tpot:100"),
        (["FILE", "--step-cost", "1"], "step_cost must be base_s,per_token_s,per_context_token_s"),
        (["FILE", "--speedup", "0"], "speedup must be a positive number, not 0.0"),
        (["FILE", "--limit", "0"], "limit must be at least 1, not 0"),
        (["FILE", "--max-num-seqs", "0"], "max_num_seqs must be at least 1, not 0"),
        (["FILE", "--record", "/nowhere/at/all"], "record '/nowhere/at/all' cannot be written"),
        (["FILE", "--replay", "/nowhere/at/all"], "/nowhere/at/all cannot be read"),
        (["FILE", "--model", "x"], "unknown option --model"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    requests: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["simulate", *(str(requests) if word == "FILE" else word for word in words)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("hotseat: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_record_that_does_not_fit_on_the_disk_is_an_error(requests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no full device")
    assert "cannot be written" in run(capsys, "--requests", requests, "--record", "/dev/full", status=2)


def test_the_cost_of_the_scheduler_is_measured_point_by_point(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "scheduler", "--running", "4,8", "--waiting", "0,20", "--num-steps", "5", "--num-rounds", "2"]
    assert cli.main(words) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[:2] for row in rows[-4:]] == [["4", "0"], ["4", "20"], ["8", "0"], ["8", "20"]]
    assert cli.main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["machine"]["num_cores"] >= 1
    for point in document["points"]:
        total = point["schedule_us"] + point["update_us"]
        assert point["us_per_running"] == pytest.approx(total / point["num_running"], abs=1e-3)
        assert point["us_per_running"] == min(point["rounds"])


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--running", "0"], "running must list integers of at least 1"), (["--num-steps", "0"], "num_steps must be at")],
)
def test_a_mistake_in_the_bench_is_one_line_and_status_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "scheduler", *words]) == 2
    assert message in capsys.readouterr().err
