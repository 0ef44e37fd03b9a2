"""Every operation of a decoder-only transformer, defined in NumPy; the native kernels follow these definitions.

All values are float32. T rows, H query heads, G key/value heads, D head size, K in and N out features.

The bits of a row never depend on its neighbours: each row is multiplied by itself, because a BLAS adds in another
order for another number or place of rows, and attention adds over tiles at fixed absolute positions. So the
golden tests hold bitwise for this runner as for the native one.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hotseat.models.spec import Activation, RopeSpec

__all__ = [
    "Array",
    "AttentionOptions",
    "activate",
    "attention",
    "attention_bf16",
    "bf16_bits",
    "bf16_values",
    "block_hadamard",
    "hadamard_width",
    "layer_norm",
    "linear",
    "linear_int8",
    "quantize_rows",
    "rms_norm",
    "rope",
    "rope_table",
    "round_to_bf16",
    "softcap",
]

Array: TypeAlias = NDArray[np.float32]

KV_TILE = 128
SPAN = 256  # positions that share a maximum where weights are rounded
MAX_HADAMARD_WIDTH = 64
SMALLEST_ROW = np.float32(1e-30)  # rows below are quantised to zeros
# Products of two 7-bit integers summed over so many are below 2**24: float32 BLAS adds them exactly.
_EXACT_SUM_LENGTH = 1024
_PANEL = 4096  # output features at a time: weights that stay in the cache while all rows pass


def rms_norm(
    x: Array,  # [T, K]
    weight: Array,  # [K]
    eps: float,
) -> Array:  # [T, K]
    """Return ``x * (1 / sqrt(mean(x**2) + eps)) * weight``."""
    mean_square: Array = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
    inverse: Array = np.float32(1) / np.sqrt(mean_square + np.float32(eps))
    return x * inverse * weight


def layer_norm(
    x: Array,  # [T, K]
    weight: Array,  # [K]
    bias: Array | None,  # [K]
    eps: float,
) -> Array:  # [T, K]
    """Return ``(x - mean(x)) / sqrt(mean((x - mean(x))**2) + eps) * weight + bias``."""
    centered = x - np.mean(x, axis=-1, keepdims=True, dtype=np.float32)
    normed = rms_norm(centered, weight, eps)
    return normed if bias is None else normed + bias


def linear(
    x: Array,  # [T, K]
    weight: Array,  # [N, K]
) -> Array:  # [T, N]
    """Return ``x @ weight.T``."""
    output = np.empty((len(x), len(weight)), np.float32)
    for begin in range(0, len(weight), _PANEL):
        panel = slice(begin, begin + _PANEL)
        np.matmul(x[:, None, :], weight[panel].T, out=output[:, None, panel])
    return output


def activate(
    kind: Activation,
    x: Array,  # [T, N]
    up: Array | None = None,  # [T, N]
) -> Array:  # [T, N]
    """Return ``activation(x)``, times ``up`` where the MLP is gated.

    silu(x) = x · sigmoid(x); gelu_tanh(x) = x · sigmoid(2 · sqrt(2 / pi) · (x + 0.044715 · x³));
    gelu_erf(x) = x / 2 · (1 + erf(x / sqrt(2))); relu2(x) = max(x, 0)². swiglu_oai, gated only, clamps:
    x' · sigmoid(1.702 · x') · (up' + 1) with x' = min(x, 7) and up' = up between -7 and 7.
    """
    with np.errstate(over="ignore"):  # exp of a very negative number is inf, the quotient then 0, as it should
        match kind:
            case "silu":
                activated: Array = x / (1 + np.exp(-x))
            case "gelu_tanh":
                inner: Array = np.float32(2 * np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
                activated = x / (1 + np.exp(-inner))
            case "gelu_erf":
                activated = np.float32(0.5) * x * (1 + _erf(x * np.float32(np.sqrt(0.5))))
            case "relu2":
                activated = np.square(np.maximum(x, np.float32(0)))
            case "swiglu_oai":
                x = np.minimum(x, np.float32(7))
                activated = x / (1 + np.exp(np.float32(-1.702) * x))
                assert up is not None, "swiglu_oai is an activation of gated MLPs"
                up = np.clip(up, np.float32(-7), np.float32(7)) + 1
    return activated if up is None else activated * up


def _erf(x: Array) -> Array:
    """Return the error function to 1.5e-7 (Abramowitz and Stegun, formula 7.1.26)."""
    t = np.float32(1) / (np.float32(1) + np.float32(0.3275911) * np.abs(x))
    series: Array = np.zeros_like(x)
    for coefficient in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = (series * t + np.float32(coefficient)).astype(np.float32)
    result: Array = np.copysign(1 - series * t * np.exp(-x * x), x)
    return result


def softcap(x: Array, cap: float) -> Array:
    """Return ``cap · tanh(x / cap)``."""
    capped: Array = np.float32(cap) * np.tanh(x / np.float32(cap))
    return capped


def rope_table(spec: RopeSpec, num_positions: int) -> tuple[Array, Array]:  # [num_positions, D / 2] each
    """Return cosines and sines, those of rotated pairs times the attention factor.

    The angle is a float32 product (as in transformers), its cosine and sine are taken in float64 and rounded.
    """
    frequencies = np.array(spec.inverse_frequencies, np.float32)
    angles = np.arange(num_positions, dtype=np.float32)[:, None] * frequencies
    factor = np.where(frequencies == 0, np.float32(1), np.float32(spec.attention_factor))
    cos, sin = np.cos(angles.astype(np.float64)), np.sin(angles.astype(np.float64))
    return cos.astype(np.float32) * factor, sin.astype(np.float32) * factor


def rope(
    x: Array,  # [T, heads, D]
    cos: Array,  # [T, D / 2]
    sin: Array,  # [T, D / 2]
) -> Array:  # [T, heads, D]
    """Rotate each pair ``(x[i], x[i + D/2])`` by its angle (the rotate-half convention)."""
    first, second = np.split(x, 2, axis=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class AttentionOptions(NamedTuple):
    """The ways in which attention differs from layer to layer and model to model."""

    window: int | None = None  # positions that a row sees, its own included
    scale: float | None = None  # None: 1 / sqrt(D)
    softcap: float | None = None
    sinks: Array | None = None  # [H], one more score of each head, without a value


PLAIN = AttentionOptions()


def attention(
    q: Array,  # [T, H, D], rows of one sequence at positions start, start + 1, …
    k: Array,  # [start + T, G, D]
    v: Array,  # [start + T, G, D]
    start: int,
    options: AttentionOptions = PLAIN,
) -> Array:  # [T, H, D]
    """Attend causally: softmax(cap(q·k · scale)) · v over positions up to the row's own, at most ``window`` of them.

    Query head h reads key/value head ``h // (H / G)``. The maximum is exact, the sum of exponentials and the
    weighted sum of values are added within tiles of ``KV_TILE`` positions, then over the tiles in order.
    """
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    k_tiles, v_tiles = (_kv_tiles(x, KV_TILE) for x in (k, v))  # [tiles, 1, G, KV_TILE, D]
    grouped = q.reshape(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
    scores = np.stack([np.matmul(grouped, tile.swapaxes(-1, -2)) for tile in k_tiles])  # [tiles, T, G, H/G, KV_TILE]
    scores *= np.float32(options.scale or 1 / np.sqrt(np.float64(head_dim)))
    if options.softcap:
        scores = softcap(scores, options.softcap)
    is_hidden = _is_hidden(start, num_rows, len(k_tiles), KV_TILE, options.window)
    np.copyto(scores, np.float32(-np.inf), where=is_hidden[:, :, None, None, :])
    largest = scores.max(axis=(0, -1), keepdims=True)
    weights = np.exp(scores - largest)
    total = np.zeros(grouped.shape[:-1], np.float32)
    output: Array = np.zeros_like(grouped)
    for tile_weights, tile_values, is_hidden_tile in zip(weights, v_tiles, is_hidden, strict=True):
        total += tile_weights.sum(axis=-1)
        output += np.matmul(tile_weights, _visible(tile_values, is_hidden_tile))
    if options.sinks is not None:
        sinks = options.sinks.reshape(num_kv_heads, -1)
        peak = np.maximum(largest[0, ..., 0], sinks)
        keep = np.exp(largest[0, ..., 0] - peak)
        total, output = total * keep + np.exp(sinks - peak), output * keep[..., None]
    output /= total[..., None]
    return output.reshape(num_rows, num_heads, head_dim)


def attention_bf16(
    q: Array,  # [T, H, D], rows of one sequence at positions start, start + 1, …
    k: Array,  # [start + T, G, D], bf16 values
    v: Array,  # [start + T, G, D], bf16 values
    start: int,
    options: AttentionOptions = PLAIN,
) -> Array:  # [T, H, D]
    """Attend as ``attention`` does, multiplying only bf16 values, exactly; sums stay float32.

    Queries are rounded after they are scaled so that scores are base-2 logarithms. A span's weights
    ``2**(score - its own maximum)`` are rounded, their sum is that of the rounded ones, and spans are merged in order.
    """
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    k_spans, v_spans = (_kv_tiles(x, SPAN) for x in (k, v))
    rounded = round_to_bf16(q * np.float32(np.log2(np.e) * (options.scale or 1 / np.sqrt(np.float64(head_dim)))))
    grouped = rounded.reshape(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
    largest = np.full((*grouped.shape[:-1], 1), -np.inf, np.float32)
    total, output = np.zeros_like(largest), np.zeros_like(grouped)
    is_hidden = _is_hidden(start, num_rows, len(k_spans), SPAN, options.window)
    for k_span, v_span, is_hidden_span in zip(k_spans, v_spans, is_hidden, strict=True):
        scores = np.matmul(grouped, k_span.swapaxes(-1, -2))
        if options.softcap:
            scores = softcap(scores, options.softcap * np.log2(np.e))
        np.copyto(scores, np.float32(-np.inf), where=is_hidden_span[:, None, None, :])
        span_largest = scores.max(axis=-1, keepdims=True)  # -inf where a row sees nothing of the span
        weights = round_to_bf16(np.exp2(scores - np.where(np.isneginf(span_largest), np.float32(0), span_largest)))
        new_largest = np.maximum(largest, span_largest)
        shift = np.where(np.isneginf(new_largest), np.float32(0), new_largest)  # nothing seen so far
        keep, take = np.exp2(largest - shift), np.exp2(span_largest - shift)
        total = total * keep + weights.sum(axis=-1, keepdims=True) * take
        output = output * keep + np.matmul(weights, _visible(v_span, is_hidden_span)) * take
        largest = new_largest
    if options.sinks is not None:
        sinks = (options.sinks * np.float32(np.log2(np.e))).reshape(num_kv_heads, -1, 1)
        peak = np.maximum(largest, sinks)
        keep = np.exp2(largest - peak)
        total, output = total * keep + np.exp2(sinks - peak), output * keep
    quotient: Array = output / total
    return quotient.reshape(num_rows, num_heads, head_dim)


def _kv_tiles(
    x: Array,  # [positions, G, D]
    size: int,
) -> Array:  # [tiles, 1, G, size, D]
    """Cut keys or values into tiles of positions, the last one padded with zeros."""
    num_positions, num_kv_heads, head_dim = x.shape
    num_tiles = -(-num_positions // size)
    padded = np.zeros((num_tiles * size, num_kv_heads, head_dim), np.float32)
    padded[:num_positions] = x
    tiles = padded.reshape(num_tiles, 1, size, num_kv_heads, head_dim)
    return np.ascontiguousarray(tiles.swapaxes(2, 3))


def _is_hidden(
    start: int, num_rows: int, num_tiles: int, size: int, window: int | None
) -> NDArray[np.bool_]:  # [tiles, T, size]
    """Return which positions of each tile lie behind each row's own, or before its window."""
    key_positions = np.arange(num_tiles * size).reshape(num_tiles, 1, size)
    own = (start + np.arange(num_rows))[:, None]
    is_behind: NDArray[np.bool_] = key_positions > own
    return is_behind if window is None else is_behind | (key_positions <= own - window)


def _visible(
    values: Array,  # [1, G, size, D]
    is_hidden: NDArray[np.bool_],  # [T, size]
) -> Array:  # [1 or T, G, size, D]
    """Return a tile's values, zeros for hidden ones where it matters."""
    if np.isfinite(values).all():
        return values
    # Zero times NaN is NaN: a row must not even touch what it does not see.
    return np.where(is_hidden[:, None, :, None], np.float32(0), values)


# bf16: the upper half of a float32, rounded half to even


def bf16_bits(x: Array) -> NDArray[np.uint16]:
    """Return the bf16 encoding of ``x``, rounded half to even; a NaN stays a NaN."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(is_nan, np.uint32(0x7FC0), rounded).astype(np.uint16)


def bf16_values(bits: NDArray[np.uint16]) -> Array:
    """Return the float32 values that bf16 ``bits`` stand for."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_to_bf16(x: Array) -> Array:
    """Return ``x`` rounded to the nearest bf16 values."""
    return bf16_values(bf16_bits(x))


# int8: y = (x_q @ w_q.T) * x_scale * w_scale, both sides rotated before they are quantised


def hadamard_width(in_features: int) -> int:
    """Return the width of the blocks that are rotated: the largest power of two up to 64 that divides K."""
    return min(in_features & -in_features, MAX_HADAMARD_WIDTH)


def block_hadamard(
    x: Array,  # [rows, K]
    width: int,
) -> Array:  # [rows, K]
    """Multiply each block of ``width`` values by the normalised Hadamard matrix in Sylvester's order.

    ``log2(width)`` stages in place, for strides 1, 2, 4 …: ``(a, b) → (a + b, a - b)``; then one
    multiplication by float32(1 / sqrt(width)). The transform is orthogonal and its own inverse, so the product
    of a rotated row and a rotated weight is that of the originals. (QuaRot, Ashkboos et al. 2024.)
    """
    result = x.copy()
    stride = 1
    while stride < width:
        pairs = result.reshape(-1, 2, stride)
        first, second = pairs[:, 0].copy(), pairs[:, 1].copy()
        pairs[:, 0], pairs[:, 1] = first + second, first - second
        stride *= 2
    result *= np.float32(1 / np.sqrt(np.float64(width)))
    return result


def quantize_rows(
    x: Array,  # [rows, K]
) -> tuple[Array, Array]:  # integers in [-127, 127] kept as float32 [rows, K], scales [rows]
    """Quantise each row symmetrically: scale = max|x| / 127, q = round_half_to_even(x * (127 / max|x|)).

    Both quotients are float32. A row with max|x| below 1e-30 has scale 0 and zeros. A row that is not finite has
    a NaN scale and zeros, so that its result is NaN and its request is reported.
    """
    largest = np.abs(x).max(axis=-1)
    is_finite = np.isfinite(largest)
    is_usable = is_finite & (largest >= SMALLEST_ROW)
    scale = np.where(is_usable, largest / np.float32(127), np.where(is_finite, np.float32(0), np.float32(np.nan)))
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=is_usable)
    quantized: Array = np.rint(np.where(is_finite[:, None], x, np.float32(0)) * inverse[:, None])
    return np.clip(quantized, -127, 127), scale


def linear_int8(
    x: Array,  # [T, K]
    weight: Array,  # [N, K], integers from quantize_rows of the rotated weight
    weight_scale: Array,  # [N]
) -> Array:  # [T, N]
    """Rotate and quantise ``x``, multiply exactly in integers, return ``float32(sum) * x_scale * weight_scale``."""
    quantized, x_scale = quantize_rows(block_hadamard(x, hadamard_width(x.shape[1])))
    total = np.zeros((len(x), len(weight)), np.float64)
    for begin in range(0, x.shape[1], _EXACT_SUM_LENGTH):
        part = slice(begin, begin + _EXACT_SUM_LENGTH)
        total += linear(quantized[:, part], weight[:, part])
    return total.astype(np.float32) * x_scale[:, None] * weight_scale
