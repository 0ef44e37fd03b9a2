"""Map a Hugging Face config of the Llama family to a ``DecoderSpec``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from hotseat.errors import ModelError, UnsupportedModelError
from hotseat.models.rope import rope_spec
from hotseat.models.spec import DecoderSpec, RopeSpec, uniform_layers

__all__ = ["HF_ARCHITECTURES", "HF_IGNORED_TENSORS", "HF_TENSOR_NAMES", "spec_from_config"]

Config: TypeAlias = Mapping[str, Any]

HF_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
HF_TENSOR_NAMES = {
    "token_embedding": "model.embed_tokens.weight",
    "output_norm": "model.norm.weight",
    "output": "lm_head.weight",
    "attention_norm": "model.layers.{i}.input_layernorm.weight",
    "q": "model.layers.{i}.self_attn.q_proj.weight",
    "k": "model.layers.{i}.self_attn.k_proj.weight",
    "v": "model.layers.{i}.self_attn.v_proj.weight",
    "attention_output": "model.layers.{i}.self_attn.o_proj.weight",
    "mlp_norm": "model.layers.{i}.post_attention_layernorm.weight",
    "gate": "model.layers.{i}.mlp.gate_proj.weight",
    "up": "model.layers.{i}.mlp.up_proj.weight",
    "down": "model.layers.{i}.mlp.down_proj.weight",
}
HF_IGNORED_TENSORS = r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"

_ARCHITECTURE_OF_TYPE = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}
# What transformers assumes when the config does not say.
_DEFAULT_CONTEXT = {"LlamaForCausalLM": 2048, "MistralForCausalLM": 4096 * 32}
_DEFAULT_KV_HEADS = {"MistralForCausalLM": 8}  # Llama: as many as there are heads
_SCALINGS_WITH_ORIGINAL_CONTEXT = ("llama3", "yarn")


def spec_from_config(config: Config) -> DecoderSpec:
    """Return the spec that ``config.json`` describes; what is not supported is refused by name."""
    architecture = _architecture(config)
    hidden_size, num_heads = _count(config, "hidden_size"), _count(config, "num_attention_heads")
    num_kv_heads = _count(config, "num_key_value_heads", _DEFAULT_KV_HEADS.get(architecture, num_heads))
    head_dim = _count(config, "head_dim", hidden_size // num_heads)
    context = _count(config, "max_position_embeddings", _DEFAULT_CONTEXT[architecture])
    _refuse_features(config, context)
    if num_heads % num_kv_heads:
        raise ModelError(f"{num_heads} attention heads cannot share {num_kv_heads} key/value heads evenly")
    parameters = _rope_parameters(config, context)
    return DecoderSpec(
        architecture=architecture,
        vocab_size=_count(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_count(config, "intermediate_size"),
        layers=uniform_layers(_count(config, "num_hidden_layers")),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=_number(config, "rms_norm_eps", 1e-6),
        ropes=(_rope(config, parameters, head_dim),),
        max_position_embeddings=_scaled_context(parameters, context),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


def _architecture(config: Config) -> str:
    named = config.get("architectures") or [_ARCHITECTURE_OF_TYPE.get(str(config.get("model_type")))]
    architecture = named[0] if isinstance(named, list) else named
    if architecture not in HF_ARCHITECTURES:
        shown = architecture or config.get("model_type")
        raise UnsupportedModelError(
            f"architecture {shown!r} is not supported; supported are: {', '.join(HF_ARCHITECTURES)}"
        )
    return str(architecture)


def _count(config: Config, key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if type(value) is not int or value < 1:
        raise ModelError(f"config.json: {key} must be a positive whole number, not {value!r}")
    return value


def _number(config: Config, key: str, default: float) -> float:
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ModelError(f"config.json: {key} must be a positive number, not {value!r}")
    return value


def _refuse_features(config: Config, context: int) -> None:
    if (quantization := config.get("quantization_config")) is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise UnsupportedModelError(
            f"weights quantised by {method!r} are not supported; supported in safetensors: F32, F16, BF16"
        )
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise UnsupportedModelError(f"{key} is not supported")
    if (activation := config.get("hidden_act", "silu")) not in ("silu", "swish"):
        raise UnsupportedModelError(f"the activation {activation!r} is not supported; supported is: silu")
    window = config.get("sliding_window")
    if window is not None and config.get("use_sliding_window", True) and _count(config, "sliding_window") < context:
        raise UnsupportedModelError(f"sliding-window attention (a window of {window}) is not supported")
    layer_types = config.get("layer_types") or []
    if not isinstance(layer_types, list) or any(kind != "full_attention" for kind in layer_types):
        raise UnsupportedModelError(f"layers other than full attention are not supported: layer_types {layer_types!r}")


def _rope_parameters(config: Config, context: int) -> dict[str, Any]:
    """Return rope parameters as new configs write them, whatever the config's age."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, dict) or any(isinstance(value, dict) for value in given.values()):
        raise UnsupportedModelError("rope parameters that differ from layer to layer are not supported")
    parameters = dict(given)
    parameters["rope_type"] = given.get("rope_type") or given.get("type") or "default"
    if given.get("mrope_section"):
        raise UnsupportedModelError("multimodal rope (mrope_section) is not supported")
    partial = given.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise UnsupportedModelError(f"a partial_rotary_factor of {partial} is not supported")
    if parameters["rope_type"] in _SCALINGS_WITH_ORIGINAL_CONTEXT:
        own = config.get("original_max_position_embeddings")
        original = own or given.get("original_max_position_embeddings") or context
        parameters["original_max_position_embeddings"] = original
        if parameters["rope_type"] == "yarn" and given.get("factor") is None:
            parameters["factor"] = context / original
    return parameters


def _rope(config: Config, parameters: Mapping[str, Any], head_dim: int) -> RopeSpec:
    own = parameters.get("rope_theta")
    theta = _number(config, "rope_theta", 10000.0) if own is None else _number(parameters, "rope_theta", 10000.0)
    return rope_spec(parameters, head_dim=head_dim, theta=theta)


def _scaled_context(parameters: Mapping[str, Any], context: int) -> int:
    """Return the true context length: with YaRN many configs still name the one before scaling."""
    if parameters["rope_type"] != "yarn":
        return context
    return max(context, int(parameters["factor"] * parameters["original_max_position_embeddings"]))
