"""Read GGUF files (version 2 and 3): metadata, and tensors as views of the file.

Every count, length and offset is checked against the file's size before it is believed, so that a truncated or
hostile file ends in a ``ModelError``. Why not gguf-py: docs/decisions/002-own-gguf-reader.md.

    magic "GGUF" · version u32 · tensors u64 · pairs u64
    pairs   × [ key: string · type u32 · value ]                       string = length u64 · UTF-8 bytes
    tensors × [ name: string · dimensions u32 · sizes u64… · type u32 · offset u64 ]
    padding to the alignment · tensor data
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NoReturn, TypeAlias

import numpy as np

from hotseat.errors import ModelError
from hotseat.models.dequantize import SUPPORTED_KINDS, block_layout, row_bytes
from hotseat.models.file_bytes import FileBytes, LoadFormat, open_bytes
from hotseat.models.weights import WeightTensor

__all__ = ["GgufFile", "GgufTensor", "MetadataValue", "read_gguf"]

MetadataValue: TypeAlias = "int | float | bool | str | np.ndarray | list[str]"

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_MIN_PAIR_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8

_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS = {  # metadata value type → how NumPy writes it
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    _BOOL: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_KIND_NAMES = (  # tensor types in the order of their numbers; a dash where ggml removed one
    "F32 F16 Q4_0 Q4_1 - - Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S "
    "IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 - - - TQ1_0 TQ2_0 - - - MXFP4 NVFP4"
)
_U64 = struct.Struct("<Q")
_U32 = struct.Struct("<I")


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """The place of a tensor; ``kind`` may be one that Hotseat cannot run (see ``GgufFile.weight``)."""

    name: str
    kind: str
    shape: tuple[int, ...]  # [out_features, in_features] or [n]: the reverse of the file's order
    offset: int  # from the start of its file
    part: int = 0  # which of the model's files, where it is split


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """A GGUF model. Number arrays in ``metadata`` are NumPy arrays, string arrays are lists."""

    path: Path  # of the first part
    version: int
    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, GgufTensor]
    parts: tuple[FileBytes, ...]

    def weight(self, name: str) -> WeightTensor:
        """Return a tensor of a supported kind as a view of the file."""
        tensor = self.tensors[name]
        num_bytes = row_bytes(tensor.kind, tensor.shape[-1])
        rows = prod(tensor.shape[:-1])
        view = np.frombuffer(self.parts[tensor.part], np.uint8, rows * num_bytes, tensor.offset)
        return WeightTensor(kind=tensor.kind, shape=tensor.shape, data=view.reshape(rows, num_bytes))


def read_gguf(path: str | Path, load_format: LoadFormat = "auto") -> GgufFile:
    """Open ``path`` and read its metadata and tensor table; raises ``ModelError`` when the file is not sound."""
    path = Path(path)
    data = open_bytes(path, load_format, least=24, what="GGUF")
    cursor = _Cursor(path, data)
    version, num_tensors, num_pairs = _read_header(cursor)
    metadata: dict[str, MetadataValue] = {}
    for _ in range(num_pairs):
        key = cursor.string("a metadata key")
        metadata[key] = cursor.value(cursor.u32(f"the type of {key}"), key)
    table = [_read_tensor(cursor) for _ in range(num_tensors)]
    start = _data_start(cursor, metadata)
    tensors: dict[str, GgufTensor] = {}
    for tensor in table:
        placed = GgufTensor(name=tensor.name, kind=tensor.kind, shape=tensor.shape, offset=start + tensor.offset)
        _check_extent(cursor, placed, start)
        if tensors.setdefault(tensor.name, placed) is not placed:
            cursor.fail(f"tensor {tensor.name} appears twice")
    return GgufFile(path=path, version=version, metadata=metadata, tensors=tensors, parts=(data,))


class _Cursor:
    """Walk through the mapped file; whatever would leave it raises ``ModelError``."""

    def __init__(self, path: Path, data: FileBytes) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.offset = 0

    def fail(self, message: str) -> NoReturn:
        raise ModelError(f"{self.path}: not a sound GGUF file: {message}")

    def take(self, num_bytes: int, what: str) -> int:
        """Step over ``num_bytes`` that must exist and return where they start."""
        start = self.offset
        if num_bytes > self.size - start:
            self.fail(f"{what} needs {num_bytes} bytes at offset {start}, but the file ends at {self.size}")
        self.offset = start + num_bytes
        return start

    def u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.data, self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.data, self.take(8, what))[0]
        return value

    def string(self, what: str) -> str:
        length = self.u64(what)
        start = self.take(length, what)
        try:
            return str(self.data[start : self.offset], "utf-8")
        except UnicodeDecodeError as error:
            self.fail(f"{what} at offset {start} is not UTF-8: {error.reason}")

    def value(self, kind: int, key: str) -> MetadataValue:
        if kind == _STRING:
            return self.string(key)
        if kind == _ARRAY:
            return self.array(key)
        value: int | float | bool = self.numbers(kind, 1, key)[0].item()
        return value

    def array(self, key: str) -> MetadataValue:
        kind = self.u32(key)
        count = self.u64(key)
        if kind == _STRING:
            return self.strings(count, key)
        if kind == _ARRAY:
            self.fail(f"{key} is an array of arrays, which no model needs")
        return self.numbers(kind, count, key)

    def numbers(self, kind: int, count: int, key: str) -> np.ndarray:
        if kind not in _NUMBERS:
            self.fail(f"{key} has the unknown type {kind} at offset {self.offset}")
        dtype = np.dtype(_NUMBERS[kind])
        start = self.take(count * dtype.itemsize, f"{key} ({count} numbers)")
        if dtype.kind == "b":
            return np.frombuffer(self.data, np.uint8, count, start).astype(np.bool_)
        return np.frombuffer(self.data, dtype, count, start)

    def strings(self, count: int, key: str) -> list[str]:
        """Read ``count`` strings; the loop is bare since vocabularies hold hundreds of thousands."""
        if count * 8 > self.size - self.offset:
            self.fail(f"{key} claims {count} strings in the {self.size - self.offset} bytes that remain")
        data, end, unpack = self.data, self.offset, _U64.unpack_from
        pieces = []
        try:
            for _ in range(count):
                start = end + 8
                end = start + unpack(data, end)[0]
                pieces.append(data[start:end])
            strings = [str(piece, "utf-8") for piece in pieces]
        except (struct.error, OverflowError, IndexError):
            self.fail(f"string {len(pieces)} of {count} of {key} lies beyond the file's end at {self.size}")
        except UnicodeDecodeError as error:
            self.fail(f"{key} is not UTF-8: {error.object[:40]!r}")
        self.take(end - self.offset, key)
        return strings


def _read_header(cursor: _Cursor) -> tuple[int, int, int]:
    if (magic := cursor.data[: cursor.take(4, "the magic") + 4]) != _MAGIC:
        cursor.fail(f"it starts with {magic!r} instead of {_MAGIC!r}")
    version = cursor.u32("the version")
    if version & 0xFFFF == 0:
        cursor.fail(f"it is big-endian (version {version:#010x}); only little-endian files are supported")
    if version not in _VERSIONS:
        raise ModelError(f"{cursor.path}: GGUF version {version} is not supported; supported are {_VERSIONS}")
    num_tensors = cursor.u64("the number of tensors")
    num_pairs = cursor.u64("the number of metadata pairs")
    if num_tensors * _MIN_TENSOR_BYTES + num_pairs * _MIN_PAIR_BYTES > cursor.size:
        cursor.fail(f"{num_tensors} tensors and {num_pairs} metadata pairs cannot fit into {cursor.size} bytes")
    return version, num_tensors, num_pairs


def _read_tensor(cursor: _Cursor) -> GgufTensor:
    name = cursor.string("a tensor's name")
    num_dimensions = cursor.u32(name)
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        cursor.fail(f"tensor {name} has {num_dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are possible")
    sizes = [cursor.u64(name) for _ in range(num_dimensions)]
    number = cursor.u32(name)
    return GgufTensor(name=name, kind=_kind_name(number), shape=tuple(reversed(sizes)), offset=cursor.u64(name))


def _kind_name(number: int) -> str:
    names = _KIND_NAMES.split()
    return names[number] if number < len(names) and names[number] != "-" else f"number {number}"


def _data_start(cursor: _Cursor, metadata: Mapping[str, MetadataValue]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
        cursor.fail(f"general.alignment is {alignment!r}, not a power of two of at least 8")
    return -(-cursor.offset // alignment) * alignment


def _check_extent(cursor: _Cursor, tensor: GgufTensor, start: int) -> None:
    if min(tensor.shape) < 1:
        cursor.fail(f"tensor {tensor.name} has the empty shape {list(tensor.shape)}")
    if (tensor.offset - start) % 8:
        cursor.fail(f"tensor {tensor.name} starts at offset {tensor.offset}, which is not aligned")
    if tensor.kind not in SUPPORTED_KINDS:
        return  # its size is unknown; the tensor is refused by name before anything reads it
    values, num_bytes = block_layout(tensor.kind)
    if tensor.shape[-1] % values:
        cursor.fail(f"rows of {tensor.name} hold {tensor.shape[-1]} values, not whole {tensor.kind} blocks of {values}")
    end = tensor.offset + prod(tensor.shape) // values * num_bytes
    if end > cursor.size:
        cursor.fail(f"tensor {tensor.name} {list(tensor.shape)} ends at {end}, but the file ends at {cursor.size}")
