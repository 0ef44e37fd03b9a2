"""``hotseat batch`` with a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotseat import LLM, SamplingParams
from hotseat.cli import main
from tiny_models import write_tiny_hf_model

SMALL = ["--runner", "reference", "--dtype", "fp32", "--max-num-seqs", "4"]


def test_a_batch_answers_as_the_model_does(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = str(write_tiny_hf_model(tmp_path / "tiny"))
    texts = [f"number {number}" for number in range(6)]
    body = {"model": "gpt-x", "temperature": 0, "max_tokens": 6, "ignore_eos": True}
    lines = [
        {"custom_id": text, "method": "POST", "url": "/v1/completions", "body": body | {"prompt": text}}
        for text in texts
    ]
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["batch", model, "-i", str(source), "-o", str(output), "--served-model-name", "gpt-x", *SMALL]
    assert main(command) == 0
    assert "6 of 6 requests were run, 0 of them with an error" in capfd.readouterr().err
    answers = {
        answer["custom_id"]: answer["response"]["body"] for answer in map(json.loads, output.read_text().splitlines())
    }
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    with LLM(model, runner="reference", dtype="fp32") as llm:
        expected = [result.outputs[0].text for result in llm.generate(texts, params, use_tqdm=False)]
    assert [answers[text]["choices"][0]["text"] for text in texts] == expected
    assert main(command) == 0  # nothing is left
    assert "0 of 6 requests were run" in capfd.readouterr().err


def test_a_batch_needs_its_files(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", "model"]) == 2
    assert "-i requests.jsonl" in capfd.readouterr().err
