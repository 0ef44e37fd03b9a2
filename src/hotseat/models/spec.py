"""What a decoder-only transformer is made of, as data."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["LAYER_SLOTS", "MODEL_SLOTS", "DecoderSpec", "RopeSpec"]

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
