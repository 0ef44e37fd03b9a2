import math

import numpy as np
import pytest

from hotseat.runner.reference_groups import nearest_groups, quantize_groups
from hotseat.runner.reference_ops import (
    KV_TILE,
    SPAN,
    activate,
    attention,
    attention_bf16,
    bf16_bits,
    bf16_values,
    block_hadamard,
    hadamard_width,
    layer_norm,
    linear,
    linear_int8,
    quantize_rows,
    rms_norm,
    rope,
    round_to_bf16,
    softcap,
)

RNG = np.random.default_rng(0)


def randn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 2, 7, 16, 50])
@pytest.mark.parametrize(("in_features", "out_features"), [(1, 1), (64, 100), (577, 33), (2000, 7), (3, 4099)])
def test_rows_of_a_linear_layer_do_not_depend_on_their_neighbours(
    rows: int, in_features: int, out_features: int
) -> None:
    x, weight = randn(rows, in_features), randn(out_features, in_features)
    together = linear(x, weight)
    assert np.allclose(together, x.astype(np.float64) @ weight.T.astype(np.float64), rtol=1e-4, atol=1e-3)
    for row in range(rows):
        assert np.array_equal(linear(x[row : row + 1], weight)[0], together[row])


def dense_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, start: int) -> np.ndarray:
    rows, heads, head_dim = q.shape
    output = np.empty((rows, heads, head_dim))
    for row in range(rows):
        for head in range(heads):
            kv_head = head * k.shape[1] // heads
            keys, values = (x[: start + row + 1, kv_head].astype(np.float64) for x in (k, v))
            scores = keys @ q[row, head].astype(np.float64) / head_dim**0.5
            weights = np.exp(scores - scores.max())
            output[row, head] = weights @ values / weights.sum()
    return output


@pytest.mark.parametrize("start", [0, 1, KV_TILE - 1, KV_TILE, KV_TILE + 1, 300])
@pytest.mark.parametrize("rows", [1, 2, 19])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 8), (9, 3, 6), (5, 1, 2)])
def test_attention_equals_its_formula(start: int, rows: int, heads: int, kv_heads: int, head_dim: int) -> None:
    q, k, v = randn(rows, heads, head_dim), randn(start + rows, kv_heads, head_dim), randn(start + rows, kv_heads, 1)
    v = np.repeat(v, head_dim, axis=-1) * np.arange(1, head_dim + 1, dtype=np.float32)
    together = attention(q, k, v, start)
    assert np.allclose(together, dense_attention(q, k, v, start), atol=1e-5)
    for row in range(rows):
        end = start + row + 1
        assert np.array_equal(attention(q[row : row + 1], k[:end], v[:end], start + row)[0], together[row])


@pytest.mark.parametrize("start", [0, 1, SPAN - 1, SPAN, SPAN + 1, 600])
@pytest.mark.parametrize("rows", [1, 2, 19])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 8), (9, 3, 6), (5, 1, 2)])
def test_attention_bf16_is_within_its_rounding(start: int, rows: int, heads: int, kv_heads: int, head_dim: int) -> None:
    q, k, v = (round_to_bf16(randn(n, h, head_dim)) for n, h in ((rows, heads), *[(start + rows, kv_heads)] * 2))
    together = attention_bf16(q, k, v, start)
    # With the query as it is rounded. A weight changes by a factor of at most 1 + 2**-8, and so does their sum.
    factor = np.log2(np.e) / head_dim**0.5
    rounded = round_to_bf16(q * np.float32(factor)).astype(np.float64) / factor
    expected = dense_attention(rounded, k, v, start)
    assert np.abs(together - expected).max() <= 2 * 2**-8 * np.abs(v).max() + 1e-5
    assert np.array_equal(together, attention(q, k, v, start)) == (len(k) == 1)
    for row in range(rows):
        end = start + row + 1
        assert np.array_equal(attention_bf16(q[row : row + 1], k[:end], v[:end], start + row)[0], together[row])


def test_attention_leaves_alone_what_a_row_does_not_see() -> None:
    q, k, v = randn(3, 2, 4), randn(303, 2, 4), randn(303, 2, 4)
    for attend in (attention, attention_bf16):
        expected = attend(q, k, v, 300)
        broken_k, broken_v = (np.concatenate([x[:302], np.full((1, 2, 4), np.nan, np.float32)]) for x in (k, v))
        actual = attend(q, broken_k, broken_v, 300)
        assert np.array_equal(actual[:2], expected[:2])
        assert np.isnan(actual[2]).all()


