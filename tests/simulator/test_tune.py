"""``hotseat tune``: options that keep a target, or what stands in the way."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from hotseat import cli
from hotseat.core.config import SchedulerConfig
from hotseat.simulator import Arrival, Slo, StepCost
from hotseat.simulator.binding import binding_resource
from hotseat.simulator.command import run_once
from hotseat.simulator.tune import search

COST = "0.004,0.0004,5e-7"
SLO = Slo(ttft_s=1.0, tpot_s=0.2)


def write_trace(path: Path, rate: float, count: int = 30, seed: int = 1) -> Path:
    random, at, lines = Random(seed), 0.0, []
    for index in range(count):
        at += random.expovariate(rate)
        prompt_len = 1500 if index % 10 == 5 else random.randint(20, 200)
        lines.append(
            {"id": f"r{index}", "arrival_s": at, "prompt_len": prompt_len, "output_len": random.randint(5, 60)}
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> str:
    assert cli.main(["tune", *map(str, words), "--step-cost", COST]) == status
    captured = capsys.readouterr()
    return captured.out if status != 2 else captured.err


def test_a_target_that_few_seats_miss_is_met_with_more_and_the_yaml_says_how(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, best = write_trace(tmp_path / "trace.jsonl", 6.0), tmp_path / "best.yaml"
    words = [trace, "--slo", "ttft:1500,tpot:300", "--max-num-seqs", "1", "--output", best]
    text = run(capsys, *words)
    assert "the best gains" in text
    assert f"hotseat serve --config {best}" in text
    chosen = yaml.safe_load(best.read_text())
    assert chosen["max-num-seqs"] > 1
    simulated = ["simulate", str(trace), "--config", str(best), "--slo", "ttft:1500,tpot:300", "--step-cost", COST]
    assert cli.main([*simulated, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["runs"].values()
    assert found["summary"]["all"]["slo_attainment"] >= 0.99


def test_without_a_file_the_yaml_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(tmp_path / "trace.jsonl", 4.0, count=20)
    text = run(capsys, trace, "--slo", "ttft:2000", "--max-num-seqs", "1")
    assert "max-num-seqs: " in text.partition("# hotseat serve --config FILE")[2]


@pytest.mark.parametrize(
    ("rate", "slo", "words", "binds"),
    [
        (1.0, "tpot:1", [], "the speed of one step: alone, a token takes"),
        (50.0, "ttft:500,tpot:300", [], "computing: steps take"),
    ],
)
def test_what_binds_is_said_when_nothing_meets_the_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rate: float, slo: str, words: list[str], binds: str
) -> None:
    text = run(capsys, write_trace(tmp_path / "trace.jsonl", rate), "--slo", slo, *words, status=1)
    assert f"the target cannot be met: {binds}" in text
    assert "replicas" in text


def test_too_few_blocks_seats_and_bursts_are_told_apart() -> None:
    def words(count: int, rate: float, **options: Any) -> str:
        config = SchedulerConfig(max_model_len=1024, **{"num_kv_blocks": 4096, **options})
        arrivals = [Arrival(id=f"r{i}", arrival_s=i / rate, prompt_len=60, output_len=60) for i in range(count)]
        runs = [run_once(config, part, StepCost.parse(COST), None, SLO) for part in (arrivals, arrivals[:1])]
        return binding_resource(runs[0], runs[1], SLO)

    assert words(20, 1000.0, num_kv_blocks=40).startswith("KV blocks")
    assert words(20, 1.5, max_num_seqs=1).startswith(("seats", "bursts"))
    assert words(4, 2.0).startswith("bursts")
    assert words(60, 60.0).startswith("computing")


def test_the_search_never_ends_below_where_it_began() -> None:
    random = Random(4)
    arrivals = [
        Arrival(id=f"r{i}", arrival_s=i * 0.4, prompt_len=random.randint(20, 900), output_len=random.randint(5, 80))
        for i in range(40)
    ]
    config = SchedulerConfig(max_model_len=4096, num_kv_blocks=2048)
    found = search(config, arrivals, StepCost.parse(COST), SLO, lambda config: None)
    begin = next(one for one in found if not one.changes)
    assert found[0].rank(SLO) <= begin.rank(SLO)
    assert len({tuple(sorted(one.changes.items())) for one in found}) == len(found) > 10


def test_a_report_stands_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    trace, report = write_trace(tmp_path / "trace.jsonl", 1.0, count=20), tmp_path / "report.html"
    run(capsys, trace, "--slo", "ttft:1500", "--html", report)
    text = report.read_text()
    assert text.count("<svg") == 2
    assert "http" not in text.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    ).replace("https://matplotlib.org", "")
    assert "options as they are" in text


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "requests and slo are needed"),
        (["FILE"], "requests and slo are needed"),
        (["FILE", "--slo", "x:1"], "slo must"),
    ],
)
def test_what_is_missing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    trace = write_trace(tmp_path / "trace.jsonl", 1.0, count=3)
    assert complaint in run(capsys, *(word.replace("FILE", str(trace)) for word in words), status=2)
