"""What a decoder-only transformer is made of, as data."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["LAYER_SLOTS", "MODEL_SLOTS", "DecoderSpec", "RopeSpec", "slot_shapes"]

# Names of weights. Matrices are [out_features, in_features]; q and k rows are in rotate-half order
# (dimension i pairs with i + head_dim/2), whatever the file used.
MODEL_SLOTS = ("token_embedding", "output_norm", "output")
LAYER_SLOTS = (
    "attention_norm",
    "q",
    "k",
    "v",
    "attention_output",
    "mlp_norm",
    "gate",
    "up",
    "down",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary embedding, already reduced to what a kernel needs.

    ``inverse_frequencies`` has ``head_dim / 2`` entries (radians per position), with any scaling
    (linear, llama3, YaRN) folded in; cos and sin are multiplied by ``attention_factor`` (YaRN's mscale).
    """

    inverse_frequencies: tuple[float, ...]
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """Describe a decoder-only transformer of the Llama family.

    Pre-norm RMSNorm, rotary attention with grouped key/value heads, SwiGLU, no biases.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeSpec
    max_position_embeddings: int  # context length after rope scaling
    tie_word_embeddings: bool
    metadata: dict[str, str] = field(default_factory=dict)  # name, licence …: for people, not for kernels


def slot_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight that a model of this spec has."""
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "attention_norm": (spec.hidden_size,),
        "q": (q_size, spec.hidden_size),
        "k": (kv_size, spec.hidden_size),
        "v": (kv_size, spec.hidden_size),
        "attention_output": (spec.hidden_size, q_size),
        "mlp_norm": (spec.hidden_size,),
        "gate": (spec.intermediate_size, spec.hidden_size),
        "up": (spec.intermediate_size, spec.hidden_size),
        "down": (spec.hidden_size, spec.intermediate_size),
    }
    shapes: dict[str, tuple[int, ...]] = {"token_embedding": (spec.vocab_size, spec.hidden_size)}
    for i in range(spec.num_layers):
        shapes |= {f"layers.{i}.{slot}": layer[slot] for slot in LAYER_SLOTS}
    shapes["output_norm"] = (spec.hidden_size,)
    if not spec.tie_word_embeddings:
        shapes["output"] = (spec.vocab_size, spec.hidden_size)
    return shapes
