"""The description of a decoder-only transformer, as data.

    hidden = embedding[token] · embedding_scale  (+ position_embedding[position])
    pre       hidden += a(norm(hidden)); hidden += m(norm(hidden))
    post      hidden += norm(a(hidden)); hidden += norm(m(hidden))
    sandwich  hidden += norm(a(norm(hidden))); hidden += norm(m(norm(hidden)))
    parallel  hidden += a(norm(hidden)) + m(norm(hidden)), the second norm being the first one where there is no other
    logits = cap(output(norm(hidden)) · logit_scale)

``a`` is attention, ``m`` the MLP or a mixture of experts; what they add to ``hidden`` is multiplied by
``residual_scale``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from hotseat.errors import ModelError

__all__ = [
    "MATRICES",
    "Activation",
    "DecoderSpec",
    "ExpertsSpec",
    "LayerSpec",
    "NormPlacement",
    "QkNorm",
    "RopeSpec",
    "is_matrix",
    "layer_slots",
    "slot_shapes",
    "uniform_layers",
]

NormPlacement: TypeAlias = Literal["pre", "post", "sandwich", "parallel"]
QkNorm: TypeAlias = Literal["none", "head", "heads", "row"]
Activation: TypeAlias = Literal["silu", "gelu_tanh", "gelu_erf", "relu2", "swiglu_oai"]


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
class ExpertsSpec:
    """A mixture of experts (Shazeer et al., arXiv:1701.06538), each of them an MLP.

        score = softmax or sigmoid (router · x), in float32 whatever the weights are multiplied in
        chosen = the ``per_token`` of the highest score (+ selection_bias), of equal ones the first
        weight = score · scale, divided by the sum of the chosen scores where they are renormalized
        m(x) = Σ weight · expert(x), in the order of the experts, + shared expert(x) · sigmoid(shared_router · x)

    With groups, the experts lie in ``num_groups`` groups of equal size, and those of the ``groups_per_token`` groups
    whose two highest scores sum to the most can be chosen (DeepSeek-V3, arXiv:2412.19437).
    """

    count: int
    per_token: int
    intermediate_size: int
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = True
    scale: float = 1.0
    num_groups: int = 1
    groups_per_token: int = 1
    has_router_bias: bool = False  # part of the score
    has_selection_bias: bool = False  # for choosing only
    has_biases: bool = False  # gate_bias, up_bias and down_bias of each expert
    shared_intermediate_size: int = 0  # 0: no shared expert
    has_shared_router: bool = False  # False: the shared expert counts in full

    def __post_init__(self) -> None:
        if not 1 <= self.per_token <= self.count <= MAX_EXPERTS:
            raise ModelError(
                f"{self.per_token} of {self.count} experts cannot be chosen for a token (at most {MAX_EXPERTS} exist)"
            )
        size = self.count // self.num_groups
        is_even = size * self.num_groups == self.count and (self.num_groups == 1 or size >= 2)
        if not is_even or not self.per_token <= self.groups_per_token * size <= self.count:
            raise ModelError(
                f"{self.per_token} of {self.count} experts cannot be chosen out of {self.groups_per_token} of "
                f"{self.num_groups} groups"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """Properties of one layer."""

    window: int | None = None  # positions that a query sees, its own included; None: all before it
    rope: int | None = 0  # index in DecoderSpec.ropes; None: no rotary embedding (NoPE)
    has_experts: bool = False  # instead of an MLP


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
    has_sinks: bool = False  # per head one more score in the softmax, without a value (arXiv:2309.17453)
    attention_softcap: float | None = None  # scores become cap · tanh(score / cap)
    logit_softcap: float | None = None
    logit_scale: float = 1.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    learned_positions: int = 0  # rows of position_embedding; 0: none
    experts: ExpertsSpec | None = None  # of the layers that have experts
    metadata: dict[str, str] = field(default_factory=dict)  # name, licence …: for people, not for kernels

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"{self.num_heads} attention heads cannot share {self.num_kv_heads} key/value heads evenly"
            )
        if not 0 < self.norm_eps < 1:
            raise ModelError(f"the epsilon of the norms must lie between 0 and 1, not {self.norm_eps}")
        if self.experts is not None and self.experts.count * len(self.layers) > MAX_EXPERTS_IN_ALL:
            raise ModelError(
                f"{self.experts.count} experts in {len(self.layers)} layers are not to be believed; "
                f"{MAX_EXPERTS_IN_ALL} in all are the most"
            )
        for layer in self.layers:
            assert layer.rope is None or layer.rope < len(self.ropes), f"there is no rope table {layer.rope}"
            assert self.experts is not None or not layer.has_experts, "there is no description of the experts"

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
MAX_EXPERTS = 4096
MAX_EXPERTS_IN_ALL = 1 << 17
MATRICES = ("q", "k", "v", "attention_output", "gate", "up", "down")
_SHARED = ("shared_gate", "shared_up", "shared_down")


def is_matrix(slot: str) -> bool:
    """Tell whether a slot of a layer is multiplied in the mode of the runner; a router is not: it stays float32."""
    return slot.rpartition(".")[2] in MATRICES + _SHARED


def uniform_layers(count: int, *, window: int | None = None) -> tuple[LayerSpec, ...]:
    """Return ``count`` equal layers.

    Raises:
        ModelError: more than any model has.
    """
    if count > MAX_LAYERS:
        raise ModelError(f"a model of {count} layers is not to be believed; {MAX_LAYERS} are the most")
    return (LayerSpec(window=window),) * count


def layer_slots(spec: DecoderSpec, index: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a layer's weights by slot; those of expert 3 are called ``experts.3.gate`` and so on."""
    hidden, head = spec.hidden_size, spec.head_dim
    q_size, kv_size = spec.num_heads * head, spec.num_kv_heads * head
    shapes: dict[str, tuple[int, ...]] = {}
    if spec.norm_placement != "post":
        shapes |= _norm("attention_norm", spec)
    shapes |= {"q": (q_size, hidden), "k": (kv_size, hidden), "v": (kv_size, hidden)}
    shapes["attention_output"] = (hidden, q_size)
    if spec.has_sinks:
        shapes["sinks"] = (spec.num_heads,)
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
    experts = spec.experts if spec.layers[index].has_experts else None
    shapes |= _mlp("", spec, spec.intermediate_size) if experts is None else _experts(spec, experts)
    return shapes | {f"{slot}_bias": (shapes[slot][0],) for slot in MATRICES if slot in spec.biases and slot in shapes}


