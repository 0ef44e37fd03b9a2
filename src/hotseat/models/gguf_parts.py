"""GGUF models in several files, as ``llama-gguf-split`` writes them: NAME-00001-of-00003.gguf and so on.

Only the first part has the model's metadata. Every part has ``split.no`` (from 0), ``split.count`` and
``split.tensors.count`` (of the whole model).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from hotseat.errors import ModelError, ModelNotFoundError
from hotseat.models.file_bytes import LoadFormat
from hotseat.models.gguf import GgufFile, GgufTensor, read_gguf

__all__ = ["is_later_part", "model_name", "part_names", "read_gguf_model"]

_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_NAMED_AT_MOST = 5


def part_names(name: str) -> list[str]:
    """Return the names of all parts of the model of which ``name`` (maybe with folders) is one; or only ``name``."""
    match = _PART_NAME.fullmatch(name)
    if match is None:
        return [name]
    count = int(match["count"])
    return [f"{match['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)] or [name]


def is_later_part(name: str) -> bool:
    """Tell whether ``name`` is that of a part other than the first."""
    match = _PART_NAME.fullmatch(name)
    return match is not None and int(match["number"]) != 1


def model_name(name: str) -> str:
    """Return a file's name without ``.gguf`` and without the number of the part."""
    match = _PART_NAME.fullmatch(name)
    return match["stem"] if match else name.removesuffix(".gguf")


def read_gguf_model(path: Path, load_format: LoadFormat = "auto") -> GgufFile:
    """Read the GGUF model whose file, or one of whose parts, is ``path``.

    Raises:
        ModelNotFoundError: a part is missing.
        ModelError: a file is not sound, or the parts do not belong together.
    """
    named = read_gguf(path, load_format)
    count = named.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return named
    names = part_names(path.name)
    if len(names) != count:
        raise ModelError(
            f"{path}: the file says that it is one of {count} parts (split.count); then its name must end in "
            f"-00001-of-{count:05}.gguf or the like, for the others to be found"
        )
    if missing := [name for name in names if not path.with_name(name).is_file()]:
        shown = ", ".join(missing[:_NAMED_AT_MOST]) + (" …" if len(missing) > _NAMED_AT_MOST else "")
        raise ModelNotFoundError(f"{path}: the model has {count} parts, of which {len(missing)} are missing: {shown}")
    files = (named if name == path.name else read_gguf(path.with_name(name), load_format) for name in names)
    return _joined(list(files))


def _joined(parts: list[GgufFile]) -> GgufFile:
    first = parts[0]
    for number, part in enumerate(parts):
        if (place := (part.metadata.get("split.no"), part.metadata.get("split.count"))) != (number, len(parts)):
            raise ModelError(
                f"{part.path}: by its name it is part {number + 1} of {len(parts)}, but its metadata say "
                f"split.no {place[0]} (from 0) and split.count {place[1]}"
            )
    tensors: dict[str, GgufTensor] = {}
    for tensor in _tensors(parts):
        if tensors.setdefault(tensor.name, tensor) is not tensor:
            raise ModelError(
                f"{first.path}: tensor {tensor.name} is in parts {tensors[tensor.name].part + 1} and {tensor.part + 1}"
            )
    total = first.metadata.get("split.tensors.count", len(tensors))
    if total != len(tensors):
        raise ModelError(f"{first.path}: split.tensors.count is {total}, but the parts hold {len(tensors)} tensors")
    return GgufFile(
        path=first.path,
        version=first.version,
        metadata=first.metadata,
        tensors=tensors,
        parts=tuple(part.parts[0] for part in parts),
    )


def _tensors(parts: list[GgufFile]) -> Iterable[GgufTensor]:
    for number, part in enumerate(parts):
        for tensor in part.tensors.values():
            yield GgufTensor(name=tensor.name, kind=tensor.kind, shape=tensor.shape, offset=tensor.offset, part=number)
