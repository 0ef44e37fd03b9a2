"""Read safetensors files: the header, and tensors as views of the file, BF16 included.

header length u64 · header: JSON { name: { dtype, shape, data_offsets: [begin, end) } } · tensor data
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from hotseat.errors import ModelError
from hotseat.models.file_bytes import FileBytes, LoadFormat, open_bytes
from hotseat.models.weights import WeightTensor

__all__ = ["SafetensorsFile", "SafetensorsTensor", "read_safetensors"]

_KIND_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsTensor:
    """The place of a tensor; ``kind`` is its dtype as the file names it, maybe one that Hotseat cannot run."""

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int  # from the start of the file
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsFile:
    """A safetensors file."""

    path: Path
    tensors: Mapping[str, SafetensorsTensor]
    data: FileBytes

    def weight(self, name: str) -> WeightTensor:
        """Return a tensor of a supported kind as a view of the file (a copy where the file is not aligned)."""
        tensor = self.tensors[name]
        view = np.frombuffer(self.data, np.uint8, tensor.num_bytes, tensor.offset)
        if tensor.offset % _KIND_BYTES[tensor.kind]:
            view = view.copy()
        return WeightTensor(kind=tensor.kind, shape=tensor.shape, data=view.reshape(prod(tensor.shape[:-1]), -1))


def read_safetensors(path: str | Path, load_format: LoadFormat = "auto") -> SafetensorsFile:
    """Open ``path`` and read its header; raises ``ModelError`` when the file is not sound."""
    path = Path(path)
    data = open_bytes(path, load_format, least=8, what="safetensors")
    size = len(data)
    header_bytes = int.from_bytes(data[:8], "little")
    if header_bytes > min(size - 8, _MAX_HEADER_BYTES):
        raise ModelError(f"{path}: the header claims {header_bytes} bytes, but the file has {size}")
    try:
        header = json.loads(data[8 : 8 + header_bytes])
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise ModelError(f"{path}: the header is not a JSON object")
    tensors = {
        name: _tensor(path, name, entry, start=8 + header_bytes, size=size)
        for name, entry in header.items()
        if name != "__metadata__"
    }
    return SafetensorsFile(path=path, tensors=tensors, data=data)


def _tensor(path: Path, name: str, entry: Any, *, start: int, size: int) -> SafetensorsTensor:
    try:
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"{path}: tensor {name} is not described by dtype, shape and data_offsets") from None
    numbers = [*(shape if isinstance(shape, list) else [None]), begin, end]
    if not isinstance(kind, str) or not all(type(n) is int and n >= 0 for n in numbers):
        raise ModelError(f"{path}: tensor {name} has the senseless shape {shape!r} or offsets {begin!r}, {end!r}")
    if not begin <= end <= size - start:
        raise ModelError(f"{path}: tensor {name} ends at {start + end}, but the file ends at {size}")
    if kind in _KIND_BYTES and end - begin != prod(shape) * _KIND_BYTES[kind]:
        raise ModelError(f"{path}: tensor {name} of {kind} {shape} cannot have {end - begin} bytes")
    return SafetensorsTensor(name=name, kind=kind, shape=tuple(shape), offset=start + begin, num_bytes=end - begin)
