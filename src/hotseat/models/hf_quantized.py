"""Quantised Hugging Face checkpoints: the matrices that their packed integers and scales stand for.

Read are GPTQ, AWQ, compressed-tensors (W4A16, W8A16, W8A8 with int8, FP8) and FP8 (e4m3 with a scale for the tensor,
each row or blocks). Integers become GGUF blocks that hold the same values: Q4_0 where the zero point is 8, else Q8_0,
with the scale of the checkpoint for each 32 values. FP8 becomes the nearest F16, and what no block holds exactly F32,
which a log line says. bitsandbytes and others are refused by name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from hotseat.errors import ModelError, UnsupportedModelError
from hotseat.models.safetensors import SafetensorsFile
from hotseat.models.weights import WeightTensor

__all__ = ["METHODS", "QuantizedMatrix", "quantized_matrices"]

logger = logging.getLogger(__name__)

METHODS = ("gptq", "awq", "compressed-tensors", "fp8")
_FORMATS = (None, "pack-quantized", "int-quantized", "float-quantized", "naive-quantized")  # of compressed-tensors
_GROUP = 32
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # nibble i of a word holds column 0, 2, 4, 6, 1, 3, 5, 7: its inverse
_NUMPY = {"I8": "<i1", "U8": "<u1", "I32": "<i4", "I64": "<i8", "F8_E4M3": "<u1", "F32": "<f4", "F16": "<f2"}
_SUFFIXES = (
    *("qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_scale", "weight_scale_inv"),
    *("weight_zero_point", "weight_shape", "weight_g_idx", "input_scale", "activation_scale"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedMatrix:
    """A matrix of a checkpoint; ``read`` returns it as blocks, or as F16 or F32."""

    kind: str  # what it becomes in most cases
    shape: tuple[int, ...]
    read: Callable[[], WeightTensor]


def quantized_matrices(
    config: Mapping[str, Any], files: Mapping[str, SafetensorsFile], own: Mapping[str, str]
) -> tuple[dict[str, QuantizedMatrix], set[str]]:
    """Return the matrices by their names as if they were not quantised, and the names of the tensors they consist of.

    ``files`` and ``own`` say where a tensor is, and its name there.

    Raises:
        UnsupportedModelError: the method, or its variant, is not read.
        ModelError: tensors are missing or misshaped.
    """
    chosen = config.get("quantization_config")
    if chosen is None:
        return {}, set()
    reader = _Reader(chosen, files, own)
    matrices: dict[str, QuantizedMatrix] = {}
    used: set[str] = set()
    for name in files:
        module, _, last = name.rpartition(".")
        if last in _SUFFIXES and module:
            used.add(name)
        if (matrix := reader.matrix(module, last)) is not None:
            matrices[f"{module}.weight"] = matrix
            used.add(name)
    return matrices, used


class _Reader:
    """Reads the tensors of one checkpoint."""

    def __init__(self, chosen: Mapping[str, Any], files: Mapping[str, SafetensorsFile], own: Mapping[str, str]) -> None:
        self._files, self._own = files, own
        self._method = chosen.get("quant_method")
        self._is_v1 = chosen.get("checkpoint_format", "gptq") == "gptq"
        self._bits = chosen.get("bits", chosen.get("w_bit", 4))
        if self._method == "compressed-tensors" and (layout := chosen.get("format")) not in _FORMATS:
            raise UnsupportedModelError(f"quantization_config: compressed-tensors in the format {layout!r} is not read")
        if self._method in ("gptq", "awq") and self._bits not in ((4, 8) if self._method == "gptq" else (4,)):
            raise UnsupportedModelError(f"quantization_config: {self._method} with {self._bits} bits is not read")

    def matrix(self, module: str, last: str) -> QuantizedMatrix | None:
        """Return the matrix whose main tensor is ``module.last``, or nothing where it is another one."""
        if last == "qweight":
            words, columns = self._shape(f"{module}.qweight")
            if self._method == "awq":
                return self._made((columns * 8, words), lambda: self._awq(module))
            return self._made((columns, words * 32 // self._bits), lambda: self._gptq(module))
        if last == "weight_packed":
            sizes = self._values(f"{module}.weight_shape").reshape(-1).tolist()
            if len(sizes) != 2 or min(sizes) < 1:
                raise ModelError(f"{module}.weight_shape is {sizes}, which is no matrix")
            rows, columns = (int(size) for size in sizes)
            return self._made((rows, columns), lambda: self._packed(module, rows, columns))
        if last == "weight" and (kind := self._kind(f"{module}.weight")) in ("I8", "F8_E4M3"):
            rows, columns = self._shape(f"{module}.weight")
            if kind == "I8":
                return self._made((rows, columns), lambda: self._int8(module))
            return QuantizedMatrix(
                kind="F16", shape=(rows, columns), read=lambda: _checked((rows, columns), lambda: self._fp8(module))
            )
        return None

    def _made(self, shape: tuple[int, int], read: Callable[[], WeightTensor]) -> QuantizedMatrix:
        return QuantizedMatrix(kind="Q8_0", shape=shape, read=lambda: _checked(shape, read))

    def _gptq(self, module: str) -> WeightTensor:
        """Return the matrix: codes lie along K in words, zero points along N; ``g_idx`` tells the scale."""
        codes = _unpacked(self._values(f"{module}.qweight").T, self._bits)  # [N, K]
        zeros = _unpacked(self._values(f"{module}.qzeros"), self._bits) + (1 if self._is_v1 else 0)  # [groups, N]
        scales = self._values(f"{module}.scales")  # [groups, N]
        groups = np.arange(codes.shape[1]) // -(-codes.shape[1] // len(scales))
        if f"{module}.g_idx" in self._files:
            groups = self._values(f"{module}.g_idx").astype(np.intp)
        return _blocks(module, codes - zeros.T[:, groups], scales.T[:, groups])

    def _awq(self, module: str) -> WeightTensor:
        """Return the matrix: codes and zero points lie along N in words, in an order of their own."""
        order = np.array(_AWQ_ORDER)

        def unpacked(name: str) -> np.ndarray:
            codes = _unpacked(self._values(f"{module}.{name}"), 4)
            return codes.reshape(len(codes), -1, 8)[:, :, order].reshape(codes.shape)

        codes, zeros, scales = unpacked("qweight"), unpacked("qzeros"), self._values(f"{module}.scales")
        groups = np.arange(len(codes)) // (len(codes) // len(scales))
        return _blocks(module, (codes - zeros[groups]).T, scales[groups].T)

    def _packed(self, module: str, rows: int, columns: int) -> WeightTensor:
        """Return a matrix of compressed-tensors: codes lie along K in words and count from the middle."""
        words = self._values(f"{module}.weight_packed")
        bits = 4 if words.shape[1] == -(-columns // 8) else 8
        codes = _unpacked(words, bits)[:, :columns] - (1 << (bits - 1))
        scales = self._values(f"{module}.weight_scale").reshape(rows, -1)
        groups = np.arange(columns) // (columns // scales.shape[1])
        if f"{module}.weight_g_idx" in self._files:
            groups = self._values(f"{module}.weight_g_idx").astype(np.intp)
        if f"{module}.weight_zero_point" in self._files:
            zeros = _unpacked(self._values(f"{module}.weight_zero_point").T, bits).T[:rows] - (1 << (bits - 1))
            codes = codes - zeros[:, groups]
        return _blocks(module, codes, scales[:, groups])

    def _int8(self, module: str) -> WeightTensor:
        codes = self._values(f"{module}.weight").astype(np.int32)
        scales = self._values(f"{module}.weight_scale").reshape(-1, 1)
        return _blocks(module, codes, np.broadcast_to(scales, codes.shape))

    def _fp8(self, module: str) -> WeightTensor:
        """Return the nearest F16: a scale for all, each row, or blocks of 128 by 128."""
        values = _E4M3[self._values(f"{module}.weight")]
        name = next((n for n in ("weight_scale_inv", "weight_scale") if f"{module}.{n}" in self._files), None)
        if name is None:
            raise ModelError(f"{module}.weight is FP8 and has no scale")
        scales = self._values(f"{module}.{name}")
        if scales.ndim == 2 and scales.shape[1] > 1:
            down, across = (-(-size // count) for size, count in zip(values.shape, scales.shape, strict=True))
            whole = scales.repeat(down, axis=0).repeat(across, axis=1)[: values.shape[0], : values.shape[1]]
        else:
            whole = scales.reshape(-1, 1)
        return _plain(values * whole)

    def _kind(self, name: str) -> str:
        return self._files[name].tensors[self._own[name]].kind

    def _shape(self, name: str) -> tuple[int, int]:
        shape = self._files[name].tensors[self._own[name]].shape
        if len(shape) != 2:
            raise ModelError(f"tensor {name} has the shape {list(shape)}, which is no matrix")
        return shape[0], shape[1]

    def _values(self, name: str) -> np.ndarray:
        if name not in self._files:
            raise ModelError(f"tensor {name} is missing")
        file = self._files[name]
        tensor = file.tensors[self._own[name]]
        raw = np.frombuffer(file.data, np.uint8, tensor.num_bytes, tensor.offset).copy()
        if tensor.kind == "BF16":
            return (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(tensor.shape)
        if tensor.kind not in _NUMPY or len(raw) != prod(tensor.shape) * np.dtype(_NUMPY[tensor.kind]).itemsize:
            raise ModelError(f"tensor {name} of {tensor.kind} {list(tensor.shape)} is not as it should be")
        values = raw.view(_NUMPY[tensor.kind]).reshape(tensor.shape)
        return values.astype(np.float32) if values.dtype.kind == "f" else values


def _checked(shape: tuple[int, int], read: Callable[[], WeightTensor]) -> WeightTensor:
    """Return what ``read`` returns; tensors that do not fit together are the file's fault."""
    try:
        tensor = read()
    except (ValueError, IndexError, ZeroDivisionError) as error:
        raise ModelError(f"the tensors of a quantised matrix of {list(shape)} do not fit together: {error}") from error
    if tensor.shape != shape:
        raise ModelError(f"a quantised matrix is {list(tensor.shape)}, where {list(shape)} was expected")
    return tensor