def test_rms_norm_and_swiglu_equal_their_formulas() -> None:
    x, weight = randn(5, 37), randn(37)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight
    assert np.allclose(rms_norm(x, weight, 1e-5), expected, rtol=1e-5, atol=1e-6)
    gate = np.array([[-200.0, -1.0, 0.0, 3.0, 200.0]], np.float32)
    expected = gate.astype(np.float64) / (1 + np.exp(-gate.astype(np.float64))) * 2
    assert np.allclose(activate("silu", gate, np.full_like(gate, 2)), expected, rtol=1e-6)


def test_layer_norm_equals_its_formula() -> None:
    x, weight, bias = randn(5, 37) + 3, randn(37), randn(37)
    wide = x.astype(np.float64)
    centered = wide - wide.mean(-1, keepdims=True)
    expected = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * weight
    assert np.allclose(layer_norm(x, weight, None, 1e-5), expected, atol=1e-5)
    assert np.allclose(layer_norm(x, weight, bias, 1e-5), expected + bias, atol=1e-5)


def test_activations_and_softcap_equal_their_formulas() -> None:
    x = np.linspace(-12, 12, 1001, dtype=np.float32)[None]
    wide = x.astype(np.float64)
    erf = np.vectorize(math.erf)(wide / np.sqrt(2))
    tanh = np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))
    assert np.allclose(activate("gelu_erf", x), wide / 2 * (1 + erf), atol=2e-6)
    assert np.allclose(activate("gelu_tanh", x), wide / 2 * (1 + tanh), atol=2e-6)
    assert np.allclose(activate("relu2", x), np.maximum(wide, 0) ** 2)
    assert np.allclose(softcap(x, 5.0), 5 * np.tanh(wide / 5), atol=2e-6)


def test_rope_turns_pairs_and_keeps_lengths() -> None:
    x = randn(3, 2, 8)
    angles = randn(3, 4)
    turned = rope(x, np.cos(angles), np.sin(angles))
    pairs, turned_pairs = x[..., :4] + 1j * x[..., 4:], turned[..., :4] + 1j * turned[..., 4:]
    assert np.allclose(turned_pairs, pairs * np.exp(1j * angles)[:, None, :], atol=1e-5)


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0x3F800000, 0x3F80),
        (0x3F808000, 0x3F80),  # half way, even below
        (0x3F818000, 0x3F82),  # half way, even above
        (0x3F808001, 0x3F81),
        (0x7F7FFFFF, 0x7F80),  # overflows to infinity
        (0xFF800000, 0xFF80),
        (0x80000000, 0x8000),
        (0x7F800001, 0x7FC0),  # a NaN whose payload is in the lost half
    ],
)
def test_bf16_rounds_half_to_even(bits: int, expected: int) -> None:
    assert bf16_bits(np.array([bits], np.uint32).view(np.float32))[0] == expected


def test_bf16_values_survive_a_round_trip() -> None:
    values = round_to_bf16(randn(1000))
    assert np.array_equal(bf16_values(bf16_bits(values)), values)


@pytest.mark.parametrize(
    ("in_features", "width"), [(576, 64), (1536, 64), (64, 64), (96, 32), (54, 2), (101, 1), (1, 1), (8, 8)]
)
def test_hadamard_width_is_the_largest_power_of_two_that_divides(in_features: int, width: int) -> None:
    assert hadamard_width(in_features) == width


@pytest.mark.parametrize("width", [1, 2, 8, 32, 64])
def test_block_hadamard_is_the_normalised_sylvester_matrix(width: int) -> None:
    matrix = np.ones((1, 1))
    while len(matrix) < width:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    x = randn(3, 3 * width)
    expected = (x.reshape(3, 3, width) @ matrix / width**0.5).reshape(3, -1)
    assert np.allclose(block_hadamard(x, width), expected, atol=1e-5)
    assert np.allclose(block_hadamard(block_hadamard(x, width), width), x, atol=1e-5)


