"""The metadata of a GGUF file, asked by the names of Hugging Face's config.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hotseat.errors import ModelError, UnsupportedModelError
from hotseat.models.binding import Names
from hotseat.models.family import Family
from hotseat.models.gguf import GgufFile, MetadataValue
from hotseat.models.rope import pad_rope, rope_spec
from hotseat.models.spec import RopeSpec

__all__ = ["GgufFields"]

_KEYS = {
    "hidden_size": "embedding_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "sliding_window": "attention.sliding_window",
    "sliding_window_pattern": "attention.sliding_window_pattern",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logit_scale": "logit_scale",
    "use_parallel_residual": "use_parallel_residual",
    "rope_finetuned": "rope.scaling.finetuned",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "norm_topk_prob": "expert_weights_norm",
    "routed_scaling_factor": "expert_weights_scale",
    "scoring_func": "expert_gating_func",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "moe_layer_start_index": "leading_dense_block_count",
    "moe_layer_interval": "interleave_moe_layer_step",
    "num_nextn_predict_layers": "nextn_predict_layers",
}
# Keys that change the arithmetic when they are there and not zero.
_UNSUPPORTED_FEATURES = (
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.temperature_length",
    "attention.temperature_scale",
)


class GgufFields:
    """``Fields`` of a GGUF file; each value is checked for its type."""

    is_gguf = True

    def __init__(self, file: GgufFile, family: Family, names: Names) -> None:
        self._file = file
        self._prefix = str(family.gguf)
        self._names = names
        self.asked: set[str] = set()
        for key in _UNSUPPORTED_FEATURES:
            if self._number(key, 0):
                raise UnsupportedModelError(f"{key} ({self._value(key)}) is not supported")
        if self._value("attention.causal") is False:
            raise UnsupportedModelError("attention that is not causal is not supported")

    @property
    def context(self) -> int:
        """Return the context length."""
        return self.count("max_position_embeddings")

    def rotary_dim(self, head_dim: int) -> int:
        """Return how many dimensions of a head are rotated."""
        if (size := self._count("attention.value_length", head_dim)) != head_dim:
            raise UnsupportedModelError(
                f"attention.value_length {size} that differs from the head size {head_dim} is not supported"
            )
        rotary = self._count("rope.dimension_count", head_dim)
        if rotary > head_dim or rotary % 2:
            raise ModelError(f"rope.dimension_count must be an even number up to {head_dim}, not {rotary}")
        return rotary

    def count(self, key: str, default: int | None = None) -> int:
        count = self._count(_KEYS[key], default)
        if key == "num_hidden_layers":  # those that guess further tokens are counted too
            count -= int(self._number("nextn_predict_layers", 0))
        return count

    def number(self, key: str, default: float) -> float:
        self.asked.add(key)
        name = _KEYS.get(key)
        is_epsilon = name is not None and name.endswith("epsilon")
        if is_epsilon and self._value(str(name)) is None:  # what a config may leave out, a GGUF file must say
            raise ModelError(f"{self._prefix}.{name} is missing")
        value = default if name is None else self._number(name, default)
        if is_epsilon and not 0 < value < 1:
            raise ModelError(f"{name} must lie between 0 and 1, not {value}")
        return value

    def optional(self, key: str) -> Any:
        self.asked.add(key)
        return self._value(_KEYS[key]) if key in _KEYS else None

    def has(self, slot: str) -> bool:
        return self._names.has(slot)

    def layer_types(self) -> Sequence[str] | None:
        pattern = self._file.metadata.get(f"{self._prefix}.attention.sliding_window_pattern")
        if not isinstance(pattern, np.ndarray) or len(pattern) != self.count("num_hidden_layers"):
            return None
        return ["sliding_attention" if slides else "full_attention" for slides in pattern.tolist()]

    def rope(self, head_dim: int, *, theta: float, kind: str = "full_attention", scaled: bool = True) -> RopeSpec:
        rotary = self.rotary_dim(head_dim)
        base = self._number("rope.freq_base", theta)
        if kind == "sliding_attention":
            # Gemma 3 has a base of its own there, and older files do not name it; in others it is the same.
            base = self._number("rope.freq_base_swa", theta if self._prefix == "gemma3" else base)
        parameters = self._scaling() if scaled else {"rope_type": "default"}
        factors = None
        for name in ("rope_freqs.weight", "rope_factors_long.weight") if scaled else ():
            factors = self._factors(name, rotary) if factors is None else factors
        rope = rope_spec(parameters, head_dim=rotary, theta=base, factors=factors)
        if scaled:
            extra = self._number("rope.scaling.attn_factor", 1)
            rope = replace(rope, attention_factor=rope.attention_factor * extra)
            if (factors := self._factors("rope_factors_short.weight", rotary)) is not None:
                short = rope_spec(parameters, head_dim=rotary, theta=base, factors=factors).inverse_frequencies
                length = self._count("rope.scaling.original_context_length", self.context)
                rope = replace(rope, short=short, short_length=length)
        return pad_rope(rope, head_dim, rotary)

    def _scaling(self) -> dict[str, Any]:
        factor = self._number("rope.scaling.factor", self._number("rope.scale_linear", 0)) or 1.0
        rope_type = self._text("rope.scaling.type") or ("linear" if factor != 1 else "none")
        if rope_type == "yarn" and self._number("rope.scaling.yarn_ext_factor", 1) != 1:
            raise UnsupportedModelError("a yarn_ext_factor other than 1 is not supported")
        if rope_type == "longrope" and "rope_factors_short.weight" not in self._file.tensors:
            raise UnsupportedModelError("rope scaling 'longrope' without a tensor rope_factors_short is not supported")
        if rope_type in ("none", "longrope"):  # the factors of longrope are a tensor
            return {"rope_type": "default"}
        parameters: dict[str, Any] = {"rope_type": rope_type, "factor": factor}
        if rope_type == "yarn":
            context = self._count("rope.scaling.original_context_length", self.count("max_position_embeddings"))
            parameters |= {
                "original_max_position_embeddings": context,
                "beta_fast": self._number("rope.scaling.yarn_beta_fast", 32),
                "beta_slow": self._number("rope.scaling.yarn_beta_slow", 1),
            }
        return parameters

    def _factors(self, name: str, rotary_dim: int) -> np.ndarray | None:
        tensor = self._file.tensors.get(name)
        if tensor is None:
            return None
        if tensor.kind != "F32" or tensor.shape != (rotary_dim // 2,):
            raise ModelError(f"tensor {name} must be F32 [{rotary_dim // 2}], not {tensor.kind} {list(tensor.shape)}")
        return self._file.weight(name).dequantize()

    def _value(self, key: str) -> MetadataValue | None:
        value = self._file.metadata.get(f"{self._prefix}.{key}")
        if isinstance(value, np.ndarray) and len(value) and (value == value[0]).all():
            first: MetadataValue = value[0].item()
            return first  # one value a layer, all the same
        return value

    def _count(self, key: str, default: int | None = None) -> int:
        value = self._value(key)
        if value is None and default is not None:
            return default
        if isinstance(value, np.ndarray):
            raise UnsupportedModelError(f"{self._prefix}.{key} differs from layer to layer, which is not supported")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelError(f"metadata {self._prefix}.{key} must be a positive whole number, not {value!r}")
        return value

    def _text(self, key: str) -> str | None:
        value = self._value(key)
        if value is not None and not isinstance(value, str):
            raise ModelError(f"metadata {self._prefix}.{key} must be a string, not {value!r}")
        return value

    def _number(self, key: str, default: float) -> float:
        value = self._value(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"metadata {self._prefix}.{key} must be a number, not {value!r}")
        return float(value)
