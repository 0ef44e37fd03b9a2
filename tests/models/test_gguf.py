"""The GGUF reader on sound, broken and hostile files."""

import struct

import numpy as np
import pytest

from hotseat.errors import ModelError
from hotseat.models.gguf import read_gguf
from tiny_models import TinyLlama, gguf_name, tiny_weights, write_tiny_gguf_model

gguf = pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory):
    return write_tiny_gguf_model(tmp_path_factory.mktemp("gguf") / "tiny.gguf", kind="Q8_0")


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_bytes(*, version=3, pairs=(), tensors=(), num_pairs=None, num_tensors=None, data=b""):
    """Assemble a file by hand: pairs are (key, type, bytes), tensors (name, sizes, type, offset)."""
    counts = (
        (num_tensors if num_tensors is not None else len(tensors)),
        (num_pairs if num_pairs is not None else len(pairs)),
    )
    head = b"GGUF" + struct.pack("<IQQ", version, *counts)
    for key, kind, value in pairs:
        head += text(key) + struct.pack("<I", kind) + value
    for name, sizes, kind, offset in tensors:
        head += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)
    return head + b"\0" * (-len(head) % 32) + data


@pytest.fixture
def read(tmp_path):
    def write_and_read(content):
        path = tmp_path / "file.gguf"
        path.write_bytes(content)
        return read_gguf(path)

    return write_and_read


def test_metadata_equals_that_of_gguf_py(tiny_gguf):
    ours = read_gguf(tiny_gguf)
    theirs = gguf.GGUFReader(tiny_gguf)
    names = [name for name in theirs.fields if not name.startswith("GGUF.")]
    assert list(ours.metadata) == names
    for name in names:
        value = ours.metadata[name]
        assert (value.tolist() if isinstance(value, np.ndarray) else value) == theirs.fields[name].contents()


def test_tensors_equal_those_of_gguf_py(tiny_gguf):
    ours = read_gguf(tiny_gguf)
    theirs = gguf.GGUFReader(tiny_gguf).tensors
    assert list(ours.tensors) == [tensor.name for tensor in theirs]
    for tensor in theirs:
        weight = ours.weight(tensor.name)
        assert weight.kind == tensor.tensor_type.name
        assert weight.shape == tuple(int(n) for n in reversed(tensor.shape))
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(weight.dequantize(), expected.reshape(weight.shape))


def test_tensors_are_views_of_the_mapped_file(tiny_gguf):
    data = read_gguf(tiny_gguf).weight("token_embd.weight").data
    assert not data.flags.owndata
    assert not data.flags.writeable


def test_every_number_type_is_read(read):
    values = {
        0: 200,
        1: -5,
        2: 60000,
        3: -300,
        4: 4_000_000_000,
        5: -7,
        6: 0.5,
        7: True,
        10: 2**63,
        11: -(2**60),
        12: 0.1,
    }
    formats = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    pairs = [(f"key{kind}", kind, struct.pack("<" + formats[kind], value)) for kind, value in values.items()]
    metadata = read(gguf_bytes(pairs=pairs, version=2)).metadata
    assert list(metadata.values()) == list(values.values())
    assert metadata["key7"] is True


def test_arrays_become_numpy_arrays_and_lists_of_strings(read):
    pairs = [
        ("numbers", 9, struct.pack("<IQ3i", 5, 3, -1, 0, 7)),
        ("flags", 9, struct.pack("<IQ3B", 7, 3, 0, 1, 2)),
        ("words", 9, struct.pack("<IQ", 8, 3) + text("ä") + text("") + text("cd")),
        ("nothing", 9, struct.pack("<IQ", 8, 0)),
    ]
    metadata = read(gguf_bytes(pairs=pairs)).metadata
    assert metadata["numbers"].tolist() == [-1, 0, 7]
    assert metadata["flags"].tolist() == [False, True, True]
    assert metadata["words"] == ["ä", "", "cd"]
    assert metadata["nothing"] == []


def test_the_alignment_of_the_metadata_is_used(read):
    values = np.arange(4, dtype="<f4").tobytes()
    head = gguf_bytes(pairs=[("general.alignment", 4, struct.pack("<I", 128))], tensors=[("t", (4,), 0, 0)])
    assert read(head + b"\0" * (-len(head) % 128) + values).weight("t").dequantize().tolist() == [0, 1, 2, 3]