def _unpacked(words: np.ndarray, bits: int) -> np.ndarray:
    """Return the codes in the words of the last axis, the lowest first, int32[rows, words · 32 / bits]."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    codes = (np.ascontiguousarray(words).view(np.uint32)[:, :, None] >> shifts) & np.uint32((1 << bits) - 1)
    return codes.astype(np.int32).reshape(len(words), -1)


def _blocks(module: str, codes: np.ndarray, scales: np.ndarray) -> WeightTensor:
    """Return ``codes * scales``, both [N, K], as Q4_0 or Q8_0 where one of them holds it exactly, else as F32."""
    rows, columns = codes.shape
    if columns % _GROUP == 0 and codes.min() >= -128 and codes.max() <= 127:
        grouped = scales.reshape(rows, -1, _GROUP)
        first = grouped[:, :, :1]
        with np.errstate(over="ignore"):
            halves = first.astype(np.float16)
        if np.array_equal(grouped, np.broadcast_to(halves.astype(np.float32), grouped.shape)):
            return _packed_blocks(codes.reshape(rows, -1, _GROUP), halves[:, :, 0])
    logger.warning("%s.weight is held by no blocks exactly and takes 32 bits a value until it is packed", module)
    return _plain(codes * scales, "F32")


def _packed_blocks(codes: np.ndarray, scales: np.ndarray) -> WeightTensor:
    rows, groups, _ = codes.shape
    if codes.min() >= -8 and codes.max() <= 7:
        blocks = np.empty((rows, groups), [("d", "<f2"), ("low", "u1", 16)])
        nibbles = (codes + 8).astype(np.uint8)
        blocks["low"] = nibbles[:, :, :16] | nibbles[:, :, 16:] << 4
    else:
        blocks = np.empty((rows, groups), [("d", "<f2"), ("q", "i1", 32)])
        blocks["q"] = codes
    blocks["d"] = scales
    kind = "Q4_0" if "low" in (blocks.dtype.names or ()) else "Q8_0"
    return WeightTensor(kind=kind, shape=(rows, groups * _GROUP), data=blocks.view(np.uint8).reshape(rows, -1))


def _plain(values: np.ndarray, kind: str = "F16") -> WeightTensor:
    rounded = np.ascontiguousarray(values, np.float16 if kind == "F16" else np.float32)
    return WeightTensor(kind=kind, shape=values.shape, data=rounded.view(np.uint8))


def _e4m3() -> np.ndarray:
    """Return the values of all bytes of FP8 e4m3 (OCP): no infinities, 0x7f and 0xff are NaN."""
    byte = np.arange(256)
    exponent, mantissa = (byte >> 3) & 15, (byte & 7).astype(np.float32)
    size = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(mantissa + 8, exponent - 10)).astype(np.float32)
    size[(byte & 127) == 127] = np.nan
    return np.where(byte > 127, -size, size).astype(np.float32)


_E4M3 = _e4m3()
