"""``hotseat inspect``: what is told of a model, and of one that is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from hotseat.errors import ModelError, ModelNotFoundError
from hotseat.models import inspect_model
from hotseat.wiring import ModelOptions, inspect
from tiny_models import write_tiny_gguf_model, write_tiny_hf_model

TOOL_TEMPLATE = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"


def lines(model: Path) -> dict[str, str]:
    report = inspect(ModelOptions(model=str(model)))
    return dict(line.split("  ", 1) for line in report.splitlines())


def value(found: dict[str, str], name: str) -> str:
    return found[name].strip()


def test_a_model_is_described_from_its_headers(tmp_path: Path) -> None:
    found = lines(write_tiny_hf_model(tmp_path / "tiny", kind="BF16", shards=2))
    assert value(found, "model") == "tiny"
    assert value(found, "files") == f"{tmp_path / 'tiny'} (Hugging Face, safetensors (2 files))"
    assert value(found, "architecture") == "LlamaForCausalLM"
    assert value(found, "parameters") == "98,624"
    assert value(found, "tensors in BF16") == "20, 0.2 MiB"
    assert value(found, "heads") == "4 and 2 for keys and values, of size 16"
    assert value(found, "context") == "512 tokens"
    assert "KV cache in fp32: 0.5 KiB for each token, 0.2 MiB for a whole context" in found["memory in fp32"]
    assert value(found, "answers end at").split(", ")[-1] == "<|im_end|>"
    assert (value(found, "chat template"), value(found, "tools")[:2]) == ("yes", "no")


def test_a_gguf_model_in_parts_is_one_model(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    first = write_tiny_gguf_model(tmp_path / "tiny.gguf", kind="Q8_0", tensors_per_part=12)
    found = lines(first)
    assert value(found, "files") == f"{first} (GGUF, version 3 (2 files))"
    assert value(found, "tensors in Q8_0") == "15, 0.1 MiB"
    assert value(found, "parameters") == "98,624"


def test_tools_are_those_that_the_template_writes(tmp_path: Path) -> None:
    directory = write_tiny_hf_model(tmp_path / "tiny")
    (directory / "chat_template.jinja").write_text(TOOL_TEMPLATE)
    assert value(lines(directory), "tools") == "yes"
    (directory / "chat_template.jinja").write_text("{% if %}")
    assert value(lines(directory), "chat template").startswith("refused: the chat template is broken in line 1")


def test_a_refused_model_is_described_with_the_reason(tmp_path: Path) -> None:
    directory = write_tiny_hf_model(tmp_path / "tiny")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"architectures": ["OtherForCausalLM"]}))
    found = lines(directory)
    assert value(found, "architecture") == "OtherForCausalLM"
    assert value(found, "parameters") == "98,624"
    assert "architecture 'OtherForCausalLM' is not supported" in found["refused"]


def test_a_tensor_type_that_is_not_supported_is_counted_and_refused(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "odd.gguf", "llama")
    writer.add_tensor("a", np.zeros((2, 17), np.uint8), raw_dtype=gguf.GGMLQuantizationType.MXFP4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (total,) = inspect_model(str(tmp_path / "odd.gguf")).kinds
    assert (total.kind, total.num_values) == ("MXFP4", 64)
    assert total.num_bytes in (None, 34)


def test_what_is_not_here_or_not_sound_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no file or directory"):
        inspect(ModelOptions(model=str(tmp_path / "gone")))
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(3))
    with pytest.raises(ModelError, match="too few for a GGUF file"):
        inspect(ModelOptions(model=str(tmp_path / "broken.gguf")))
