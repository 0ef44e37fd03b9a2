"""Quantised Hugging Face checkpoints: their integers and scales become the blocks that hold the same values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotseat.errors import ModelError, UnsupportedModelError
from hotseat.models import load
from tiny_models import TinyLlama, encode, tiny_weights, write_safetensors, write_tiny_hf_model

SHAPE = {"hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]
Writer = Callable[[str, np.random.Generator, tuple[int, int]], tuple[Tensors, np.ndarray]]


def words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Put the codes of the last axis into int32 words, the first into the lowest bits."""
    parts = codes.astype(np.uint32).reshape(*codes.shape[:-1], -1, 32 // bits)
    return np.bitwise_or.reduce(parts << np.arange(0, 32, bits, dtype=np.uint32), axis=-1).view(np.int32)


def entry(kind: str, values: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    return kind, values.shape, np.ascontiguousarray(values).tobytes()


def scales_of(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (2.0 ** rng.uniform(-9, -6, shape)).astype(np.float16)


def gptq(module: str, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Tensors, np.ndarray]:
    rows, columns = shape
    codes, zeros = rng.integers(0, 16, shape), rng.integers(1, 17, (columns // 32, rows))
    scales = scales_of(rng, zeros.shape)
    groups = np.arange(columns) // 32
    expected = scales.astype(np.float32).T[:, groups] * (codes - zeros.T[:, groups])
    return {
        f"{module}.qweight": entry("I32", words(codes, 4).T),
        f"{module}.qzeros": entry("I32", words(zeros - 1, 4)),
        f"{module}.scales": entry("F16", scales),
        f"{module}.g_idx": entry("I32", groups.astype(np.int32)),
    }, expected


def gptq_symmetric(module: str, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Tensors, np.ndarray]:
    rows, columns = shape
    codes, scales = rng.integers(0, 16, shape), scales_of(rng, (columns // 64, rows))
    expected = scales.astype(np.float32).T.repeat(64, axis=1) * (codes - 8)
    return {
        f"{module}.qweight": entry("I32", words(codes, 4).T),
        f"{module}.qzeros": entry("I32", words(np.full((columns // 64, rows), 7), 4)),
        f"{module}.scales": entry("F16", scales),
    }, expected


def act_order(module: str, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Tensors, np.ndarray]:
    tensors, _ = gptq(module, rng, shape)
    _rows, columns = shape
    groups = rng.permutation(np.arange(columns) // 32).astype(np.int32)
    tensors[f"{module}.g_idx"] = entry("I32", groups)
    raw = {
        name.rpartition(".")[2]: np.frombuffer(data, "<i4" if kind == "I32" else "<f2").reshape(size)
        for name, (kind, size, data) in tensors.items()
    }
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    codes, zeros = (
        (np.ascontiguousarray(part).view(np.uint32)[:, :, None] >> shifts & 15).reshape(len(part), -1).astype(np.int32)
        for part in (raw["qweight"].T, raw["qzeros"])
    )
    scales = raw["scales"].astype(np.float32)
    return tensors, scales.T[:, groups] * (codes - 1 - zeros.T[:, groups])


def awq(module: str, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Tensors, np.ndarray]:
    rows, columns = shape
    codes, zeros = rng.integers(0, 16, (columns, rows)), rng.integers(0, 16, (columns // 32, rows))
    scales = scales_of(rng, zeros.shape)
    expected = (scales.astype(np.float32).repeat(32, axis=0) * (codes - zeros.repeat(32, axis=0))).T

    def packed(values: np.ndarray) -> np.ndarray:
        return words(values.reshape(len(values), -1, 8)[:, :, AWQ_COLUMNS].reshape(values.shape), 4)

    return {
        f"{module}.qweight": entry("I32", packed(codes)),
        f"{module}.qzeros": entry("I32", packed(zeros)),
        f"{module}.scales": entry("F16", scales),
    }, expected


def w4a16(module: str, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Tensors, np.ndarray]:
    rows, columns = shape
    codes, scales = rng.integers(-8, 8, shape), scales_of(rng, (rows, columns // 32))
    return {
        f"{module}.weight_packed": entry("I32", words(codes + 8, 4)),
        f"{module}.weight_scale": entry("F16", scales),
        f"{module}.weight_shape": entry("I64", np.array(shape)),
    }, scales.astype(np.float32).repeat(32, axis=1) * codes


def w8a8(module: str, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Tensors, np.ndarray]:
    codes, scales = rng.integers(-128, 128, shape), scales_of(rng, (shape[0], 1))
    return {
        f"{module}.weight": entry("I8", codes.astype(np.int8)),
        f"{module}.weight_scale": entry("F16", scales),
    }, scales.astype(np.float32) * codes


def fp8_blocks(module: str, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Tensors, np.ndarray]:
    torch = pytest.importorskip("torch")
    values = torch.tensor(rng.standard_normal(shape)).to(torch.float8_e4m3fn)
    scales = (2.0 ** rng.integers(-6, 0, (shape[0] // 32, shape[1] // 32))).astype(np.float32)
    whole = scales.repeat(32, axis=0).repeat(32, axis=1)
    return {
        f"{module}.weight": ("F8_E4M3", shape, values.view(torch.uint8).numpy().tobytes()),
        f"{module}.weight_scale_inv": entry("F32", scales),
    }, values.to(torch.float32).numpy() * whole


def written(directory: Path, config: dict[str, Any], write: Writer) -> tuple[Path, dict[str, np.ndarray]]:
    """Write a tiny model whose layers' matrices are quantised, and return the values that they should have."""
    write_tiny_hf_model(directory, **SHAPE)
    rng = np.random.default_rng(5)
    tensors: Tensors = {}
    expected: dict[str, np.ndarray] = {}
    for name, values in tiny_weights(TinyLlama(**SHAPE)).items():
        if name.endswith("_proj.weight"):
            module = name.removesuffix(".weight")
            more, expected[module] = write(module, rng, values.shape)
            tensors |= more
        else:
            tensors[name] = ("F32", values.shape, encode(values, "F32"))
    write_safetensors(directory / "model.safetensors", tensors)
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": config}))
    return directory, expected


CASES: dict[str, tuple[dict[str, Any], Writer, str]] = {
    "gptq with zero points": ({"quant_method": "gptq", "bits": 4}, gptq, "Q8_0"),
    "gptq, symmetric": ({"quant_method": "gptq", "bits": 4}, gptq_symmetric, "Q4_0"),
    "gptq in act order": ({"quant_method": "gptq", "bits": 4, "desc_act": True}, act_order, "F32"),
    "awq": ({"quant_method": "awq", "bits": 4}, awq, "Q8_0"),
    "W4A16": ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, w4a16, "Q4_0"),
    "W8A8": ({"quant_method": "compressed-tensors", "format": "int-quantized"}, w8a8, "Q8_0"),
    "fp8 in blocks": ({"quant_method": "fp8"}, fp8_blocks, "F16"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_values_are_those_of_the_checkpoint(tmp_path: Path, case: str) -> None:
    config, write, kind = CASES[case]
    directory, expected = written(tmp_path / "tiny", config, write)
    weights = load(str(directory)).weights
    slots = {
        "q": "self_attn.q_proj",
        "attention_output": "self_attn.o_proj",
        "gate": "mlp.gate_proj",
        "down": "mlp.down_proj",
    }
    for slot, module in slots.items():
        tensor = weights[f"layers.1.{slot}"]
        assert tensor.kind == kind
        np.testing.assert_array_equal(tensor.dequantize(), expected[f"model.layers.1.{module}"].astype(np.float32))


def test_a_missing_scale_is_named(tmp_path: Path) -> None:
    def without_scale(module: str, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Tensors, np.ndarray]:
        tensors, expected = w8a8(module, rng, shape)
        del tensors[f"{module}.weight_scale"]
        return tensors, expected

    directory, _ = written(tmp_path / "tiny", CASES["W8A8"][0], without_scale)
    with pytest.raises(ModelError, match=r"_proj.weight_scale is missing"):
        load(str(directory))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes'"),
        ({"quant_method": "gptq", "bits": 3}, "gptq with 3 bits"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "'nvfp4-pack-quantized'"),
    ],
)
def test_what_is_not_read_is_refused_by_name(tmp_path: Path, config: dict[str, Any], named: str) -> None:
    directory, _ = written(tmp_path / "tiny", config, w8a8)
    with pytest.raises(UnsupportedModelError, match=named):
        load(str(directory))
