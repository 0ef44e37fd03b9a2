"""Model files that are cut or written to while they are in use."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotseat.errors import ModelError
from hotseat.models import load
from tiny_models import write_tiny_gguf_model, write_tiny_hf_model

MODEL: dict[str, Any] = {"hidden_size": 128, "vocab_size": 1024}  # an embedding of many pages

# Answers, cuts the files short, answers again, and fails unless both are alike.
PROGRAM = """
import os, sys
from hotseat import LLM, SamplingParams
load_format, runner, model, *files = sys.argv[1:]
params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
prompts = [{"prompt_token_ids": list(range(start, start + 30))} for start in range(3, 900, 30)]
llm = LLM(model, load_format=load_format, runner=runner, dtype="fp32", num_kv_blocks=256)
before = [one.outputs[0].token_ids for one in llm.generate(prompts[:1], params, use_tqdm=False)]
for file in files:
    os.truncate(file, 64)
after = [one.outputs[0].token_ids for one in llm.generate(prompts, params, use_tqdm=False)]
sys.exit(0 if before == after[:1] and len(after) == len(prompts) else 1)
"""


def run_and_cut(load_format: str, runner: str, model: Path, *files: Path) -> int:
    command = [sys.executable, "-c", PROGRAM, load_format, runner, str(model), *map(str, files)]
    return subprocess.run(command, timeout=60, check=False).returncode


@pytest.mark.parametrize(("load_format", "runner"), [("auto", "native"), ("read", "native"), ("mmap", "reference")])
def test_a_file_that_is_cut_after_loading_changes_no_answer(tmp_path: Path, load_format: str, runner: str) -> None:
    file = write_tiny_gguf_model(tmp_path / "model.gguf", **MODEL)
    assert run_and_cut(load_format, runner, file, file) == 0


def test_a_directory_whose_file_is_cut_after_loading_changes_no_answer(tmp_path: Path) -> None:
    directory = write_tiny_hf_model(tmp_path / "model", **MODEL)
    assert run_and_cut("auto", "native", directory, *directory.glob("*.safetensors")) == 0


def test_a_mapped_embedding_is_lost_with_its_file(tmp_path: Path) -> None:
    """What ``mmap`` saves in memory it costs in safety; this is how the other formats would fail, too."""
    file = write_tiny_gguf_model(tmp_path / "model.gguf", **MODEL)
    assert run_and_cut("mmap", "native", file, file) == -signal.SIGBUS


def test_a_file_that_is_written_to_while_it_is_loaded_is_refused(tmp_path: Path) -> None:
    file = write_tiny_gguf_model(tmp_path / "model.gguf", **MODEL)
    loaded = load(str(file))
    with file.open("ab") as longer:
        longer.write(b"more")
    with pytest.raises(ModelError, match=r"was written to while it was loaded \(it had \d+ bytes and has \d+\)"):
        loaded.without_weights()


@pytest.mark.parametrize("load_format", ["auto", "read"])
def test_a_file_that_is_replaced_or_removed_while_it_is_loaded_does_no_harm(tmp_path: Path, load_format: str) -> None:
    file = write_tiny_gguf_model(tmp_path / "model.gguf", **MODEL)
    loaded = load(str(file), load_format=load_format)  # type: ignore[arg-type]
    other = tmp_path / "other"
    other.write_bytes(b"another model")
    other.rename(file)
    assert loaded.without_weights().weights == {}
    file.unlink()
    assert loaded.without_weights().files == ()


def test_a_file_that_was_read_may_be_written_to(tmp_path: Path) -> None:
    file = write_tiny_gguf_model(tmp_path / "model.gguf", **MODEL)
    loaded = load(str(file), load_format="read")
    values = loaded.weights["token_embedding"].dequantize()
    file.write_bytes(b"")
    assert (loaded.weights["token_embedding"].dequantize() == values).all()
    assert loaded.without_weights().files == ()