def test_quantised_rows_are_symmetric_and_round_half_to_even() -> None:
    x = np.array([[127.0, -127.0, 0.5, 1.5, 2.5, -2.5], [0, 0, 0, 0, 0, 0], [1e-38, 0, 0, 0, 0, 0]], np.float32)
    quantized, scale = quantize_rows(x)
    assert quantized.tolist() == [[127, -127, 0, 2, 2, -2], [0] * 6, [0] * 6]
    assert scale.tolist() == [1, 0, 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_row_that_is_not_finite_spoils_only_itself_in_int8(bad: float) -> None:
    x, weight = randn(3, 64), randn(5, 64)
    quantized, scale = quantize_rows(block_hadamard(weight, 64))
    clean = linear_int8(x, quantized, scale)
    x[1, 7] = bad
    with np.errstate(invalid="ignore"):
        result = linear_int8(x, quantized, scale)
    assert np.isnan(result[1]).all()
    assert np.array_equal(result[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("in_features", [1, 64, 101, 576, 1536, 4104])
def test_int8_sums_are_exact_integers(in_features: int) -> None:
    x, weight = randn(4, in_features), randn(6, in_features)
    width = hadamard_width(in_features)
    x_q, x_scale = quantize_rows(block_hadamard(x, width))
    w_q, w_scale = quantize_rows(block_hadamard(weight, width))
    sums = x_q.astype(np.int64) @ w_q.astype(np.int64).T
    expected = sums.astype(np.float32) * x_scale[:, None] * w_scale
    assert np.array_equal(linear_int8(x, w_q, w_scale), expected)
    largest = np.full((1, in_features), 127, np.float32)
    total = linear_int8(block_hadamard(largest, width), largest, np.ones(1, np.float32))
    assert total == pytest.approx(127.0 * 127 * in_features, rel=1e-2)


def test_int8_with_rotation_tolerates_outliers() -> None:
    x, weight = randn(8, 576), randn(100, 576)
    x[:, 5] *= 100
    exact = x @ weight.T

    def error(result: np.ndarray) -> float:
        return float(np.linalg.norm(result - exact) / np.linalg.norm(exact))

    plain_x, plain_x_scale = quantize_rows(x)
    plain_w, plain_w_scale = quantize_rows(weight)
    plain = error(plain_x @ plain_w.T * plain_x_scale[:, None] * plain_w_scale)
    rotated = error(linear_int8(x, *quantize_rows(block_hadamard(weight, 64))))
    assert rotated < 0.02
    assert rotated < plain / 2


def test_nearest_groups_are_no_farther_than_half_a_code() -> None:
    weight = randn(9, 70) * np.exp2(RNG.integers(-12, 4, (9, 1))).astype(np.float32)
    rounded = nearest_groups(weight)
    for begin in range(0, 70, 32):
        group = slice(begin, begin + 32)
        largest = np.abs(weight[:, group]).max(axis=1, keepdims=True)
        # The scale has eleven bits, fewer where it is so small that fp16 has steps of 2^-24: the largest value may be
        # that much beyond the last code.
        bound = largest * (0.5 / 127 + 2.0**-11) + 127 * 2.0**-25
        assert np.all(np.abs(rounded[:, group] - weight[:, group]) <= bound)
    assert np.array_equal(nearest_groups(np.zeros((2, 40), np.float32)), np.zeros((2, 40), np.float32))


def test_scales_of_activations_are_small_multiples_of_one_for_256_values() -> None:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((5, 600)) * 2.0 ** rng.integers(-12, 4, (5, 600))).astype(np.float32)
    rounded = quantize_groups(x)
    for row, values in zip(rounded, x, strict=True):
        for start in range(0, 600, 256):
            block = values[start : start + 256]
            unit = np.abs(block).max() / (127 * 16)
            for group in range(0, len(block), 32):
                part = block[group : group + 32]
                scale = max(1, np.ceil(16 * np.abs(part).max() / np.abs(block).max())) * unit
                error = np.abs(row[start + group : start + group + 32] - part)
                assert error.max() <= scale * 0.501
    broken = x.copy()
    broken[1, 300] = np.nan
    assert np.isnan(quantize_groups(broken)[1, 256:512]).all()
    assert np.array_equal(quantize_groups(broken)[1, :256], rounded[1, :256])
