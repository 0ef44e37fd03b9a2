"""The ``DecoderSpec`` of a family, from its configuration."""

from __future__ import annotations

from hotseat.errors import UnsupportedModelError
from hotseat.models.binding import Names, biased_slots
from hotseat.models.family import Family
from hotseat.models.family_options import Fields
from hotseat.models.spec import DecoderSpec, uniform_layers

__all__ = ["describe"]

_ARITHMETIC = {
    *("attn_logit_softcapping", "final_logit_softcapping", "attention_multiplier", "embedding_multiplier"),
    *("residual_multiplier", "logit_scale", "logits_scaling", "clip_qkv"),
}
# How configs call them; Gemma 1 says gelu and means the tanh form.
_ACTIVATIONS = {
    "silu": ("silu", "swish"),
    "gelu_tanh": ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu"),
    "gelu_erf": ("gelu",),
    "relu2": ("relu2",),
    "swiglu_oai": ("silu",),
}


def describe(
    family: Family, fields: Fields, names: Names, *, architecture: str, vocab_size: int, ties: bool, context: int
) -> DecoderSpec:
    """Return the spec; ``fields`` and the presence of tensors say what the family leaves open."""
    hidden_size, num_heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_dim = fields.count("head_dim", family.head_dim or hidden_size // num_heads)
    num_layers = fields.count("num_hidden_layers")
    uniform_layers(num_layers)  # refuses an absurd number before anything is built
    options = family.options(fields, num_layers, head_dim)
    eps_key = "layer_norm_eps" if options.get("norm") == "layer" else "rms_norm_eps"
    base = {
        "architecture": architecture,
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        # Of no meaning, and missing in some files, where every layer has experts.
        "intermediate_size": options.get("intermediate_size")
        or fields.count("intermediate_size", 1 if family.has_experts else None),
        "num_heads": num_heads,
        "num_kv_heads": fields.count("num_key_value_heads", family.kv_heads or num_heads),
        "head_dim": head_dim,
        "norm_eps": fields.number(eps_key, family.eps),
        "max_position_embeddings": context,
        "tie_word_embeddings": ties,
        "layers": uniform_layers(num_layers),
        "biases": frozenset(biased_slots(names)),
    }
    if "ropes" not in options:
        options["ropes"] = (fields.rope(head_dim, theta=family.theta),)
    spec = DecoderSpec(**{**base, **options})
    _refuse_unused(fields, spec)
    return spec


def _refuse_unused(fields: Fields, spec: DecoderSpec) -> None:
    """Refuse what changes the arithmetic and is no part of the family: it must not be ignored."""
    if spec.experts is None and (count := fields.number("num_experts", 0)):
        raise UnsupportedModelError(f"mixtures of experts ({count:.0f}) are not supported in {spec.architecture}")
    for key in sorted(_ARITHMETIC - fields.asked):
        value = fields.optional(key)
        if isinstance(value, int | float) and value not in (0, 1):
            raise UnsupportedModelError(f"{key} ({value}) is not supported in {spec.architecture}")
    if "sliding_attention" in (fields.layer_types() or ()) and not any(layer.window for layer in spec.layers):
        raise UnsupportedModelError(f"layers of sliding-window attention are not supported in {spec.architecture}")
    window = fields.optional("sliding_window") if "sliding_window" not in fields.asked else None
    uses_window = fields.optional("use_sliding_window") is not False
    if isinstance(window, int) and 0 < window < spec.max_position_embeddings and uses_window:
        raise UnsupportedModelError(f"sliding-window attention (a window of {window}) is not supported here")
    for key in ("hidden_activation", "hidden_act"):
        activation = fields.optional(key)
        if activation is not None and activation not in _ACTIVATIONS[spec.activation]:
            raise UnsupportedModelError(
                f"the activation {activation!r} is not supported in {spec.architecture}, whose is {spec.activation}"
            )
