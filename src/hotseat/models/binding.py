"""Match the tensors of a file with the slots of a ``DecoderSpec``, and bring them into its order.

A slot is one tensor, or some rows of one that holds several (q, k and v; gate and up). Rows of q and k are put into
rotate-half order; the rows of a quantised matrix move whole, so their bytes stay as they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hotseat.errors import ModelError, UnsupportedModelError
from hotseat.models.dequantize import SUPPORTED_KINDS
from hotseat.models.family import Family, RopeStyle
from hotseat.models.spec import DecoderSpec, is_matrix, layer_slots, slot_shapes
from hotseat.models.weights import WeightTensor

__all__ = ["Names", "Source", "StoredTensor", "biased_slots", "bind", "later_layers", "ordered"]

Rows = npt.NDArray[np.intp]

LLAMA_HF = {
    "token_embedding": "model.embed_tokens.weight",
    "output_norm": "model.norm.weight",
    "output": "lm_head.weight",
    "attention_norm": "model.layers.{i}.input_layernorm.weight",
    "q": "model.layers.{i}.self_attn.q_proj.weight",
    "k": "model.layers.{i}.self_attn.k_proj.weight",
    "v": "model.layers.{i}.self_attn.v_proj.weight",
    "q_norm": "model.layers.{i}.self_attn.q_norm.weight",
    "k_norm": "model.layers.{i}.self_attn.k_norm.weight",
    "attention_output": "model.layers.{i}.self_attn.o_proj.weight",
    "mlp_norm": "model.layers.{i}.post_attention_layernorm.weight",
    "gate": "model.layers.{i}.mlp.gate_proj.weight",
    "up": "model.layers.{i}.mlp.up_proj.weight",
    "down": "model.layers.{i}.mlp.down_proj.weight",
    "sinks": "model.layers.{i}.self_attn.sinks",
    "router": "model.layers.{i}.mlp.gate.weight",
    "selection_bias": "model.layers.{i}.mlp.gate.e_score_correction_bias",
    "experts.gate": "model.layers.{i}.mlp.experts.{e}.gate_proj.weight",
    "experts.up": "model.layers.{i}.mlp.experts.{e}.up_proj.weight",
    "experts.down": "model.layers.{i}.mlp.experts.{e}.down_proj.weight",
    "shared_gate": "model.layers.{i}.mlp.shared_experts.gate_proj.weight",
    "shared_up": "model.layers.{i}.mlp.shared_experts.up_proj.weight",
    "shared_down": "model.layers.{i}.mlp.shared_experts.down_proj.weight",
}
LLAMA_GGUF = {
    "token_embedding": "token_embd.weight",
    "position_embedding": "position_embd.weight",
    "output_norm": "output_norm.weight",
    "output": "output.weight",
    "attention_norm": "blk.{i}.attn_norm.weight",
    "q": "blk.{i}.attn_q.weight",
    "k": "blk.{i}.attn_k.weight",
    "v": "blk.{i}.attn_v.weight",
    "q_norm": "blk.{i}.attn_q_norm.weight",
    "k_norm": "blk.{i}.attn_k_norm.weight",
    "attention_output": "blk.{i}.attn_output.weight",
    "mlp_norm": "blk.{i}.ffn_norm.weight",
    "gate": "blk.{i}.ffn_gate.weight",
    "up": "blk.{i}.ffn_up.weight",
    "down": "blk.{i}.ffn_down.weight",
    "sinks": "blk.{i}.attn_sinks.weight",
    "router": "blk.{i}.ffn_gate_inp.weight",
    "selection_bias": "blk.{i}.exp_probs_b.bias",
    # All experts in one tensor. Files of before April 2024 have one for each, as LLAMA_HF does.
    "experts.gate": "blk.{i}.ffn_gate_exps.weight",
    "experts.up": "blk.{i}.ffn_up_exps.weight",
    "experts.down": "blk.{i}.ffn_down_exps.weight",
    "shared_gate": "blk.{i}.ffn_gate_shexp.weight",
    "shared_up": "blk.{i}.ffn_up_shexp.weight",
    "shared_down": "blk.{i}.ffn_down_shexp.weight",
    "shared_router": "blk.{i}.ffn_gate_inp_shexp.weight",
}
_GGUF_SPLIT_EXPERTS = {f"experts.{part}": f"blk.{{i}}.ffn_{part}.{{e}}.weight" for part in ("gate", "up", "down")}
_NAMED_AT_MOST = 5


class StoredTensor(Protocol):
    """The description of a tensor that every file format has."""

    @property
    def kind(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Source:
    """The tensor of a slot, and which of its rows.

    Of a tensor that holds a matrix for each expert the rows are those of all matrices, one after the other. ``whole``
    is the shape that a tensor of several slots must have. With ``expert`` the rows are columns of that expert's
    matrix instead, and with ``is_transposed`` columns of the tensor.
    """

    name: str
    rows: Rows | slice | None = None  # None: all, in their order
    whole: tuple[int, ...] | None = None
    expert: int | None = None
    is_transposed: bool = False


class Names:
    """The names of a family's tensors in one format."""

    def __init__(self, family: Family, found: Mapping[str, StoredTensor], *, is_gguf: bool) -> None:
        overrides = family.gguf_names if is_gguf else family.hf_names
        self._names = {**(LLAMA_GGUF if is_gguf else LLAMA_HF), **overrides}
        self._fused = dict(family.gguf_fused if is_gguf else family.hf_fused)
        if is_gguf:
            # Options of the converter, in any family.
            self._fused.setdefault("blk.{i}.attn_qkv", ("q", "k", "v"))
            self._fused.setdefault("blk.{i}.ffn_gate_up_exps", ("experts.gate", "experts.up"))
            if any(re.fullmatch(r"blk\.\d+\.ffn_gate\.0\.weight", name) for name in found):
                self._names |= _GGUF_SPLIT_EXPERTS
        self._is_transposed = family.hf_transposed and not is_gguf
        self._has_columns = family.hf_expert_columns and not is_gguf
        self._is_neox = not is_gguf and any("query_key_value" in name for name in self._fused)
        self._found = found

    def has(self, slot: str, layer: int = 0) -> bool:
        """Tell whether there is a tensor for ``slot``, which belongs to a layer."""
        return self._direct(slot, layer) in self._found or self._fused_name(slot, layer) is not None

    def source(self, slot: str, layer: int, shapes: Mapping[str, tuple[int, ...]], spec: DecoderSpec) -> Source:
        """Return where the rows of ``slot`` are; the tensor of that name may be missing."""
        if slot.startswith("experts."):
            return self._of_expert(slot, layer, shapes, spec)
        found = self._of_layer(slot, layer, shapes, spec)
        return replace(found, is_transposed=self._is_transposed and is_matrix(slot))

    def _of_layer(self, slot: str, layer: int, shapes: Mapping[str, tuple[int, ...]], spec: DecoderSpec) -> Source:
        direct, fused = self._direct(slot, layer), self._fused_name(slot, layer)
        if fused is None:
            return Source(direct)
        parts = next(slots for name, slots in self._fused.items() if name.format(i=layer) == fused.rpartition(".")[0])
        suffix = "_bias" if slot.endswith("_bias") else ""
        sizes = [shapes[f"{one}{suffix}"][0] for one in parts]
        whole = (sum(sizes), *shapes[slot][1:])
        if all(self._direct(f"{one}{suffix}", layer) in self._found for one in parts):
            return Source(direct)  # GGUF calls gate and up in one tensor as it calls up alone
        part = slot.removesuffix("_bias")
        if self._is_neox and part in ("q", "k", "v"):
            heads = np.arange(spec.num_heads)[:, None] * 3 + parts.index(part)
            return Source(fused, (heads * spec.head_dim + np.arange(spec.head_dim)).reshape(-1), whole)
        start = sum(sizes[: parts.index(part)])
        return Source(fused, np.arange(start, start + shapes[slot][0]), whole)

    def _of_expert(self, slot: str, layer: int, shapes: Mapping[str, tuple[int, ...]], spec: DecoderSpec) -> Source:
        _, number, part = slot.split(".")
        expert, kind = int(number), f"experts.{part}"
        shape, count = shapes[slot], spec.experts.count if spec.experts else 0
        size = shape[0] if len(shape) == 2 else 1  # a bias is a row of a matrix
        if self._has_columns:
            return self._column_source(kind, expert, layer, (count, *reversed(shape)))
        fused = self._fused_name(kind, layer)
        if fused is None:
            name = self._direct(kind, layer)
            if "{e}" in self._template(kind):
                return Source(self._template(kind).format(i=layer, e=expert))
            return Source(name, slice(expert * size, (expert + 1) * size), (count, *shape))
        parts = next(slots for name, slots in self._fused.items() if name.format(i=layer) == fused.rpartition(".")[0])
        start = (expert * len(parts) + parts.index(kind.removesuffix("_bias"))) * size
        return Source(fused, slice(start, start + size), (count, len(parts) * shape[0], *shape[1:]))

    def _column_source(self, kind: str, expert: int, layer: int, whole: tuple[int, ...]) -> Source:
        """Return the columns of a slot; those of gate and up alternate in one tensor (gpt-oss)."""
        part, suffix = kind.removesuffix("_bias"), "_bias" if kind.endswith("_bias") else ""
        if part == "experts.down":
            return Source(self._direct(part, layer) + suffix, slice(None), whole, expert)
        columns = slice(0 if part == "experts.gate" else 1, None, 2)
        return Source(self._direct(part, layer) + suffix, columns, (*whole[:-1], 2 * whole[-1]), expert)

    def of_model(self, slot: str) -> str:
        """Return the name of a tensor that is not part of a layer."""
        return self._direct(slot, 0)

    def _template(self, slot: str) -> str:
        if slot.endswith("_bias") and slot not in self._names:
            base = self._names.get(slot.removesuffix("_bias")) or ""
            return f"{base.removesuffix('.weight')}.bias"
        return self._names.get(slot) or f"no tensor for {slot}"

    def _direct(self, slot: str, layer: int) -> str:
        return self._template(slot).format(i=layer, e=0)

    def _fused_name(self, slot: str, layer: int) -> str | None:
        part = slot.removesuffix("_bias")
        for name, slots in self._fused.items():
            full = f"{name.format(i=layer)}.{'bias' if slot.endswith('_bias') else 'weight'}"
            if part in slots and full in self._found:
                return full
        return None


