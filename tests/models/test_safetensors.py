"""The safetensors reader on sound, broken and hostile files."""

import json

import numpy as np
import pytest

from hotseat.errors import ModelError
from hotseat.models.safetensors import read_safetensors
from tiny_models import write_safetensors


def file_of(header, data=b""):
    head = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return len(head).to_bytes(8, "little") + head + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


def test_files_written_by_the_safetensors_library_are_read(tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    tensors = {
        "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
        "half": np.arange(4, dtype=np.float16),
        "whole": np.arange(3),
    }
    library.save_file(tensors, tmp_path / "a.safetensors", metadata={"format": "np"})
    file = read_safetensors(tmp_path / "a.safetensors")
    assert file.tensors["whole"].kind == "I64"
    for name in ("matrix", "half"):
        np.testing.assert_array_equal(file.weight(name).dequantize(), tensors[name])


def test_a_file_that_is_not_aligned_is_read_all_the_same(tmp_path):
    values = np.arange(4, dtype="<f4")
    header = json.dumps({"t": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    header += b" " * (3 - len(header) % 4)
    (tmp_path / "a.safetensors").write_bytes(file_of(header, values.tobytes()))
    weight = read_safetensors(tmp_path / "a.safetensors").weight("t")
    assert weight.dequantize().tolist() == [0, 1, 2, 3]
    assert weight.data.ctypes.data % 4 == 0


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"1234", "4 bytes are too few"),
        ((2**63).to_bytes(8, "little") + b"{}", "the header claims 9223372036854775808 bytes, but the file has 10"),
        (file_of(b"{"), "not JSON"),
        (file_of(b"\xff\xff"), "not JSON"),
        (file_of(b"[" * 100_000), "not JSON"),
        (file_of([1]), "not a JSON object"),
        (file_of({"t": 1}), "t is not described by"),
        (file_of({"t": {"dtype": "F32", "shape": [2], "data_offsets": [0]}}), "t is not described by"),
        (file_of(entry(shape=[-2]), bytes(8)), "senseless shape [-2]"),
        (file_of(entry(shape=[1.5]), bytes(8)), "senseless shape [1.5]"),
        (file_of(entry(shape=None), bytes(8)), "senseless shape None"),
        (file_of(entry(offsets=[8, 0]), bytes(8)), "t ends at"),
        (file_of(entry(offsets=[0, 2**70]), bytes(8)), "t ends at"),
        (file_of(entry(shape=[2**40, 2**40]), bytes(8)), "cannot have 8 bytes"),
        (file_of(entry(dtype=["F32"]), bytes(8)), "senseless"),
    ],
)
def test_an_unsound_file_is_refused_with_a_reason(content, reason, tmp_path):
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(ModelError) as caught:
        read_safetensors(tmp_path / "a.safetensors")
    assert reason in str(caught.value)


def test_every_truncation_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    write_safetensors(path, {"a": ("F32", (4, 4), bytes(64)), "b": ("BF16", (8,), bytes(16))})
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ModelError):
            read_safetensors(path)
