"""``hotseat bench kernels`` and ``hotseat bench step`` on a tiny model: every path gives a row. No times are judged."""

import json
from pathlib import Path

import pytest

pytest.importorskip("hotseat.runner._native")

from hotseat import cli
from hotseat.runner._native import supported_isas
from tiny_models import write_tiny_hf_model

ISAS = list(supported_isas())
DTYPES = ["int8", "bf16", "fp32"]
SHAPES = ["qkv", "attention output", "gate and up", "down", "output head"]
WORKS = {"pack", "linear", "rope", "attention", "head", "sampling", "other"}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # What is small enough for a test is large enough for this cache.
    monkeypatch.setattr("hotseat.roofline.limits.last_level_cache_bytes", lambda: 1 << 16)
    directory = tmp_path / "model"
    write_tiny_hf_model(directory)
    return directory


def run(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> str:
    assert cli.main(["bench", *map(str, words)]) == status
    captured = capsys.readouterr()
    return captured.out if status == 0 else captured.err


def test_every_shape_has_a_row_for_each_path(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kernels.json"
    words = [model, "--rows", "1,7", "--contexts", "20", "--streams", "2", "--queries", "8", "--num-rounds", "2"]
    text = run(capsys, "kernels", *words, "--isa", ",".join(ISAS), "--threads", "2", "--json", path)
    document = json.loads(path.read_text())
    points = document["points"]
    linear = {(p["dtype"], p["isa"], p["name"], p["size"]) for p in points if p["kind"] == "linear"}
    assert linear == {(d, i, s, r) for d in DTYPES for i in ISAS for s in SHAPES for r in (1, 7)}
    attention = {(p["kind"], p["dtype"], p["isa"], p["size"]) for p in points if p["kind"] != "linear"}
    kinds = ("decode attention", "prefill attention")
    assert attention == {(k, d, i, 20) for k in kinds for d in ("bf16", "fp32") for i in ISAS}
    for point in points:
        assert len(point["seconds"]) == 2
        assert len(point["bytes_per_s"]) == 2
        assert point["chosen_s"] == pytest.approx(max(point["seconds"]), rel=1e-3), "of two, the slower one"
        assert point["share"] == pytest.approx(point["limit_s"] / point["chosen_s"], rel=1e-2, abs=1e-3)
    assert document["schema"] == "hotseat.bench.kernels/1"
    assert document["command"].startswith("hotseat bench kernels ")
    assert document["machine"]["num_cores"] >= 1
    assert document["threads"] == 2
    assert len([line for line in text.splitlines() if line.startswith("qkv")]) == 2 * len(DTYPES) * len(ISAS)
    assert len([line for line in text.splitlines() if line.startswith("2 sequences")]) == 2 * len(ISAS)


def test_scalar_is_measured_only_when_it_is_asked_for(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kernels.json"
    run(
        capsys,
        *("kernels", model, "--rows", "1", "--contexts", "16", "--dtype", "int8", "--num-rounds", "1", "--json", path),
    )
    assert {point["isa"] for point in json.loads(path.read_text())["points"]} == set(ISAS[1:] or ISAS)


def test_weights_without_groups_are_measured_as_gguf_when_that_is_asked_for(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run(capsys, "kernels", model, "--rows", "1", "--contexts", "16", "--dtype", "gguf", "--num-rounds", "1")
    assert "gguf" in text


def test_the_options_in_the_file_name_no_place_on_this_machine(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, cache = tmp_path / "kernels.json", tmp_path / "cache"
    words = [model, "--rows", "1", "--contexts", "16", "--dtype", "int8", "--num-rounds", "1", "--cache-dir", cache]
    run(capsys, "kernels", *words, "--json", path)
    options = json.loads(path.read_text())["options"]
    assert (options["rows"], options["dtype"]) == ("1", "int8")
    assert str(tmp_path) not in json.dumps(options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_is_broken_down(dtype: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.json"
    words = [model, "--batch", "1,3", "--context", "24", "--prefill", "40", "--num-steps", "4", "--num-rounds", "2"]
    words += ["--max-num-batched-tokens", "16", "--temperature", "0.7", "--threads", "2", "--statistic", "best"]
    text = run(capsys, "step", *words, "--dtype", dtype, "--json", path)
    document = json.loads(path.read_text())
    points = {(point["kind"], point["size"]): point for point in document["points"]}
    assert list(points) == [("decode", 1), ("decode", 3), ("prefill", 40)]
    for point in points.values():
        parts = point["chosen"]
        assert set(parts["native_s"]) == WORKS
        whole = parts["scheduling_s"] + parts["runner_s"] + parts["loop_s"] + sum(parts["native_s"].values())
        assert whole == pytest.approx(parts["total_s"])
        assert parts["runner_s"] > 0
        assert min(parts["native_s"][work] for work in ("linear", "attention", "head")) > 0
        assert parts["total_s"] == pytest.approx(min(point["samples_s"]), rel=1e-3)
        assert point["tokens_per_s"] == pytest.approx(point["size"] / parts["total_s"])
        assert point["share"] == pytest.approx(point["limit_s"] / parts["total_s"], abs=1e-4)
    assert len(points["decode", 3]["samples_s"]) == 2 * 4
    assert [size["num_rows"] for size in points["decode", 3]["chosen"]["sizes"]] == [3]
    assert [size["num_rows"] for size in points["prefill", 40]["chosen"]["sizes"]] == [16, 16, 8]
    assert "decode 3 x 24" in text
    assert "prefill 40" in text


def test_many_long_sequences_that_are_prefilled_one_after_the_other_decode_at_the_same_length(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "step.json"
    words = [model, "--batch", "6", "--context", "150", "--prefill", "8", "--num-steps", "4", "--num-rounds", "1"]
    run(capsys, "step", *words, "--max-num-batched-tokens", "12", "--dtype", "int8", "--json", path)
    (size,) = json.loads(path.read_text())["points"][0]["chosen"]["sizes"]
    assert size["num_rows"] == 6
    assert size["num_kv_positions"] == pytest.approx(6 * 150, rel=0.15)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["kernels", "--rows", "0"], "rows must list integers of at least 1"),
        (["kernels", "--rows", "1,1"], "rows must list different words"),
        (["kernels", "--dtype", "int8,int4"], "dtype must list some of int8, bf16, fp32, gguf, not 'int8,int4'"),
        (["kernels", "--isa", "mmx"], "isa must list some of scalar, avx2"),
        (["kernels", "--num-rounds", "0"], "num_rounds must be at least 1"),
        (["kernels", "--threads", "0"], "threads must be at least 1"),
        (["kernels", "--statistic", "worst"], "invalid choice: 'worst'"),
        (["kernels", "--batch", "1"], "unknown option --batch"),
        (["kernels", "/nowhere/at/all"], "there is no file or directory /nowhere/at/all"),
        (["step", "--batch", "1,x"], "batch must list integers of at least 1"),
        (["step", "--context", "0"], "context must be at least 1"),
        (["step", "--temperature", "-1"], "temperature must not be negative"),
        (["step", "--batch", "8", "--max-num-batched-tokens", "4"], "is less than a batch of 8"),
        (["step", "MODEL", "--prefill", "9999"], "a sequence of 10000 tokens is longer than 512"),
        (["step", "MODEL", "--json", "/nowhere/at/all"], "json '/nowhere/at/all' cannot be written"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    words: list[str], message: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = run(capsys, *(str(model) if word == "MODEL" else word for word in words), status=2)
    assert error.startswith("hotseat: error: ")
    assert message in error
    assert error.count("\n") == 1


def test_steps_teach_a_cost_that_simulate_takes(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cost, requests = tmp_path / "cost.json", tmp_path / "requests.jsonl"
    words = [model, "--batch", "1,4", "--context", "30", "--prefill", "40", "--num-rounds", "2", "--num-steps", "8"]
    text = run(capsys, "step", *words, "--threads", "1", "--step-cost", cost)
    assert f"{cost}: what was learned from" in text
    requests.write_text('{"id": "a", "arrival_s": 0, "prompt_len": 30, "output_len": 8}\n')
    assert cli.main(["simulate", str(requests), "--step-cost", str(cost)]) == 0
    assert "1 completed" in capsys.readouterr().out