def bind(spec: DecoderSpec, names: Names, found: Mapping[str, StoredTensor], *, ignored: str) -> dict[str, Source]:
    """Return slot → its source.

    ``ignored`` is a pattern of tensors that may be there and are not needed. Raises ``UnsupportedModelError`` for a
    tensor type that cannot be run, ``ModelError`` for tensors that are missing, misshaped or unknown.
    """
    if spec.num_layers > len(found):
        raise ModelError(f"a model of {spec.num_layers} layers cannot consist of only {len(found)} tensors")
    _refuse_kinds(found)
    shapes = slot_shapes(spec)
    sources = {slot: Source(names.of_model(slot)) for slot in shapes}
    for index in range(spec.num_layers):
        layer = layer_slots(spec, index)
        sources |= {f"layers.{index}.{slot}": names.source(slot, index, layer, spec) for slot in layer}
    wanted = dict.fromkeys(source.name for source in sources.values())  # an expert's tensor may be that of all
    _refuse_missing([name for name in wanted if name not in found])
    for slot, shape in shapes.items():
        _check_shape(sources[slot], shape, found)
    _refuse_unknown(found.keys() - {source.name for source in sources.values()}, ignored)
    return sources


def ordered(
    slot: str, tensor: WeightTensor, source: Source, spec: DecoderSpec, style: RopeStyle, rotary_dim: int
) -> WeightTensor:
    """Return a slot's rows of ``tensor``, q and k and what belongs to them in rotate-half order."""
    part = slot.rpartition(".")[2]
    rows = source.rows
    if source.is_transposed:
        tensor = _transposed(tensor)
    order = _half_order(spec.head_dim, rotary_dim, style)
    moves = part.partition("_")[0] in ("q", "k") and not np.array_equal(order, np.arange(spec.head_dim))
    if part in ("q_norm", "k_norm"):
        return _ordered_values(tensor, order) if moves else tensor
    if moves:
        assert not isinstance(rows, slice), "queries and keys are not stacked"
        count = len(rows) if rows is not None else tensor.shape[0]
        head = np.arange(0, count, spec.head_dim)[:, None] + order
        rows = head.reshape(-1) if rows is None else rows[head.reshape(-1)]
    if rows is None:
        return tensor
    if source.expert is not None and isinstance(rows, slice):
        return _columns(tensor, source.expert, rows)
    if isinstance(rows, slice):
        shape = (rows.stop - rows.start, tensor.shape[-1])
        data = tensor.data[rows]  # no copy
        return WeightTensor(kind=tensor.kind, shape=shape if len(tensor.shape) > 2 else shape[1:], data=data)
    if len(tensor.shape) == 1:
        values = tensor.dequantize()[rows]
        return WeightTensor(kind="F32", shape=values.shape, data=values[None].view(np.uint8))
    return WeightTensor(kind=tensor.kind, shape=(len(rows), tensor.shape[1]), data=tensor.data[rows])