U64_MAX = 2**64 - 1
HOSTILE = {
    "an empty file": (b"", "0 bytes are too few"),
    "another format": (b"PK\3\4" + b"\0" * 60, "instead of b'GGUF'"),
    "version 1": (gguf_bytes(version=1), "version 1 is not supported"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "countless tensors": (gguf_bytes(num_tensors=U64_MAX), "cannot fit"),
    "countless pairs": (gguf_bytes(num_pairs=U64_MAX), "cannot fit"),
    "an endless key": (gguf_bytes(num_pairs=1)[:24] + struct.pack("<Q", U64_MAX) + b"x" * 99, "bytes at offset"),
    "an endless string": (gguf_bytes(pairs=[("k", 8, struct.pack("<Q", 2**62))]), "needs 4611686018427387904 bytes"),
    "countless strings": (gguf_bytes(pairs=[("k", 9, struct.pack("<IQ", 8, 2**61))]), "2305843009213693952 strings"),
    "a last word beyond the end": (gguf_bytes(pairs=[("k", 9, struct.pack("<IQQ", 8, 1, U64_MAX))]), "k needs"),
    "words beyond the end": (gguf_bytes(pairs=[("k", 9, struct.pack("<IQQQ", 8, 2, 2**62, 0))]), "string 1 of 2 of k"),
    "countless numbers": (gguf_bytes(pairs=[("k", 9, struct.pack("<IQ", 12, 2**61))]), "2305843009213693952 numbers"),
    "an array of arrays": (gguf_bytes(pairs=[("k", 9, struct.pack("<IQ", 9, 1))]), "array of arrays"),
    "an unknown value type": (gguf_bytes(pairs=[("k", 77, b"1234")]), "unknown type 77"),
    "a key that is not UTF-8": (gguf_bytes(num_pairs=1)[:24] + struct.pack("<Q", 2) + b"\xff\xfe" * 20, "not UTF-8"),
    "words that are not UTF-8": (
        gguf_bytes(pairs=[("k", 9, struct.pack("<IQQ", 8, 1, 2) + b"\xff\xfe")]),
        "k is not UTF-8",
    ),
    "no dimensions": (gguf_bytes(tensors=[("t", (), 0, 0)]), "0 dimensions"),
    "five dimensions": (gguf_bytes(tensors=[("t", (1, 1, 1, 1, 1), 0, 0)]), "5 dimensions"),
    "an empty tensor": (gguf_bytes(tensors=[("t", (4, 0), 0, 0)]), "empty shape"),
    "a vast tensor": (gguf_bytes(tensors=[("t", (2**40, 2**40), 0, 0)]), "the file ends at"),
    "a distant tensor": (gguf_bytes(tensors=[("t", (4,), 0, 2**63)], data=b"\0" * 32), "the file ends at"),
    "a crooked offset": (gguf_bytes(tensors=[("t", (4,), 0, 3)], data=b"\0" * 32), "not aligned"),
    "half a block": (gguf_bytes(tensors=[("t", (40,), 8, 0)], data=b"\0" * 64), "not whole Q8_0 blocks of 32"),
    "twins": (gguf_bytes(tensors=[("t", (1,), 0, 0)] * 2, data=b"\0" * 32), "appears twice"),
    "a senseless alignment": (gguf_bytes(pairs=[("general.alignment", 4, struct.pack("<I", 0))]), "power of two"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_unsound_file_is_refused_with_a_reason(name, read):
    content, reason = HOSTILE[name]
    with pytest.raises(ModelError) as caught:
        read(content)
    assert reason in str(caught.value)


def test_every_truncation_is_refused(tiny_gguf, tmp_path):
    content = tiny_gguf.read_bytes()
    path = tmp_path / "cut.gguf"
    for length in [*range(0, 2000, 37), *range(2000, len(content), 4999), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(ModelError):
            read_gguf(path)


def test_a_file_with_flipped_bytes_never_ends_in_another_exception(tiny_gguf, tmp_path):
    content = np.frombuffer(tiny_gguf.read_bytes(), np.uint8)
    path = tmp_path / "flipped.gguf"
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(300):
        flipped = content[:20000].copy()
        places = rng.integers(0, 1500 if rng.random() < 0.5 else len(flipped), 3)
        flipped[places] = rng.integers(0, 256, 3)
        path.write_bytes(flipped.tobytes() + content[20000:].tobytes())
        try:
            file = read_gguf(path)
            [file.weight(name) for name, tensor in file.tensors.items() if tensor.kind in ("F32", "Q8_0")]
        except ModelError:
            refused += 1
    assert refused > 50


def test_unknown_tensor_types_get_a_name(read):
    file = read(gguf_bytes(tensors=[("a", (32,), 19, 0), ("b", (32,), 4, 0), ("c", (32,), 1000, 0)]))
    assert [tensor.kind for tensor in file.tensors.values()] == ["IQ1_S", "number 4", "number 1000"]


def test_the_writer_of_the_tests_and_the_reader_agree(tmp_path):
    path = write_tiny_gguf_model(tmp_path / "tiny.gguf", kind="F32", seed=5)
    file = read_gguf(path)
    for name, values in tiny_weights(TinyLlama(seed=5)).items():
        if "q_proj" not in name and "k_proj" not in name:  # those two are stored for interleaved rope
            np.testing.assert_array_equal(file.weight(gguf_name(name)).dequantize(), values)
