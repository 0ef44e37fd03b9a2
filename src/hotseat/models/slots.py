"""Match a file's tensors with the slots of a ``DecoderSpec``, before anything big is read."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Protocol

from hotseat.errors import ModelError, UnsupportedModelError
from hotseat.models.dequantize import SUPPORTED_KINDS
from hotseat.models.spec import DecoderSpec, slot_shapes

__all__ = ["StoredTensor", "match_slots", "tensor_name"]

_NAMED_AT_MOST = 5


class StoredTensor(Protocol):
    """What every file format says about a tensor."""

    @property
    def kind(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


def tensor_name(slot: str, names: Mapping[str, str]) -> str:
    """Return the file's name of a slot; ``names`` holds ``{i}`` where the layer's number stands."""
    if slot in names:
        return names[slot]
    _, layer, part = slot.split(".")
    return names[part].format(i=layer)


def match_slots(
    spec: DecoderSpec,
    found: Mapping[str, StoredTensor],
    names: Mapping[str, str],
    *,
    ignored: str,
) -> dict[str, str]:
    """Return slot → name of its tensor in the file.

    ``ignored`` is a pattern of tensors that may be there and are not needed. Raises ``UnsupportedModelError`` for a
    tensor type that cannot be run, ``ModelError`` for tensors that are missing, misshaped or unknown.
    """
    if spec.num_layers > len(found):
        raise ModelError(f"a model of {spec.num_layers} layers cannot consist of only {len(found)} tensors")
    _refuse_kinds(found)
    shapes = slot_shapes(spec)
    slots = {slot: tensor_name(slot, names) for slot in shapes}
    _refuse_missing([name for name in slots.values() if name not in found])
    for slot, name in slots.items():
        if found[name].shape != shapes[slot]:
            raise ModelError(
                f"tensor {name} has the shape {list(found[name].shape)}; the model's configuration asks for "
                f"{list(shapes[slot])}"
            )
    _refuse_unknown(found.keys() - set(slots.values()), ignored)
    return slots


def _refuse_kinds(found: Mapping[str, StoredTensor]) -> None:
    refused = {name: tensor.kind for name, tensor in found.items() if tensor.kind not in SUPPORTED_KINDS}
    if refused:
        kinds = ", ".join(sorted(set(refused.values())))
        raise UnsupportedModelError(
            f"tensor type {kinds} is not supported (first met in {next(iter(refused))}); "
            f"supported are: {', '.join(SUPPORTED_KINDS)}"
        )


def _refuse_missing(missing: list[str]) -> None:
    if missing:
        raise ModelError(f"{_count(missing)} missing: {_some(missing)}")


def _refuse_unknown(names: Collection[str], ignored: str) -> None:
    unknown = sorted(name for name in names if not re.fullmatch(ignored, name))
    biases = [name for name in unknown if name.endswith(".bias")]
    if biases:
        raise UnsupportedModelError(f"biases are not supported; the model has {_some(biases)}")
    if unknown:
        raise ModelError(f"{_count(unknown)} unknown to this architecture: {_some(unknown)}")


def _count(names: Collection[str]) -> str:
    return "1 tensor is" if len(names) == 1 else f"{len(names)} tensors are"


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED_AT_MOST]) + (" …" if len(names) > _NAMED_AT_MOST else "")
