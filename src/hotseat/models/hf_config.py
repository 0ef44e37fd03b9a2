"""A Hugging Face config.json, checked field by field and brought to one age."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from hotseat.errors import ModelError, UnsupportedModelError
from hotseat.models.binding import Names
from hotseat.models.description import describe
from hotseat.models.families import FAMILIES, family_of
from hotseat.models.family import Family
from hotseat.models.hf_quantized import METHODS
from hotseat.models.rope import pad_rope, rope_spec
from hotseat.models.spec import RopeSpec

__all__ = ["Config", "HfFields", "check_config", "hf_family", "text_config"]

Config: TypeAlias = Mapping[str, Any]

_SCALINGS_WITH_ORIGINAL_CONTEXT = ("llama3", "yarn", "longrope")
_SAME_FIELDS = {
    "layer_norm_eps": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "rms_norm_eps": ("rms_norm_eps", "layernorm_epsilon"),
    "hidden_size": ("hidden_size", "n_embd"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "moe_k", "moe_topk"),
    "n_shared_experts": ("n_shared_experts", "moe_num_shared_experts"),
    "num_nextn_predict_layers": ("num_nextn_predict_layers", "num_mtp_layers"),
}


def text_config(config: Config) -> Config:
    """Return the part that describes the language model; what it leaves out stands at the top."""
    nested = config.get("text_config")
    if not isinstance(nested, dict):
        return config
    outer = ("architectures", "tie_word_embeddings", "eos_token_id", "bos_token_id", "quantization_config")
    return {**{key: config[key] for key in outer if key in config}, **nested}


def hf_family(config: Config) -> tuple[Family, str]:
    """Return the family and the class that a config names.

    Raises:
        UnsupportedModelError: it is none that can be run; the message lists those.
    """
    named = config.get("architectures") or [config.get("model_type")]
    architecture = named[0] if isinstance(named, list) else named
    has_experts = any(config.get(key) for key in _SAME_FIELDS["num_experts"])
    family = family_of(str(architecture), is_gguf=False, has_experts=has_experts)
    if family is None:
        supported = ", ".join(name for family in FAMILIES for name in family.hf)
        raise UnsupportedModelError(f"architecture {architecture!r} is not supported; supported are: {supported}")
    name = next((cls for cls, kind in family.hf.items() if architecture in (cls, kind)), str(architecture))
    return family, name


def check_config(config: Config) -> None:
    """Refuse what cannot be run by its config alone, before any weight is fetched."""
    config = text_config(config)
    family, _ = hf_family(config)
    fields = HfFields(config, family, Names(family, {}, is_gguf=False))
    describe(family, fields, fields.names, architecture="", vocab_size=1, ties=False, context=fields.context)


class HfFields:
    """``Fields`` of a config.json."""

    is_gguf = False

    def __init__(self, config: Config, family: Family, names: Names) -> None:
        self._config = config
        self._family = family
        self.names = names
        self.asked: set[str] = set()
        self._refuse_features()

    @property
    def context(self) -> int:
        """Return the true context length: with YaRN many configs still name the one before scaling."""
        context = self.count("max_position_embeddings", self._family.context)
        parameters = self._rope_parameters("full_attention", context)
        for key in ("factor", "original_max_position_embeddings"):
            value = parameters.get(key, 1)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
                raise ModelError(f"config.json: rope scaling needs a positive number as {key!r}, not {value!r}")
        if parameters["rope_type"] == "yarn":
            return max(context, int(parameters["factor"] * parameters["original_max_position_embeddings"]))
        return context

    def rotary_dim(self, head_dim: int) -> int:
        """Return how many dimensions of a head are rotated."""
        given = self._given_rope("full_attention") or {}
        part = given.get("partial_rotary_factor", self._config.get("partial_rotary_factor"))
        if part is None and type(size := self._config.get("rotary_dim")) is int:
            part = size / head_dim
        if part is None:
            part = self._config.get("rotary_pct", self._family.partial)
        if isinstance(part, bool) or not isinstance(part, int | float) or not 0 < part <= 1:
            raise ModelError(f"config.json: partial_rotary_factor must lie between 0 and 1, not {part!r}")
        return int(head_dim * part) // 2 * 2

    def count(self, key: str, default: int | None = None) -> int:
        value = self._value(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or value < 1:
            raise ModelError(f"config.json: {key} must be a positive whole number, not {value!r}")
        return value

    def number(self, key: str, default: float) -> float:
        self.asked.add(key)
        value = self._value(key)
        if key == "sliding_window" and key in self._config and value is None:
            return 0.0
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ModelError(f"config.json: {key} must be a positive number, not {value!r}")
        return float(value)

    def optional(self, key: str) -> Any:
        self.asked.add(key)
        return self._config if key == "*" else self._value(key)

    def _value(self, key: str) -> Any:
        return next((v for name in _SAME_FIELDS.get(key, (key,)) if (v := self._config.get(name)) is not None), None)

    def has(self, slot: str) -> bool:
        return self.names.has(slot)

    def layer_types(self) -> Sequence[str] | None:
        kinds = self._config.get("layer_types")
        if kinds is None:
            return None
        known = ("full_attention", "sliding_attention", "attention")
        if not isinstance(kinds, list) or any(kind not in known for kind in kinds):
            raise UnsupportedModelError(f"layers other than full and sliding attention: layer_types {kinds!r}")
        if len(kinds) != self.count("num_hidden_layers"):
            raise ModelError(
                f"config.json: layer_types has {len(kinds)} entries for {self.count('num_hidden_layers')} layers"
            )
        return kinds

    def rope(self, head_dim: int, *, theta: float, kind: str = "full_attention", scaled: bool = True) -> RopeSpec:
        context = self.count("max_position_embeddings", self._family.context)
        parameters = self._rope_parameters(kind, context)
        if not scaled and not self._is_nested():
            own = self._config.get("rope_local_base_freq") if theta == 1e4 else parameters.get("rope_theta")
            parameters = {"rope_type": "default", "rope_theta": own}
        own = parameters.get("rope_theta")
        base = self.number("rope_theta", theta) if own is None else own
        if not scaled and own is None and not self._is_nested() and theta == 1e4:
            base = theta  # Gemma 3: the top-level theta is that of full layers
        rotary = self.rotary_dim(head_dim)
        if parameters["rope_type"] == "dynamic" and parameters.get("alpha"):
            base = base * parameters["alpha"] ** (head_dim / (head_dim - 2))
            parameters = {"rope_type": "default"}
        if isinstance(base, bool) or not isinstance(base, int | float):
            raise ModelError(f"config.json: rope_theta must be a positive number, not {base!r}")
        if parameters["rope_type"] == "longrope":
            return pad_rope(_longrope(parameters, rotary, base), head_dim, rotary)
        return pad_rope(rope_spec(parameters, head_dim=rotary, theta=base), head_dim, rotary)

    def _is_nested(self) -> bool:
        given = self._config.get("rope_parameters") or self._config.get("rope_scaling") or {}
        return isinstance(given, dict) and any(isinstance(value, dict) for value in given.values())

    def _given_rope(self, kind: str) -> dict[str, Any] | None:
        given = self._config.get("rope_parameters") or self._config.get("rope_scaling") or {}
        if not isinstance(given, dict):
            raise UnsupportedModelError(f"rope parameters {given!r} are not supported")
        if self._is_nested():
            given = given.get(kind) or {}
        return given

    def _rope_parameters(self, kind: str, context: int) -> dict[str, Any]:
        """Return rope parameters as new configs write them, whatever the config's age."""
        given = self._given_rope(kind) or {}
        parameters = dict(given)
        rope_type = given.get("rope_type") or given.get("type") or "default"
        parameters["rope_type"] = "longrope" if rope_type == "su" else rope_type
        if given.get("mrope_section"):
            raise UnsupportedModelError("multimodal rope (mrope_section) is not supported")
        if parameters["rope_type"] in _SCALINGS_WITH_ORIGINAL_CONTEXT:
            own = self._config.get("original_max_position_embeddings")
            original = own or given.get("original_max_position_embeddings") or context
            parameters["original_max_position_embeddings"] = original
            if given.get("factor") is None and isinstance(original, int | float) and original > 0:
                parameters["factor"] = context / original
        return parameters

    def _refuse_features(self) -> None:
        config = self._config
        if (quantization := config.get("quantization_config")) is not None:
            method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
            if not isinstance(quantization, dict) or method not in METHODS:
                raise UnsupportedModelError(
                    f"weights quantised by {method!r} are not supported; supported in safetensors: F32, F16, BF16, and "
                    f"the methods {', '.join(METHODS)}"
                )
        if config.get("use_bidirectional_attention"):
            raise UnsupportedModelError("attention that is not causal (use_bidirectional_attention) is not supported")


