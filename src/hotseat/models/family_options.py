"""The ways in which each family of decoders differs from Llama, read from a model's configuration.

Each function returns keyword arguments of ``DecoderSpec``. ``fields`` answers by the names of config.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from hotseat.errors import UnsupportedModelError
from hotseat.models.spec import LayerSpec, RopeSpec

__all__ = ["Fields", "Options"]

Options: TypeAlias = dict[str, Any]  # keyword arguments of DecoderSpec


class Fields(Protocol):
    """A model's configuration, by the names of Hugging Face's config.json."""

    is_gguf: bool
    asked: set[str]  # the names that were asked for by ``number`` and ``optional``

    def count(self, key: str, default: int | None = None) -> int:
        """Return a positive whole number."""
        ...

    def number(self, key: str, default: float) -> float:
        """Return a number, ``default`` where it is absent or null."""
        ...

    def optional(self, key: str) -> Any:
        """Return a value as it is, ``None`` where it is absent."""
        ...

    def has(self, slot: str) -> bool:
        """Tell whether the first layer has a tensor for ``slot``."""
        ...

    def layer_types(self) -> Sequence[str] | None:
        """Return the kinds of the layers where the file lists them."""
        ...

    def rope(self, head_dim: int, *, theta: float, kind: str = "full_attention", scaled: bool = True) -> RopeSpec:
        """Return the rotary embedding of a kind of layer; ``theta`` is the default."""
        ...


def sliding_layers(
    fields: Fields,
    num_layers: int,
    window: int | None,
    is_sliding: Callable[[int], bool],
    *,
    sliding_rope: int | None = 0,
) -> tuple[LayerSpec, ...]:
    """Return layers of which some see a window: as the file lists them, else by ``is_sliding``."""
    kinds = fields.layer_types()
    layers = []
    for i in range(num_layers):
        sees_window = kinds[i] == "sliding_attention" if kinds else is_sliding(i)
        sees_window &= window is not None
        layers.append(LayerSpec(window=window if sees_window else None, rope=sliding_rope if sees_window else 0))
    return tuple(layers)


def window_of(fields: Fields, default: int | None) -> int | None:
    """Return the window; absent means ``default``, null or 0 none."""
    value = fields.optional("sliding_window") if default is None else fields.number("sliding_window", default)
    return int(value) if value else None


def _period(fields: Fields, default: int) -> int:
    value = fields.optional("sliding_window_pattern") or fields.optional("_sliding_window_pattern")
    return value if isinstance(value, int) and value > 0 else default


def _every(period: int) -> Callable[[int], bool]:
    """Tell whether a layer slides where the last one of each period does not."""
    return lambda i: (i + 1) % period != 0


def qk_norm_heads(fields: Fields, num_layers: int, head_dim: int) -> Options:
    return {"qk_norm": "head"}


def mistral(fields: Fields, num_layers: int, head_dim: int) -> Options:
    # Absent in an old config means 4096, null means none; a GGUF file has no window at all.
    window = window_of(fields, None if fields.is_gguf or "sliding_window" in fields.optional("*") else 4096)
    return {"layers": sliding_layers(fields, num_layers, window, lambda i: True)}


def qwen2(fields: Fields, num_layers: int, head_dim: int) -> Options:
    window = window_of(fields, None) if fields.optional("use_sliding_window") else None
    first = fields.optional("max_window_layers") or 0
    return {"layers": sliding_layers(fields, num_layers, window, lambda i: i >= first)}


def qwen3(fields: Fields, num_layers: int, head_dim: int) -> Options:
    return qwen2(fields, num_layers, head_dim) | {"qk_norm": "head"}


def gemma(fields: Fields, num_layers: int, head_dim: int) -> Options:
    return {"activation": "gelu_tanh", "embedding_scale": math.sqrt(fields.count("hidden_size"))}


def _gemma_scale(fields: Fields, head_dim: int) -> float:
    # GGUF has no key: its 27B models are known by their number of layers.
    if fields.is_gguf and fields.count("num_hidden_layers") in (46, 62):
        return math.sqrt(fields.count("num_attention_heads") / fields.count("hidden_size"))
    return 1 / math.sqrt(fields.number("query_pre_attn_scalar", head_dim))


def gemma2(fields: Fields, num_layers: int, head_dim: int) -> Options:
    return gemma(fields, num_layers, head_dim) | {
        "norm_placement": "sandwich",
        "attention_scale": _gemma_scale(fields, head_dim),
        "attention_softcap": fields.number("attn_logit_softcapping", 50.0) or None,
        "logit_softcap": fields.number("final_logit_softcapping", 30.0) or None,
        "layers": sliding_layers(fields, num_layers, window_of(fields, 4096), lambda i: i % 2 == 0),
    }


def gemma3(fields: Fields, num_layers: int, head_dim: int) -> Options:
    full = fields.rope(head_dim, theta=1e6)
    sliding = fields.rope(head_dim, theta=1e4, kind="sliding_attention", scaled=False)
    window = window_of(fields, 1024 if not fields.is_gguf else 512)
    return gemma(fields, num_layers, head_dim) | {
        "norm_placement": "sandwich",
        "qk_norm": "head",
        "attention_scale": _gemma_scale(fields, head_dim),
        "attention_softcap": fields.number("attn_logit_softcapping", 0.0) or None,
        "logit_softcap": fields.number("final_logit_softcapping", 0.0) or None,
        "ropes": (full, sliding),
        "layers": sliding_layers(fields, num_layers, window, _every(_period(fields, 6)), sliding_rope=1),
    }


def phi3(fields: Fields, num_layers: int, head_dim: int) -> Options:
    window = None if fields.is_gguf else window_of(fields, None)  # llama.cpp ignores it
    return {"layers": sliding_layers(fields, num_layers, window, lambda i: True)}


def olmo2(fields: Fields, num_layers: int, head_dim: int) -> Options:
    window = window_of(fields, None)
    full = fields.rope(head_dim, theta=5e5)
    options: Options = {"norm_placement": "post", "qk_norm": "row"}
    if window is None:
        return options | {"ropes": (full,)}
    sliding = fields.rope(head_dim, theta=5e5, kind="sliding_attention", scaled=False)
    return options | {
        "ropes": (full, sliding),
        "layers": sliding_layers(fields, num_layers, window, _every(4), sliding_rope=1),
    }


def smollm3(fields: Fields, num_layers: int, head_dim: int) -> Options:
    uses_rope = fields.optional("no_rope_layers")  # 1 where rotary embedding is used
    step = fields.optional("no_rope_layer_interval") or 4
    if not isinstance(uses_rope, list) or len(uses_rope) != num_layers:
        uses_rope = [int((i + 1) % step != 0) for i in range(num_layers)]
    window = window_of(fields, None) if fields.optional("use_sliding_window") else None
    layers = sliding_layers(fields, num_layers, window, lambda i: True)
    ropes = zip(layers, uses_rope, strict=True)
    return {"layers": tuple(LayerSpec(window=one.window, rope=0 if used else None) for one, used in ropes)}


def granite(fields: Fields, num_layers: int, head_dim: int) -> Options:
    # Logits are divided; GGUF calls the divisor logit_scale.
    divisor = fields.number("logit_scale" if fields.is_gguf else "logits_scaling", 1.0)
    has_rope = not fields.is_gguf or fields.optional("rope_finetuned") is not False  # false in Granite 4 without it
    return {
        "layers": (LayerSpec(rope=0 if has_rope else None),) * num_layers,
        "attention_scale": fields.number("attention_multiplier", head_dim**-0.5),
        "embedding_scale": fields.number("embedding_multiplier", 1.0),
        "residual_scale": fields.number("residual_multiplier", 1.0),
        "logit_scale": 1 / divisor,
    }


def granite4(fields: Fields, num_layers: int, head_dim: int) -> Options:
    has_rope = fields.optional("position_embedding_type") == "rope"
    return granite(fields, num_layers, head_dim) | {
        "intermediate_size": fields.count("shared_intermediate_size"),
        "layers": (LayerSpec(rope=0 if has_rope else None),) * num_layers,
    }


def cohere(fields: Fields, num_layers: int, head_dim: int) -> Options:
    return {
        "norm": "layer",
        "norm_placement": "parallel",
        "has_mlp_norm": False,
        "qk_norm": "heads" if fields.has("q_norm") else "none",
        "logit_scale": fields.number("logit_scale", 0.0625),
    }


def cohere2(fields: Fields, num_layers: int, head_dim: int) -> Options:
    layers = sliding_layers(fields, num_layers, window_of(fields, 4096), _every(_period(fields, 4)))
    # Rotary embedding in layers with a window only.
    nope = tuple(LayerSpec(window=one.window, rope=None if one.window is None else 0) for one in layers)
    return cohere(fields, num_layers, head_dim) | {"layers": nope}


def starcoder2(fields: Fields, num_layers: int, head_dim: int) -> Options:
    window = None if fields.is_gguf else window_of(fields, None)
    return {
        "norm": "layer",
        "norm_bias": True,
        "gated": False,
        "activation": "gelu_tanh",
        "layers": sliding_layers(fields, num_layers, window, lambda i: True),
    }


def exaone4(fields: Fields, num_layers: int, head_dim: int) -> Options:
    options: Options = {"norm_placement": "post", "qk_norm": "head"}
    window = window_of(fields, None)
    if window is None or (fields.is_gguf and num_layers != 64):
        return options
    layers = sliding_layers(fields, num_layers, window, _every(4))
    return options | {"layers": tuple(LayerSpec(window=one.window, rope=0 if one.window else None) for one in layers)}


def hunyuan(fields: Fields, num_layers: int, head_dim: int) -> Options:
    return {"qk_norm": "head", "qk_norm_after_rope": True}


def arcee(fields: Fields, num_layers: int, head_dim: int) -> Options:
    return {"gated": False, "activation": "relu2"}


def neox(fields: Fields, num_layers: int, head_dim: int) -> Options:
    return {
        "norm": "layer",
        "norm_bias": True,
        "num_kv_heads": fields.count("num_attention_heads"),
        "norm_placement": "parallel" if fields.optional("use_parallel_residual") is not False else "pre",
        "gated": False,
        "activation": "gelu_erf",
    }


def gpt2(fields: Fields, num_layers: int, head_dim: int) -> Options:
    for key, value in (("scale_attn_weights", False), ("scale_attn_by_inverse_layer_idx", True)):
        if fields.optional(key) is value:
            raise UnsupportedModelError(f"{key} {value} is not supported in GPT-2")
    width = fields.count("intermediate_size" if fields.is_gguf else "n_inner", 4 * fields.count("hidden_size"))
    return {
        "norm": "layer",
        "norm_bias": True,
        "gated": False,
        "activation": "gelu_tanh",
        "intermediate_size": width,
        "num_kv_heads": fields.count("num_attention_heads"),
        "learned_positions": fields.count("max_position_embeddings", 1024),
        "layers": (LayerSpec(rope=None),) * num_layers,
    }