def _transposed(tensor: WeightTensor) -> WeightTensor:
    """Return a matrix whose rows are the columns of ``tensor``."""
    shape = tensor.shape
    rows = _columns(WeightTensor(kind=tensor.kind, shape=(1, *shape), data=tensor.data), 0, slice(None))
    return WeightTensor(kind=tensor.kind, shape=shape[::-1], data=rows.data)


def _columns(tensor: WeightTensor, expert: int, columns: slice) -> WeightTensor:
    """Return columns of an expert's matrix as rows, or some values of its bias."""
    if tensor.kind not in ("F32", "F16", "BF16"):
        raise UnsupportedModelError(f"matrices stored by columns cannot be of type {tensor.kind}")
    values = tensor.data.view(np.uint32 if tensor.kind == "F32" else np.uint16).reshape(tensor.shape)[expert]
    rows = np.ascontiguousarray(values[..., columns].T)
    return WeightTensor(kind=tensor.kind, shape=rows.shape, data=np.atleast_2d(rows).view(np.uint8))


def _ordered_values(tensor: WeightTensor, order: Rows) -> WeightTensor:
    """Return a norm's weight with the dimensions of each head in ``order``."""
    values = tensor.dequantize()
    moved = np.ascontiguousarray(values.reshape(-1, len(order))[:, order].reshape(values.shape))
    return WeightTensor(kind="F32", shape=tensor.shape, data=moved.reshape(-1, moved.shape[-1]).view(np.uint8))


