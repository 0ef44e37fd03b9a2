"""Every block type against gguf-py, bit by bit."""

import numpy as np
import pytest

from hotseat.models import WeightTensor
from hotseat.models.dequantize import SUPPORTED_KINDS, block_layout, dequantize_rows, row_bytes

gguf = pytest.importorskip("gguf")


def random_rows(kind, *, rows, blocks):
    """Random bytes whose values are finite: every other bit pattern may come."""
    _, num_bytes = block_layout(kind)
    rng = np.random.default_rng(7)
    data = rng.integers(0, 256, (rows, blocks * num_bytes), dtype=np.uint8)
    with np.errstate(invalid="ignore", over="ignore"):  # until the infinite ones are dropped
        reference = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
    bad_rows = ~np.isfinite(reference).all(axis=1)
    return data[~bad_rows], reference[~bad_rows]


def test_the_block_layouts_are_those_of_ggml():
    for kind in SUPPORTED_KINDS:
        assert block_layout(kind) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]


@pytest.mark.parametrize("kind", SUPPORTED_KINDS)
@pytest.mark.parametrize("blocks", [1, 3])
def test_dequantised_values_are_bit_equal_to_those_of_gguf_py(kind, blocks):
    data, reference = random_rows(kind, rows=200, blocks=blocks)
    assert len(data) > 100
    values = dequantize_rows(kind, data)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values.view(np.uint32), reference.astype(np.float32).view(np.uint32))


def test_long_tensors_are_dequantised_piece_by_piece_with_the_same_result():
    data, reference = random_rows("Q4_1", rows=40, blocks=16)
    repeated = np.tile(data, (1, 60))  # more values than are taken at a time
    values = WeightTensor(kind="Q4_1", shape=(len(data), 60 * 512), data=repeated).dequantize()
    np.testing.assert_array_equal(values, np.tile(reference, (1, 60)))


def test_a_vector_keeps_its_shape():
    data = np.arange(5, dtype="<f4").view(np.uint8).reshape(1, -1)
    np.testing.assert_array_equal(WeightTensor(kind="F32", shape=(5,), data=data).dequantize(), np.arange(5.0))


def test_row_bytes_count_whole_blocks():
    assert row_bytes("Q8_0", 64) == 68
    assert row_bytes("Q6_K", 512) == 420
    with pytest.raises(AssertionError, match="whole blocks"):
        row_bytes("Q4_K", 64)
