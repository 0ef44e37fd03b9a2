"""Shapes of a model's multiplications, and the bytes that its attention reads."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hotseat.models.spec import DecoderSpec
from hotseat.runner.config import KvDtype, kv_bytes_per_block

__all__ = ["LinearShape", "attention_operations", "kv_bytes_per_token", "linear_shapes", "num_experts"]


@dataclass(frozen=True, slots=True)
class LinearShape:
    """One multiplication of a step, as the native decoder does it."""

    name: str
    slots: tuple[str, ...]  # the weights of one of them
    in_features: int
    num_outputs: int
    epilogue: str  # what is done with the products, see csrc/kernels/table.h
    count: int  # in the model
    used: float = 1.0  # the part of these that a row is multiplied with

    @property
    def num_weights(self) -> int:
        return self.in_features * self.num_outputs

    def num_operations(self, rows: int) -> int:
        """Return the multiplications and additions of one multiplication of ``rows`` rows."""
        return 2 * self.num_weights * rows


def linear_shapes(spec: DecoderSpec) -> tuple[LinearShape, ...]:
    """Return the multiplications of a step; the last one gives the logits, of rows that sample."""
    hidden, layers = spec.hidden_size, spec.num_layers
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes = [
        LinearShape("qkv", ("layers.0.q", "layers.0.k", "layers.0.v"), hidden, q_size + 2 * kv_size, "store", layers),
        LinearShape("attention output", ("layers.0.attention_output",), q_size, hidden, "add", layers),
    ]
    with_experts = [i for i, layer in enumerate(spec.layers) if layer.has_experts]
    without = [i for i, layer in enumerate(spec.layers) if not layer.has_experts]
    if without:
        shapes += _mlp_shapes(spec, "", f"layers.{without[0]}.", spec.intermediate_size, len(without))
    if spec.experts is not None:
        start, experts, count = f"layers.{with_experts[0]}.", spec.experts, len(with_experts)
        own = _mlp_shapes(spec, "expert: ", f"{start}experts.0.", experts.intermediate_size, count * experts.count)
        shapes += [replace(shape, used=experts.per_token / experts.count) for shape in own]
        if experts.shared_intermediate_size:
            size = experts.shared_intermediate_size
            shapes += _mlp_shapes(spec, "shared expert: ", f"{start}shared_", size, count)
    head = "token_embedding" if spec.tie_word_embeddings else "output"
    return (*shapes, LinearShape("output head", (head,), hidden, spec.vocab_size, "store", 1))


def _mlp_shapes(spec: DecoderSpec, prefix: str, start: str, size: int, count: int) -> list[LinearShape]:
    hidden = spec.hidden_size
    # Other activations are applied to the stored products.
    epilogue = "swiglu" if spec.gated and spec.activation == "silu" else "store"
    up = LinearShape(f"{prefix}up", (f"{start}up",), hidden, size, epilogue, count)
    if spec.gated:
        up = LinearShape(f"{prefix}gate and up", (f"{start}gate", f"{start}up"), hidden, 2 * size, epilogue, count)
    return [up, LinearShape(f"{prefix}down", (f"{start}down",), size, hidden, "add", count)]


def num_experts(spec: DecoderSpec) -> int:
    """Return the number of experts of all layers."""
    return 0 if spec.experts is None else spec.experts.count * sum(layer.has_experts for layer in spec.layers)


def attention_operations(spec: DecoderSpec, num_pairs: int) -> int:
    """Return the operations of scores and values of all layers, where rows see ``num_pairs`` positions in all."""
    return 4 * spec.num_layers * spec.num_heads * spec.head_dim * num_pairs


def kv_bytes_per_token(spec: DecoderSpec, kv_cache_dtype: KvDtype) -> int:
    """Return the bytes of keys and values that all layers hold of one token."""
    return kv_bytes_per_block(spec, kv_cache_dtype, 1)