def _longrope(parameters: Mapping[str, Any], rotary_dim: int, theta: float) -> RopeSpec:
    """Return the long frequencies, and the short ones for contexts up to the original one.

    The attention factor is sqrt(1 + ln(scale) / ln(original context)) (LongRoPE, arXiv:2402.13753).
    """
    scale, original = float(parameters["factor"]), int(parameters["original_max_position_embeddings"])
    factor = parameters.get("attention_factor")
    if factor is None:
        factor = 1.0 if scale <= 1 else math.sqrt(1 + math.log(scale) / math.log(original))
    plain = {"rope_type": "default", "attention_factor": factor}
    long, short = (
        rope_spec(plain, head_dim=rotary_dim, theta=theta, factors=_divisors(parameters, name, rotary_dim))
        for name in ("long_factor", "short_factor")
    )
    return replace(long, short=short.inverse_frequencies, short_length=original)


def _divisors(parameters: Mapping[str, Any], name: str, rotary_dim: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    values = parameters.get(name)
    numbers = values if isinstance(values, list) else []
    is_right = all(isinstance(value, int | float) and not isinstance(value, bool) for value in numbers)
    if not is_right or len(numbers) != rotary_dim // 2:
        raise ModelError(f"rope scaling 'longrope' needs {rotary_dim // 2} numbers as {name!r}, not {values!r:.80}")
    return np.array(numbers, np.float32)
