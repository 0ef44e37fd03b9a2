"""A process that is forked beside a loaded model has the model's memory, and none of its threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tiny_models import write_tiny_hf_model

# The child closes its copy, or asks it for an answer, and ends as processes do, with all finalizers.
PROGRAM = """
import os, signal, sys
from hotseat import LLM, SamplingParams
what, model = sys.argv[1:]
params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
llm = LLM(model, runner="native", threads=3, num_kv_blocks=64)
before = llm.generate("a hot seat", params, use_tqdm=False)[0].outputs[0].text
child = os.fork()
if child == 0:
    signal.alarm(20)
    if what == "close":
        llm.close()
    elif what == "generate":
        answer = llm.generate("a hot seat", params, use_tqdm=False)[0].outputs[0]
        sys.exit(0 if answer.finish_reason == "error" else 1)
    sys.exit(0)
_, status = os.waitpid(child, 0)
after = llm.generate("a hot seat", params, use_tqdm=False)[0].outputs[0].text
llm.close()
sys.exit(status if status else before != after)
"""


def run(what: str, model: Path) -> int:
    return subprocess.run([sys.executable, "-c", PROGRAM, what, str(model)], timeout=60, check=False).returncode


def test_a_forked_child_closes_its_model_and_ends(tmp_path: Path) -> None:
    model = write_tiny_hf_model(tmp_path / "tiny")
    assert run("close", model) == 0
    assert run("leave", model) == 0


def test_a_forked_child_that_computes_gets_an_error(tmp_path: Path) -> None:
    assert run("generate", write_tiny_hf_model(tmp_path / "tiny")) == 0