def _mlp(prefix: str, spec: DecoderSpec, size: int) -> dict[str, tuple[int, ...]]:
    hidden = spec.hidden_size
    gate = {f"{prefix}gate": (size, hidden)} if spec.gated else {}
    return {**gate, f"{prefix}up": (size, hidden), f"{prefix}down": (hidden, size)}


def _experts(spec: DecoderSpec, experts: ExpertsSpec) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"router": (experts.count, spec.hidden_size)}
    if experts.has_router_bias:
        shapes["router_bias"] = (experts.count,)
    if experts.has_selection_bias:
        shapes["selection_bias"] = (experts.count,)
    for expert in range(experts.count):
        own = _mlp(f"experts.{expert}.", spec, experts.intermediate_size)
        shapes |= own | ({f"{slot}_bias": shape[:1] for slot, shape in own.items()} if experts.has_biases else {})
    if experts.shared_intermediate_size:
        shapes |= _mlp("shared_", spec, experts.shared_intermediate_size)
    if experts.has_shared_router:
        shapes["shared_router"] = (spec.hidden_size,)
    return shapes


def slot_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight that a model of this spec has."""
    shapes: dict[str, tuple[int, ...]] = {"token_embedding": (spec.vocab_size, spec.hidden_size)}
    if spec.learned_positions:
        shapes["position_embedding"] = (spec.learned_positions, spec.hidden_size)
    for i in range(spec.num_layers):
        shapes |= {f"layers.{i}.{slot}": shape for slot, shape in layer_slots(spec, i).items()}
    shapes |= _norm("output_norm", spec)
    if not spec.tie_word_embeddings:
        shapes["output"] = (spec.vocab_size, spec.hidden_size)
    if "output" in spec.biases:
        shapes["output_bias"] = (spec.vocab_size,)
    return shapes


def _norm(slot: str, spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    slots = (slot, f"{slot}_bias") if spec.norm_bias else (slot,)
    return dict.fromkeys(slots, (spec.hidden_size,))
