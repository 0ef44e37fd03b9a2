"""GGUF files of the twins, laid out as llama.cpp's converter lays them out.

Names come from gguf-py's own map. What the converter does to values is done here: rows of q and k interleaved, 1 added
to Gemma's norms, fused rows left or split, Conv1D transposed. What it leaves out is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gguf_moe_twins import add_experts, with_experts
from tiny_models import TinyLlama, _add_gguf_tokenizer
from twins import Twin

__all__ = ["write_gguf_twin"]

_INTERLEAVED = (
    *("Llama", "Mistral", "Mixtral", "SmolLM3", "Granite", "GraniteMoe", "GraniteMoeShared", "GraniteMoeHybrid"),
    "Arcee",
)
_LAYER_NORM = ("starcoder2", "command-r", "cohere2", "gpt2", "gptneox")

Config = dict[str, Any]
Tensors = dict[str, np.ndarray]


def write_gguf_twin(twin: Twin, directory: Path, path: Path, *, expert_kind: str = "F32") -> Path:
    """Convert the Hugging Face twin in ``directory`` to the file ``path``; all tensors are F32, but experts perhaps."""
    import gguf
    import safetensors.numpy

    assert twin.gguf is not None, f"{twin.name} has no GGUF form"
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    stored = safetensors.numpy.load_file(directory / "model.safetensors")
    if twin.gguf != "granite":  # Granite 4 without experts has the MLP of others
        stored = dict(with_experts(stored))
    tensors = dict(_converted(twin, config, stored))
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == twin.gguf)
    num_layers = config.get("num_hidden_layers") or config["n_layer"]
    names = gguf.get_tensor_name_map(number, num_layers)
    writer = gguf.GGUFWriter(path, twin.gguf)
    _add_shape(writer, twin, config)
    add_experts(writer, config)
    _EXTRAS.get(twin.gguf, _no_extras)(writer, config)
    _add_gguf_tokenizer(writer, TinyLlama())
    for name, values in tensors.items():
        mapped = name if name.startswith(("blk.", "rope_")) else names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert mapped is not None, f"gguf-py does not know {name}"
        if mapped == "output.weight" and config.get("tie_word_embeddings"):
            continue
        kind = gguf.GGMLQuantizationType[expert_kind if mapped.endswith("_exps.weight") else "F32"]
        writer.add_tensor(mapped, gguf.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _converted(twin: Twin, config: Config, tensors: Tensors) -> Iterator[tuple[str, np.ndarray]]:
    for name, values in tensors.items():
        if twin.kind.startswith("Gemma") and name.endswith("norm.weight"):
            yield name, values + 1
        elif twin.kind in _INTERLEAVED and ".q_proj." in name:
            yield name, _interleaved(values, config["num_attention_heads"])
        elif twin.kind in _INTERLEAVED and ".k_proj." in name:
            yield name, _interleaved(values, config["num_key_value_heads"])
        elif "shared_mlp." in name:
            yield from _shared_mlp(name, values)
        elif ".query_key_value." in name:
            yield name, _qkv_in_a_row(values, config["num_attention_heads"])
        elif twin.kind == "GPT2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            yield name, values.T
        else:
            yield name, values
    yield from _rope_factors(twin, config)


def _interleaved(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Put rows j and j + D/2 of a head, or elements of a bias, beside each other."""
    halves = values.reshape(num_heads, 2, len(values) // num_heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def _shared_mlp(name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Granite 4's dense MLP: gate and up in one matrix."""
    layer = name.split(".")[2]
    if "input_linear" in name:
        gate, up = np.split(values, 2)
        yield f"blk.{layer}.ffn_gate.weight", gate
        yield f"blk.{layer}.ffn_up.weight", up
    else:
        yield f"blk.{layer}.ffn_down.weight", values


def _qkv_in_a_row(values: np.ndarray, num_heads: int) -> np.ndarray:
    """GPT-NeoX has q, k and v of the first head, then of the second; GGUF has all q, all k, all v."""
    by_head = values.reshape(num_heads, 3, -1, *values.shape[1:])
    return by_head.swapaxes(0, 1).reshape(values.shape)


def _rope_factors(twin: Twin, config: Config) -> Iterator[tuple[str, np.ndarray]]:
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "longrope":
        yield "rope_factors_short.weight", np.array(rope["short_factor"], np.float32)
        yield "rope_factors_long.weight", np.array(rope["long_factor"], np.float32)
    elif rope.get("rope_type") == "llama3":
        wavelengths = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, _head_dim(config), 2) / _head_dim(config))
        original = rope["original_max_position_embeddings"]
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = (original / wavelengths - low) / (high - low)
        blended = 1 / ((1 - smooth) / rope["factor"] + smooth)
        factors = np.where(wavelengths > original / low, rope["factor"], blended)
        yield "rope_freqs.weight", np.where(wavelengths < original / high, 1, factors).astype(np.float32)