def _half_order(head_dim: int, rotary_dim: int, style: RopeStyle) -> Rows:
    """Return for each dimension of a head in rotate-half order its place in the file.

    Pair j of the rotated dimensions goes to (j, j + head_dim / 2); the others keep their order around them.
    """
    pairs = rotary_dim // 2
    first = np.arange(pairs) if style == "half" else np.arange(0, rotary_dim, 2)
    second = np.arange(pairs, rotary_dim) if style == "half" else np.arange(1, rotary_dim, 2)
    rest = np.arange(rotary_dim, head_dim)
    middle = len(rest) // 2
    return np.concatenate([first, rest[:middle], second, rest[middle:]])


def _check_shape(source: Source, shape: tuple[int, ...], found: Mapping[str, StoredTensor]) -> None:
    actual = found[source.name].shape
    if source.is_transposed:
        actual = actual[::-1]
    if source.whole is not None:
        shape, is_right = source.whole, actual == source.whole
    else:
        is_right = actual == shape or (
            math.prod(actual) == math.prod(shape) and (len(actual) == 1 or actual == (1, *shape))
        )
    if not is_right:
        raise ModelError(
            f"tensor {source.name} has the shape {list(actual)}; the model's configuration asks for {list(shape)}"
        )


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
    if unknown:
        raise ModelError(f"{_count(unknown)} unknown to this architecture: {_some(unknown)}")


def _count(names: Collection[str]) -> str:
    return "1 tensor is" if len(names) == 1 else f"{len(names)} tensors are"


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED_AT_MOST]) + (" …" if len(names) > _NAMED_AT_MOST else "")


def biased_slots(names: Names) -> Iterator[str]:
    """Yield the matrices of a layer that have a bias."""
    for slot in ("q", "k", "v", "attention_output", "gate", "up", "down"):
        if names.has(f"{slot}_bias"):
            yield slot


def later_layers(num_layers: int, count: object) -> str:
    """Return a pattern of the tensors of ``count`` layers after the last: they guess tokens further ahead."""
    if not isinstance(count, int) or not 0 < count < num_layers:
        return r"(?!)"
    return rf"(model\.layers|blk)\.({'|'.join(str(num_layers + i) for i in range(count))})\..*"
