"""The class that describes an architecture: its names of tensors and its differences from Llama, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from hotseat.models.family_options import Fields, Options

__all__ = ["Family", "RopeStyle"]

RopeStyle: TypeAlias = Literal["half", "interleaved"]  # a rotary pair is (j, j + d / 2), or (2 j, 2 j + 1)


@dataclass(frozen=True, kw_only=True)
class Family:
    """An architecture. Names are overrides of Llama's, by slot; ``None`` takes a name away."""

    hf: Mapping[str, str]  # class → model_type
    gguf: str | None = None
    hf_names: Mapping[str, str | None] = field(default_factory=dict)
    gguf_names: Mapping[str, str | None] = field(default_factory=dict)
    # Tensors that hold the rows of several slots one after the other: name → slots.
    hf_fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gguf_fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    has_experts: bool = False
    hf_transposed: bool = False  # the matrices of layers are stored [in_features, out_features]
    hf_expert_columns: bool = False  # experts are stored [in_features, out_features], gate and up by turns
    hf_rope: RopeStyle = "half"
    gguf_rope: RopeStyle = "half"
    hf_adds_one: bool = False  # norms multiply by 1 + weight; GGUF stores the sum
    head_dim: int | None = None  # where the config does not say; None: hidden_size // num_attention_heads
    kv_heads: int | None = None  # None: as many as there are heads
    context: int | None = None
    eps: float = 1e-6
    theta: float = 1e4
    ties: bool = False
    partial: float = 1.0  # part of a head that is rotated
    options: Callable[[Fields, int, int], Options] = lambda fields, num_layers, head_dim: {}
