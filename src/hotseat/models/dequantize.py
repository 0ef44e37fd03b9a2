"""Exact values of stored blocks: the layouts are drawn once, as record types.

A matrix is stored row by row, a row is a sequence of blocks. In a block, ``d`` is the scale, ``m`` the minimum; ``low``
holds four low bits of two values in one byte (value i in the lower half, value i + half in the upper half), ``high``
the bits above them. The arithmetic is float32 and follows ggml's order of operations, so that results are bit-equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["SUPPORTED_KINDS", "block_layout", "dequantize_rows", "row_bytes"]

Blocks: TypeAlias = np.ndarray  # [n] of one of the record types below
Values: TypeAlias = npt.NDArray[np.float32]  # [n, values a block]

_LAYOUTS: dict[str, tuple[int, np.dtype]] = {  # kind → values a block, block
    "F32": (1, np.dtype([("value", "<f4")])),
    "F16": (1, np.dtype([("value", "<f2")])),
    "BF16": (1, np.dtype([("value", "<u2")])),
    "Q8_0": (32, np.dtype([("d", "<f2"), ("q", "i1", 32)])),
    "Q4_0": (32, np.dtype([("d", "<f2"), ("low", "u1", 16)])),
    "Q4_1": (32, np.dtype([("d", "<f2"), ("m", "<f2"), ("low", "u1", 16)])),
    "Q5_0": (32, np.dtype([("d", "<f2"), ("high", "u1", 4), ("low", "u1", 16)])),
    "Q5_1": (32, np.dtype([("d", "<f2"), ("m", "<f2"), ("high", "u1", 4), ("low", "u1", 16)])),
    "IQ4_NL": (32, np.dtype([("d", "<f2"), ("low", "u1", 16)])),
    "MXFP4": (32, np.dtype([("e", "u1"), ("low", "u1", 16)])),  # a scale of 2**(e - 127), as OCP defines it
    # K-quants: 256 values in sub-blocks with integer scales of their own.
    "Q2_K": (256, np.dtype([("scales", "u1", 16), ("low", "u1", 64), ("d", "<f2"), ("m", "<f2")])),
    "Q3_K": (256, np.dtype([("high", "u1", 32), ("low", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])),
    "Q4_K": (256, np.dtype([("d", "<f2"), ("m", "<f2"), ("scales", "u1", 12), ("low", "u1", 128)])),
    "Q5_K": (256, np.dtype([("d", "<f2"), ("m", "<f2"), ("scales", "u1", 12), ("high", "u1", 32), ("low", "u1", 128)])),
    "Q6_K": (256, np.dtype([("low", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])),
    "IQ4_XS": (256, np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("low", "u1", 128)])),
}
SUPPORTED_KINDS = tuple(_LAYOUTS)

# What a 4-bit code stands for where codes are not evenly spaced.
_IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_MXFP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)  # twice E2M1's

_VALUES_AT_A_TIME = 1 << 18  # keeps the intermediate arrays in cache


def block_layout(kind: str) -> tuple[int, int]:
    """Return how many values a block of ``kind`` holds, and in how many bytes."""
    values, record = _LAYOUTS[kind]
    return values, record.itemsize


def row_bytes(kind: str, length: int) -> int:
    """Return the bytes of a row of ``length`` values, which must be whole blocks."""
    values, record = _LAYOUTS[kind]
    assert length % values == 0, f"a row of {length} values is not whole blocks of {kind}"
    return length // values * record.itemsize


def dequantize_rows(kind: str, data: npt.NDArray[np.uint8]) -> Values:
    """Return the values of ``data``, uint8[rows, bytes a row], as float32[rows, values a row]."""
    values, record = _LAYOUTS[kind]
    rows, num_bytes = data.shape
    blocks = np.ascontiguousarray(data).reshape(-1).view(record)
    result = np.empty((len(blocks), values), np.float32)
    step = _VALUES_AT_A_TIME // values
    for start in range(0, len(blocks), step):
        result[start : start + step] = _DEQUANTIZERS[kind](blocks[start : start + step])
    return result.reshape(rows, num_bytes // record.itemsize * values)


def _float(blocks: Blocks) -> Values:
    values: Values = blocks["value"].astype(np.float32)[:, None]
    return values


def _bf16(blocks: Blocks) -> Values:
    bits = blocks["value"].astype(np.uint32) << np.uint32(16)
    values: Values = bits.view(np.float32)[:, None]
    return values


def _column(blocks: Blocks, name: str) -> Values:
    values: Values = blocks[name].astype(np.float32)[:, None]
    return values


def _nibbles(low: np.ndarray, group: int) -> np.ndarray:
    """Return the 4-bit values of ``low``: in every ``group`` bytes first all lower halves, then all upper halves."""
    grouped = low.reshape(len(low), -1, 1, group)
    return np.concatenate([grouped & 0x0F, grouped >> 4], axis=2).reshape(len(low), -1)


def _fifth_bits(high: np.ndarray) -> np.ndarray:
    return np.unpackbits(high, axis=1, bitorder="little") << 4


def _q8_0(blocks: Blocks) -> Values:
    return blocks["q"].astype(np.float32) * _column(blocks, "d")


def _q4_0(blocks: Blocks) -> Values:
    return _column(blocks, "d") * (_nibbles(blocks["low"], 16).view(np.int8) - np.int8(8)).astype(np.float32)


def _q4_1(blocks: Blocks) -> Values:
    return _column(blocks, "d") * _nibbles(blocks["low"], 16).astype(np.float32) + _column(blocks, "m")


def _q5_0(blocks: Blocks) -> Values:
    quants = _nibbles(blocks["low"], 16) | _fifth_bits(blocks["high"])
    values: Values = _column(blocks, "d") * (quants.view(np.int8) - np.int8(16)).astype(np.float32)
    return values


def _q5_1(blocks: Blocks) -> Values:
    quants = _nibbles(blocks["low"], 16) | _fifth_bits(blocks["high"])
    values: Values = _column(blocks, "d") * quants.astype(np.float32) + _column(blocks, "m")
    return values


def _k_scales(blocks: Blocks) -> tuple[np.ndarray, np.ndarray]:
    """Return scale and minimum of the 8 sub-blocks of Q4_K and Q5_K, each float32[n, 8, 1].

    12 bytes hold 8 scales and 8 minima of 6 bits: bytes 0-3 the low six bits of scales 0-3, bytes 4-7 of minima
    0-3; bytes 8-11 the low four bits of scale and minimum 4-7, whose two high bits sit atop bytes 0-3 and 4-7.
    """
    packed = blocks["scales"]
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 0x3F, (third & 0x0F) | ((first >> 2) & 0x30)], axis=1)
    minima = np.concatenate([second & 0x3F, (third >> 4) | ((second >> 2) & 0x30)], axis=1)
    d = _column(blocks, "d") * scales.astype(np.float32)
    m = _column(blocks, "m") * minima.astype(np.float32)
    return d[:, :, None], m[:, :, None]


def _k_values(blocks: Blocks, quants: np.ndarray) -> Values:
    scales, minima = _k_scales(blocks)
    values: Values = scales * quants.reshape(-1, 8, 32).astype(np.float32) - minima
    return values.reshape(-1, 256)


def _q4_k(blocks: Blocks) -> Values:
    return _k_values(blocks, _nibbles(blocks["low"], 32))


def _q5_k(blocks: Blocks) -> Values:
    bits = np.unpackbits(blocks["high"][:, :, None], axis=2, bitorder="little")  # bit g of byte i: value 32 g + i
    fifth = bits.transpose(0, 2, 1).reshape(-1, 256) << 4
    return _k_values(blocks, _nibbles(blocks["low"], 32) | fifth)


def _q6_k(blocks: Blocks) -> Values:
    high = blocks["high"].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    quants = _nibbles(blocks["low"], 64) | ((high & 0x03) << 4).reshape(-1, 256)
    scales = _column(blocks, "d") * blocks["scales"].astype(np.float32)
    values: Values = scales[:, :, None] * (quants.view(np.int8) - np.int8(32)).reshape(-1, 16, 16).astype(np.float32)
    return values.reshape(-1, 256)


def _two_bits(low: np.ndarray) -> np.ndarray:
    """Return 256 codes of two bits: in every 32 bytes first all lowest bits, and so on."""
    parts = low.reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    return (parts & 0x03).reshape(-1, 256)


def _q2_k(blocks: Blocks) -> Values:
    scales = _column(blocks, "d") * (blocks["scales"] & 0x0F).astype(np.float32)
    minima = _column(blocks, "m") * (blocks["scales"] >> 4).astype(np.float32)
    quants = _two_bits(blocks["low"]).reshape(-1, 16, 16).astype(np.float32)
    values: Values = scales[:, :, None] * quants - minima[:, :, None]
    return values.reshape(-1, 256)


def _q3_k(blocks: Blocks) -> Values:
    packed = blocks["scales"]
    low = np.concatenate([packed[:, :8] & 0x0F, packed[:, :8] >> 4], axis=1)
    high = packed[:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8)[:, None]  # scale 4 j + i: bits 2 j of byte i
    scales = (low | ((high & 0x03) << 4).reshape(-1, 16)).view(np.int8) - np.int8(32)
    bits = np.unpackbits(blocks["high"][:, :, None], axis=2, bitorder="little")  # bit g of byte i: value 32 g + i
    quants = _two_bits(blocks["low"]) | (bits.transpose(0, 2, 1).reshape(-1, 256) << 2)
    shifted = (quants.view(np.int8) - np.int8(4)).reshape(-1, 16, 16).astype(np.float32)
    values: Values = (_column(blocks, "d") * scales.astype(np.float32))[:, :, None] * shifted
    return values.reshape(-1, 256)


def _iq4_nl(blocks: Blocks) -> Values:
    values: Values = _column(blocks, "d") * _IQ4_VALUES[_nibbles(blocks["low"], 16)]
    return values


def _iq4_xs(blocks: Blocks) -> Values:
    low = np.stack([blocks["scales_l"] & 0x0F, blocks["scales_l"] >> 4], axis=2).reshape(-1, 8)
    high = (blocks["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16)) & np.uint16(3)
    scales = (low | (high << 4).astype(np.uint8)).view(np.int8) - np.int8(32)
    quants = _IQ4_VALUES[_nibbles(blocks["low"], 16)].reshape(-1, 8, 32)
    values: Values = (_column(blocks, "d") * scales.astype(np.float32))[:, :, None] * quants
    return values.reshape(-1, 256)


def _mxfp4(blocks: Blocks) -> Values:
    scales = np.ldexp(np.float32(1), blocks["e"].astype(np.int32) - 128)[:, None]
    values: Values = scales * _MXFP4_VALUES[_nibbles(blocks["low"], 16)]
    return values


_DEQUANTIZERS: dict[str, Callable[[Blocks], Values]] = {
    "F32": _float,
    "F16": _float,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