def _head_dim(config: Config) -> int:
    own = config.get("head_dim")
    return own if own else config["hidden_size"] // config["num_attention_heads"]


def _add_shape(writer: Any, twin: Twin, config: Config) -> None:
    """Write what nearly every architecture has."""
    if twin.gguf == "gpt2":
        writer.add_context_length(config["n_positions"])
        writer.add_embedding_length(config["n_embd"])
        writer.add_feed_forward_length(4 * config["n_embd"])
        writer.add_block_count(config["n_layer"])
        writer.add_head_count(config["n_head"])
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
        return
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    is_granite4 = twin.gguf == "granite" and "shared_intermediate_size" in config
    writer.add_feed_forward_length(config["shared_intermediate_size" if is_granite4 else "intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    if "num_key_value_heads" in config:
        writer.add_head_count_kv(config["num_key_value_heads"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    names = ("rms_norm_eps", "layer_norm_eps", "norm_epsilon")
    eps = next(config[name] for name in names if name in config)
    (writer.add_layer_norm_eps if twin.gguf in _LAYER_NORM else writer.add_layer_norm_rms_eps)(eps)
    rope = config.get("rope_parameters") or {}
    if twin.gguf not in ("gemma", "gemma2", "gptneox"):
        writer.add_rope_freq_base(_rope_base(rope.get("full_attention", rope), config))


def _rope_base(rope: Config, config: Config) -> float:
    if rope.get("rope_type") != "dynamic":
        return rope["rope_theta"]
    d = _head_dim(config)
    return rope["rope_theta"] * rope["alpha"] ** (d / (d - 2))


def _no_extras(writer: Any, config: Config) -> None:
    """Write nothing more."""


def _llama(writer: Any, config: Config) -> None:
    writer.add_rope_dimension_count(_head_dim(config))


def _gemma2(writer: Any, config: Config) -> None:
    writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_sliding_window(config["sliding_window"])


def _gemma3(writer: Any, config: Config) -> None:
    writer.add_sliding_window(config["sliding_window"])


def _phi3(writer: Any, config: Config) -> None:
    rope = config["rope_parameters"]
    original, context = config["original_max_position_embeddings"], config["max_position_embeddings"]
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_rope_dimension_count(int(rope.get("partial_rotary_factor", 1.0) * _head_dim(config)))
    writer.add_sliding_window(config.get("sliding_window") or 0)
    if rope["rope_type"] == "longrope":
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(context / original) / math.log(original)))


def _layer_pattern(writer: Any, config: Config) -> None:
    """OLMo and EXAONE: the window, which layers have it, and YaRN."""
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    if rope["rope_type"] == "yarn":
        import gguf

        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _granite(writer: Any, config: Config) -> None:
    _llama(writer, config)
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])


def _command_r(writer: Any, config: Config) -> None:
    writer.add_logit_scale(config["logit_scale"])


def _cohere2(writer: Any, config: Config) -> None:
    _command_r(writer, config)
    writer.add_sliding_window(config["sliding_window"])
    writer.add_rope_dimension_count(_head_dim(config))


def _glm(writer: Any, config: Config) -> None:
    partial = config["rope_parameters"].get("partial_rotary_factor", 0.5)
    writer.add_rope_dimension_count(int(_head_dim(config) * partial))


def _gptneox(writer: Any, config: Config) -> None:
    partial = config["rope_parameters"].get("partial_rotary_factor", 0.25)
    writer.add_rope_dimension_count(int(_head_dim(config) * partial))
    writer.add_parallel_residual(config["use_parallel_residual"])


_EXTRAS: dict[str, Callable[[Any, Config], None]] = {
    "llama": _llama,
    "smollm3": _llama,
    "arcee": _llama,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "olmo2": _layer_pattern,
    "exaone4": _layer_pattern,
    "granite": _granite,
    "granitemoe": _granite,
    "glm4moe": _glm,
    "gpt-oss": _layer_pattern,
    "command-r": _command_r,
    "cohere2": _cohere2,
    "glm4": _glm,
    "chatglm": _glm,
    "gptneox": _gptneox,
}
