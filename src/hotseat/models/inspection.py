"""The content of a model's files, and whether Hotseat runs them, from their headers: no weight is read or converted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Protocol

from hotseat.errors import ModelError, ModelNotFoundError
from hotseat.models.dequantize import SUPPORTED_KINDS, block_layout
from hotseat.models.gguf import GgufTensor
from hotseat.models.gguf_parts import read_gguf_model
from hotseat.models.load import gguf_in, load_files, locate
from hotseat.models.loaded import LoadedModel
from hotseat.models.safetensors import SafetensorsTensor, read_safetensors

__all__ = ["Inspection", "KindTotal", "inspect_model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTotal:
    """All tensors of one type; ``num_bytes`` is ``None`` for a type whose size Hotseat does not know."""

    kind: str
    num_tensors: int
    num_values: int
    num_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The findings. ``model`` is ``None`` when it is refused, for the reason ``refusal``."""

    path: Path
    file_format: str
    architecture: str | None
    kinds: tuple[KindTotal, ...]  # most values first
    model: LoadedModel | None
    refusal: str | None

    @property
    def num_parameters(self) -> int:
        """Values in all tensors of the files."""
        return sum(total.num_values for total in self.kinds)


class _Tensor(Protocol):
    @property
    def kind(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


def inspect_model(
    model: str | None, *, cache_dir: Path | None = None, revision: str | None = None, token: str | None = None
) -> Inspection:
    """Inspect a model that is on this machine; one of a hub must have been pulled.

    Raises:
        ModelNotFoundError: it is not here.
        ModelError: its files are so unsound that they say nothing.
    """
    try:
        path, name = locate(model, cache_dir=cache_dir, revision=revision, token=token, offline=True)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(f"{error} (a model of a hub is inspected after `hotseat pull`)") from error.__cause__
    gguf = (gguf_in(path) if path.is_dir() else path) if not (path / "config.json").is_file() else None
    try:
        loaded, refusal = load_files(path, name=name), None
    except ModelError as error:
        loaded, refusal = None, str(error)
    tensors: list[GgufTensor] | list[SafetensorsTensor]
    if gguf is not None:
        file = read_gguf_model(gguf)
        architecture, tensors = file.metadata.get("general.architecture"), list(file.tensors.values())
        file_format, shown = f"GGUF, version {file.version}" + _parts(len(file.parts)), file.path
    else:
        shards = [read_safetensors(shard) for shard in sorted(path.glob("*.safetensors"))]
        tensors = [tensor for shard in shards for tensor in shard.tensors.values()]
        architecture = _hf_architecture(path / "config.json")
        file_format, shown = "Hugging Face, safetensors" + _parts(len(shards)), path
    return Inspection(
        path=shown,
        file_format=file_format,
        architecture=architecture if isinstance(architecture, str) else None,
        kinds=_totals(tensors),
        model=loaded,
        refusal=refusal,
    )


def _parts(count: int) -> str:
    return f" ({count} files)" if count > 1 else ""


def _hf_architecture(path: Path) -> str | None:
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(config, Mapping):
        return None
    named = config.get("architectures") or [config.get("model_type")]
    return str(named[0]) if isinstance(named, list) and named[0] else None


def _totals(tensors: Iterable[_Tensor]) -> tuple[KindTotal, ...]:
    shapes: dict[str, list[int]] = {}
    for tensor in tensors:
        shapes.setdefault(tensor.kind, []).append(prod(tensor.shape))
    totals = [
        KindTotal(kind=kind, num_tensors=len(sizes), num_values=sum(sizes), num_bytes=_num_bytes(kind, sum(sizes)))
        for kind, sizes in shapes.items()
    ]
    return tuple(sorted(totals, key=lambda total: -total.num_values))


def _num_bytes(kind: str, num_values: int) -> int | None:
    if kind not in SUPPORTED_KINDS:
        return None
    values, num_bytes = block_layout(kind)
    return num_values // values * num_bytes
