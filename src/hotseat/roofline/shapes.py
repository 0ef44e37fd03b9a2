"""Shapes of a model's multiplications, and the bytes that its attention reads."""

from __future__ import annotations

from dataclasses import dataclass

from hotseat.models.spec import DecoderSpec
from hotseat.runner.config import KvDtype, kv_bytes_per_block

__all__ = ["LinearShape", "attention_operations", "kv_bytes_per_token", "linear_shapes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearShape:
    """One multiplication of a step, as the native decoder does it."""

    name: str
    slots: tuple[str, ...]  # the weights of one of them
    in_features: int
    num_outputs: int
    epilogue: str  # what is done with the products, see csrc/kernels/table.h
    count: int  # in one step

    @property
    def num_weights(self) -> int:
        return self.in_features * self.num_outputs

    def num_operations(self, rows: int) -> int:
        """Return the multiplications and additions of one multiplication of ``rows`` rows."""
        return 2 * self.num_weights * rows


def linear_shapes(spec: DecoderSpec) -> tuple[LinearShape, ...]:
    """Return the multiplications of a step; the last one gives the logits, of rows that sample."""
    hidden, intermediate, layers = spec.hidden_size, spec.intermediate_size, spec.num_layers
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    head = "token_embedding" if spec.tie_word_embeddings else "output"
    sizes = (
        ("qkv", ("layers.0.q", "layers.0.k", "layers.0.v"), hidden, q_size + 2 * kv_size, "store", layers),
        ("attention output", ("layers.0.attention_output",), q_size, hidden, "add", layers),
        ("gate and up", ("layers.0.gate", "layers.0.up"), hidden, 2 * intermediate, "swiglu", layers),
        ("down", ("layers.0.down",), intermediate, hidden, "add", layers),
        ("output head", (head,), hidden, spec.vocab_size, "store", 1),
    )
    return tuple(
        LinearShape(name=name, slots=slots, in_features=n, num_outputs=m, epilogue=epilogue, count=count)
        for name, slots, n, m, epilogue, count in sizes
    )


def attention_operations(spec: DecoderSpec, num_pairs: int) -> int:
    """Return the operations of scores and values of all layers, where rows see ``num_pairs`` positions in all."""
    return 4 * spec.num_layers * spec.num_heads * spec.head_dim * num_pairs


def kv_bytes_per_token(spec: DecoderSpec, kv_cache_dtype: KvDtype) -> int:
    """Return the bytes of keys and values that all layers hold of one token."""
    return kv_bytes_per_block(spec, kv_cache_dtype, 1)
