"""The description of a decoder-only transformer, as data.

    hidden = embedding[token] · embedding_scale  (+ position_embedding[position])
    pre       hidden += a(norm(hidden)); hidden += m(norm(hidden))
    post      hidden += norm(a(hidden)); hidden += norm(m(hidden))
    sandwich  hidden += norm(a(norm(hidden))); hidden += norm(m(norm(hidden)))
    parallel  hidden += a(norm(hidden)) + m(norm(hidden)), the second norm being the first one where there is no other
    logits = cap(output(norm(hidden)) · logit_scale)

``a`` is attention, ``m`` the MLP; what they add to ``hidden`` is multiplied by ``residual_scale``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from hotseat.errors import ModelError

__all__ = [
    "MATRICES",
    "Activation",
    "DecoderSpec",
    "LayerSpec",
    "NormPlacement",
    "QkNorm",
    "RopeSpec",
    "layer_slots",
    "slot_shapes",
    "uniform_layers",
]

NormPlacement: TypeAlias = Literal["pre", "post", "sandwich", "parallel"]
QkNorm: TypeAlias = Literal["none", "head", "heads", "row"]
Activation: TypeAlias = Literal["silu", "gelu_tanh", "gelu_erf", "relu2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary embedding, already reduced to what a kernel needs.

    ``inverse_frequencies`` has ``head_dim / 2`` entries (radians per position), with any scaling
    (linear, llama3, YaRN, longrope) folded in; 0 for a pair of dimensions that passes through unrotated. The cosines
    and sines of rotated pairs are multiplied by ``attention_factor`` (YaRN's mscale).
    """

    inverse_frequencies: tuple[float, ...]
    attention_factor: float = 1.0
    short: tuple[float, ...] = ()  # longrope: the frequencies where no sequence exceeds ``short_length`` positions
    short_length: int = 0

    def for_length(self, max_model_len: int) -> RopeSpec:
        """Return what holds for sequences of up to ``max_model_len`` positions; cached keys depend on it."""
        if not self.short or max_model_len > self.short_length:
            return self
        return RopeSpec(inverse_frequencies=self.short, attention_factor=self.attention_factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """Properties of one layer."""

    window: int | None = None  # positions that a query sees, its own included; None: all before it
    rope: int | None = 0  # index in DecoderSpec.ropes; None: no rotary embedding (NoPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A decoder-only transformer; the defaults are those of the Llama family."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    ropes: tuple[RopeSpec, ...]
    layers: tuple[LayerSpec, ...]
    max_position_embeddings: int  # context length after rope scaling
    tie_word_embeddings: bool
    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = False
    norm_placement: NormPlacement = "pre"
    has_mlp_norm: bool = True  # False: parallel with a single norm
    # none; head: one weight for all heads; heads: one for each head; row: over all heads at once. Of the kind ``norm``.
    qk_norm: QkNorm = "none"
    qk_norm_after_rope: bool = False
    biases: frozenset[str] = frozenset()  # of MATRICES and "output"
    gated: bool = True  # activation(gate(x)) · up(x); else activation(up(x))
    activation: Activation = "silu"
    attention_scale: float | None = None  # of q · k; None: head_dim ** -0.5
    attention_softcap: float | None = None  # scores become cap · tanh(score / cap)
    logit_softcap: float | None = None
    logit_scale: float = 1.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    learned_positions: int = 0  # rows of position_embedding; 0: none
    metadata: dict[str, str] = field(default_factory=dict)  # name, licence …: for people, not for kernels

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"{self.num_heads} attention heads cannot share {self.num_kv_heads} key/value heads evenly"
            )
        if not 0 < self.norm_eps < 1:
            raise ModelError(f"the epsilon of the norms must lie between 0 and 1, not {self.norm_eps}")
        for layer in self.layers:
            assert layer.rope is None or layer.rope < len(self.ropes), f"there is no rope table {layer.rope}"

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def rope(self) -> RopeSpec:
        """Return the first rope table, the only one of most models."""
        return self.ropes[0]


# Matrices of a layer, [out_features, in_features]; q and k rows are in rotate-half order (dimension i pairs with
# i + head_dim / 2), whatever the file used.
MAX_LAYERS = 4096
MATRICES = ("q", "k", "v", "attention_output", "gate", "up", "down")


def uniform_layers(count: int, *, window: int | None = None) -> tuple[LayerSpec, ...]:
    """Return ``count`` equal layers.

    Raises:
        ModelError: more than any model has.
    """
    if count > MAX_LAYERS:
        raise ModelError(f"a model of {count} layers is not to be believed; {MAX_LAYERS} are the most")
    return (LayerSpec(window=window),) * count


def layer_slots(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Return the shapes of one layer's weights by slot."""
    hidden, head = spec.hidden_size, spec.head_dim
    q_size, kv_size = spec.num_heads * head, spec.num_kv_heads * head
    shapes: dict[str, tuple[int, ...]] = {}
    if spec.norm_placement != "post":
        shapes |= _norm("attention_norm", spec)
    shapes |= {"q": (q_size, hidden), "k": (kv_size, hidden), "v": (kv_size, hidden)}
    shapes["attention_output"] = (hidden, q_size)
    match spec.qk_norm:
        case "head":
            shapes |= {"q_norm": (head,), "k_norm": (head,)}
        case "heads":
            shapes |= {"q_norm": (spec.num_heads, head), "k_norm": (spec.num_kv_heads, head)}
        case "row":
            shapes |= {"q_norm": (q_size,), "k_norm": (kv_size,)}
    if spec.norm_placement in ("post", "sandwich"):
        shapes |= {"attention_post_norm": (hidden,), "mlp_post_norm": (hidden,)}
    if spec.norm_placement != "post" and spec.has_mlp_norm:
        shapes |= _norm("mlp_norm", spec)
    if spec.gated:
        shapes["gate"] = (spec.intermediate_size, hidden)
    shapes |= {"up": (spec.intermediate_size, hidden), "down": (hidden, spec.intermediate_size)}
    return shapes | {f"{slot}_bias": (shapes[slot][0],) for slot in MATRICES if slot in spec.biases}


def slot_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight that a model of this spec has."""
    layer = layer_slots(spec)
    shapes: dict[str, tuple[int, ...]] = {"token_embedding": (spec.vocab_size, spec.hidden_size)}
    if spec.learned_positions:
        shapes["position_embedding"] = (spec.learned_positions, spec.hidden_size)
    for i in range(spec.num_layers):
        shapes |= {f"layers.{i}.{slot}": shape for slot, shape in layer.items()}
    shapes |= _norm("output_norm", spec)
    if not spec.tie_word_embeddings:
        shapes["output"] = (spec.vocab_size, spec.hidden_size)
    if "output" in spec.biases:
        shapes["output_bias"] = (spec.vocab_size,)
    return shapes


def _norm(slot: str, spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    slots = (slot, f"{slot}_bias") if spec.norm_bias else (slot,)
    return dict.fromkeys(slots, (spec.hidden_size,))
