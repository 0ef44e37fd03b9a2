"""Load a Llama-family model from a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hotseat.errors import ModelError, UnsupportedModelError
from hotseat.models.gguf import GgufFile, MetadataValue
from hotseat.models.gguf_parts import model_name, read_gguf_model
from hotseat.models.loaded import GenerationConfig, LoadedModel, TokenizerSource, token_ids
from hotseat.models.rope import rope_spec
from hotseat.models.slots import match_slots
from hotseat.models.spec import DecoderSpec, RopeSpec, uniform_layers
from hotseat.models.weights import WeightTensor

__all__ = ["GGUF_ARCHITECTURES", "load_gguf"]

GGUF_ARCHITECTURES = ("llama",)

_NAMES = {
    "token_embedding": "token_embd.weight",
    "output_norm": "output_norm.weight",
    "output": "output.weight",
    "attention_norm": "blk.{i}.attn_norm.weight",
    "q": "blk.{i}.attn_q.weight",
    "k": "blk.{i}.attn_k.weight",
    "v": "blk.{i}.attn_v.weight",
    "attention_output": "blk.{i}.attn_output.weight",
    "mlp_norm": "blk.{i}.ffn_norm.weight",
    "gate": "blk.{i}.ffn_gate.weight",
    "up": "blk.{i}.ffn_up.weight",
    "down": "blk.{i}.ffn_down.weight",
}
_IGNORED = r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd"
# Keys that change the arithmetic when they are there and not zero.
_UNSUPPORTED_FEATURES = (
    "expert_count",
    "attention.scale",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.temperature_length",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
)
_END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Tokens that end a turn whatever the metadata says: many files name only the end of the text as EOS.
_END_TEXTS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end_of_turn|>", "<end_of_turn>")
_CONTROL_TOKEN = 3


def load_gguf(path: Path, *, name: str | None = None) -> LoadedModel:
    """Load ``path``, or all parts of which it is one; what cannot be run is refused before any tensor is read."""
    file = read_gguf_model(path)
    try:
        spec = _spec(file)
        slots = match_slots(spec, file.tensors, _NAMES, ignored=_IGNORED)
    except ModelError as error:
        raise type(error)(f"{path}: {error}") from None
    weights = {slot: _weight(file, slot, tensor, spec) for slot, tensor in slots.items()}
    template = file.metadata.get("tokenizer.chat_template")
    return LoadedModel(
        name=name or model_name(path.name),
        spec=spec,
        weights=weights,
        tokenizer_source=_tokenizer_source(file, spec.vocab_size),
        chat_template=template if isinstance(template, str) else None,
        generation_config=_generation_config(file.metadata, spec.vocab_size),
        path=file.path,
    )


class _Keys:
    """The architecture's metadata, each value checked for its type."""

    def __init__(self, metadata: Mapping[str, MetadataValue], architecture: str) -> None:
        self._metadata = metadata
        self._prefix = architecture

    def optional(self, key: str) -> MetadataValue | None:
        value = self._metadata.get(f"{self._prefix}.{key}")
        if isinstance(value, np.ndarray) and len(value) and (value == value[0]).all():
            first: MetadataValue = value[0].item()
            return first  # one value a layer, all the same
        return value

    def count(self, key: str, default: int | None = None) -> int:
        value = self.optional(key)
        if value is None and default is not None:
            return default
        if isinstance(value, np.ndarray):
            raise UnsupportedModelError(f"{self._prefix}.{key} differs from layer to layer, which is not supported")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelError(f"metadata {self._prefix}.{key} must be a positive whole number, not {value!r}")
        return value

    def text(self, key: str) -> str | None:
        value = self.optional(key)
        if value is not None and not isinstance(value, str):
            raise ModelError(f"metadata {self._prefix}.{key} must be a string, not {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.optional(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"metadata {self._prefix}.{key} must be a number, not {value!r}")
        return value


def _spec(file: GgufFile) -> DecoderSpec:
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in GGUF_ARCHITECTURES:
        supported = ", ".join(GGUF_ARCHITECTURES)
        raise UnsupportedModelError(f"architecture {architecture!r} is not supported; supported in GGUF: {supported}")
    keys = _Keys(file.metadata, architecture)
    embedding = file.tensors.get(_NAMES["token_embedding"])
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"tensor {_NAMES['token_embedding']} is missing, or it is not a matrix")
    hidden_size, num_heads = keys.count("embedding_length"), keys.count("attention.head_count")
    head_dim = keys.count("attention.key_length", hidden_size // num_heads)
    context = keys.count("context_length")
    num_kv_heads = keys.count("attention.head_count_kv", num_heads)
    _refuse_features(keys, head_dim=head_dim, context=context)
    if num_heads % num_kv_heads:
        raise ModelError(f"{num_heads} attention heads cannot share {num_kv_heads} key/value heads evenly")
    norm_eps = keys.number("attention.layer_norm_rms_epsilon")
    if not 0 < norm_eps < 1:
        raise ModelError(f"attention.layer_norm_rms_epsilon must lie between 0 and 1, not {norm_eps}")
    return DecoderSpec(
        architecture=architecture,
        vocab_size=embedding.shape[0],
        hidden_size=hidden_size,
        intermediate_size=keys.count("feed_forward_length"),
        layers=uniform_layers(keys.count("block_count")),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=norm_eps,
        ropes=(_rope(file, keys, head_dim=head_dim, context=context),),
        max_position_embeddings=context,
        tie_word_embeddings=_NAMES["output"] not in file.tensors,  # GGUF's way of saying so
        metadata=_for_people(file.metadata),
    )


def _for_people(metadata: Mapping[str, MetadataValue]) -> dict[str, str]:
    values = {key: metadata.get(f"general.{key}") for key in ("name", "license", "size_label", "organization")}
    return {key: value for key, value in values.items() if isinstance(value, str)}


def _refuse_features(keys: _Keys, *, head_dim: int, context: int) -> None:
    for key in _UNSUPPORTED_FEATURES:
        if keys.number(key, 0):
            raise UnsupportedModelError(f"{key} ({keys.optional(key)}) is not supported")
    if keys.optional("attention.causal") is False:
        raise UnsupportedModelError("attention that is not causal is not supported")
    if 0 < (window := keys.number("attention.sliding_window", 0)) < context:
        raise UnsupportedModelError(f"sliding-window attention (a window of {window}) is not supported")
    for key in ("attention.value_length", "rope.dimension_count"):
        if (size := keys.count(key, head_dim)) != head_dim:
            raise UnsupportedModelError(f"{key} {size} that differs from the head size {head_dim} is not supported")


def _rope(file: GgufFile, keys: _Keys, *, head_dim: int, context: int) -> RopeSpec:
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0)) or 1.0
    rope_type = keys.text("rope.scaling.type") or ("linear" if factor != 1 else "none")
    if rope_type == "yarn" and keys.number("rope.scaling.yarn_ext_factor", 1) != 1:
        raise UnsupportedModelError("a yarn_ext_factor other than 1 is not supported")
    parameters: dict[str, Any] = {"rope_type": "default" if rope_type == "none" else rope_type, "factor": factor}
    if rope_type == "yarn":
        parameters |= {
            "original_max_position_embeddings": keys.count("rope.scaling.original_context_length", context),
            "beta_fast": keys.number("rope.scaling.yarn_beta_fast", 32),
            "beta_slow": keys.number("rope.scaling.yarn_beta_slow", 1),
        }
    factors = None
    if (tensor := file.tensors.get("rope_freqs.weight")) is not None:
        if tensor.kind != "F32" or tensor.shape != (head_dim // 2,):
            found = f"{tensor.kind} {list(tensor.shape)}"
            raise ModelError(f"tensor rope_freqs.weight must be F32 [{head_dim // 2}], not {found}")
        factors = file.weight("rope_freqs.weight").dequantize()
    rope = rope_spec(parameters, head_dim=head_dim, theta=keys.number("rope.freq_base", 10000), factors=factors)
    extra = keys.number("rope.scaling.attn_factor", 1) * keys.number("rope.scaling.yarn_attn_factor", 1)
    return RopeSpec(inverse_frequencies=rope.inverse_frequencies, attention_factor=rope.attention_factor * extra)


def _weight(file: GgufFile, slot: str, name: str, spec: DecoderSpec) -> WeightTensor:
    tensor = file.weight(name)
    if slot.endswith(".q"):
        return _in_halves(tensor, spec.num_heads)
    if slot.endswith(".k"):
        return _in_halves(tensor, spec.num_kv_heads)
    return tensor


def _in_halves(tensor: WeightTensor, num_heads: int) -> WeightTensor:
    """Order q or k rows for rotate-half rope.

    llama.cpp's converter interleaves a head's two halves (0, h, 1, h+1, …) since it rotates neighbours; this takes
    them apart again. Whole rows move, so that quantised bytes stay as they are.
    """
    rows, num_bytes = tensor.data.shape
    pairs = tensor.data.reshape(num_heads, rows // num_heads // 2, 2, num_bytes)
    data = pairs.swapaxes(1, 2).reshape(rows, num_bytes)
    return WeightTensor(kind=tensor.kind, shape=tensor.shape, data=data)


def _tokenizer_source(file: GgufFile, vocab_size: int) -> TokenizerSource:
    metadata = {
        key: value.tolist() if isinstance(value, np.ndarray) else value
        for key, value in file.metadata.items()
        if key.startswith("tokenizer.") or key == "general.architecture"
    }
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise ModelError(f"{file.path}: there is no vocabulary (tokenizer.ggml.tokens)")
    if len(tokens) > vocab_size:
        raise ModelError(f"{file.path}: the vocabulary has {len(tokens)} tokens, but only {vocab_size} embeddings")
    return TokenizerSource(kind="gguf", path=file.path, metadata=metadata)


def _generation_config(metadata: Mapping[str, MetadataValue], vocab_size: int) -> GenerationConfig:
    ids = [metadata.get(f"tokenizer.ggml.{key}") for key in _END_IDS]
    tokens, types = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if isinstance(tokens, list) and isinstance(types, np.ndarray):
        control = np.flatnonzero(types[: len(tokens)] == _CONTROL_TOKEN).tolist()
        ids += [i for i in control if tokens[i] in _END_TEXTS]
    bos = token_ids([metadata.get("tokenizer.ggml.bos_token_id")], vocab_size)
    return GenerationConfig(eos_token_ids=token_ids(ids, vocab_size), bos_token_id=bos[0] if bos else None)
