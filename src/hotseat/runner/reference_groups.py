"""Rounding in groups, as dtype gguf does it, defined in NumPy: ``y = x_q @ w.T`` with the exact stored weights.

All values are float32. The native kernels follow these definitions; docs/decisions/006 says why scales are as they are.
"""

from __future__ import annotations

import numpy as np

from hotseat.runner.reference_ops import SMALLEST_ROW, Array, quantize_rows

__all__ = ["nearest_groups", "quantize_groups"]

GROUP = 32  # inputs that share a scale
BLOCK = 256  # inputs whose scales are small multiples of one
MULTIPLIER_LEVELS = 16


def quantize_groups(
    x: Array,  # [rows, K]
) -> Array:  # [rows, K]
    """Round each 32 values to ``scale * q``, with scales that are 1 to 16 times one of 256 values.

    block_scale = max|x| / (127 · 16) of 256 values, scale = block_scale * multiplier,
    multiplier = ceil(16 · max|x of 32| / max|x of 256|), at least 1,
    q = round_half_to_even(x · (127 · 16 / max|x of 256| / multiplier)).

    The multipliers are integers, and so are the scales in two-level weights: floating point joins once in 256 values.
    Zeros and values that are not finite: as in ``quantize_rows``, of 256 values.
    """
    blocks = np.pad(x, ((0, 0), (0, -x.shape[1] % BLOCK))).reshape(-1, BLOCK // GROUP, GROUP)
    peaks = np.abs(blocks).max(axis=-1)
    largest = peaks.max(axis=-1, keepdims=True)
    is_finite = np.isfinite(largest)
    is_usable = is_finite & (largest >= SMALLEST_ROW)
    levels = np.float32(127 * MULTIPLIER_LEVELS)
    peaks, divisor = np.where(is_usable, peaks, np.float32(0)), np.where(is_usable, largest, np.float32(1))
    multiplier = np.maximum(np.ceil(peaks * np.float32(MULTIPLIER_LEVELS) / divisor), np.float32(1))
    block_scale = np.where(is_usable, largest / levels, np.where(is_finite, np.float32(0), np.float32(np.nan)))
    inverse = np.where(is_usable, levels / divisor / multiplier, np.float32(0))
    finite = np.where(is_finite[..., None], blocks, np.float32(0))
    quantized = np.clip(np.rint(finite * inverse[..., None]), -127, 127)
    return _in_rows(quantized * (block_scale * multiplier)[..., None], x)


def nearest_groups(
    weight: Array,  # [N, K]
) -> Array:  # [N, K]
    """Round weights that are stored without groups to Q8_0: each 32 values to ``scale * q`` with an fp16 scale.

    scale = float16(max|w| / 127), q = round_half_to_even(w / scale) in [-127, 127]; a scale of 0 gives zeros.
    """
    groups = _in_groups(weight)
    with np.errstate(over="ignore"):
        scale = quantize_rows(groups)[1].astype(np.float16).astype(np.float32)[:, None]
    is_usable = scale > 0
    quantized = np.rint(np.divide(groups, scale, out=np.zeros_like(groups), where=is_usable))
    return _in_rows(np.clip(quantized, -127, 127) * scale, weight)


def _in_groups(x: Array) -> Array:  # [rows * groups of a row, GROUP], the last one of a row filled up with zeros
    return np.pad(x, ((0, 0), (0, -x.shape[1] % GROUP))).reshape(-1, GROUP)


def _in_rows(groups: Array, like: Array) -> Array:
    return np.ascontiguousarray(groups.reshape(len(like), -1)[:, : like.shape[1]])
