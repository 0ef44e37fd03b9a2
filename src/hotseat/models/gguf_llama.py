"""Load a model from a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from hotseat.errors import ModelError, UnsupportedModelError
from hotseat.models.binding import Names, bind, later_layers, ordered
from hotseat.models.description import describe
from hotseat.models.families import FAMILIES, family_of
from hotseat.models.family import Family
from hotseat.models.file_bytes import LoadFormat
from hotseat.models.gguf import GgufFile, MetadataValue
from hotseat.models.gguf_fields import GgufFields
from hotseat.models.gguf_parts import model_name, read_gguf_model
from hotseat.models.loaded import GenerationConfig, LoadedModel, TokenizerSource, token_ids

__all__ = ["load_gguf"]

_IGNORED = r"rope_freqs\.weight|rope_factors_(long|short)\.weight|blk\.\d+\.attn_rot_embd"
_END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Tokens that end a turn whatever the metadata says: many files name only the end of the text as EOS.
_END_TEXTS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end_of_turn|>", "<end_of_turn>")
_CONTROL_TOKEN = 3


def load_gguf(path: Path, *, name: str | None = None, load_format: LoadFormat = "auto") -> LoadedModel:
    """Load ``path``, or all parts of which it is one; what cannot be run is refused before any tensor is read."""
    file = read_gguf_model(path, load_format)
    try:
        family = _family(file)
        names = Names(family, file.tensors, is_gguf=True)
        fields = GgufFields(file, family, names)
        embedding = file.tensors.get(names.of_model("token_embedding"))
        if embedding is None or len(embedding.shape) != 2:
            raise ModelError(f"tensor {names.of_model('token_embedding')} is missing, or it is not a matrix")
        spec = describe(
            family,
            fields,
            names,
            architecture=str(family.gguf),
            vocab_size=embedding.shape[0],
            ties=names.of_model("output") not in file.tensors,  # GGUF's way of saying so
            context=fields.context,
        )
        spec = replace(spec, metadata=_for_people(file.metadata))
        later = later_layers(spec.num_layers, fields.optional("num_nextn_predict_layers"))
        sources = bind(spec, names, file.tensors, ignored=f"{_IGNORED}|{later}")
        rotary_dim = fields.rotary_dim(spec.head_dim)
    except ModelError as error:
        raise type(error)(f"{path}: {error}") from None
    weights = {
        slot: ordered(slot, file.weight(one.name), one, spec, family.gguf_rope, rotary_dim)
        for slot, one in sources.items()
    }
    template = file.metadata.get("tokenizer.chat_template")
    return LoadedModel(
        name=name or model_name(path.name),
        spec=spec,
        weights=weights,
        tokenizer_source=_tokenizer_source(file, spec.vocab_size),
        chat_template=template if isinstance(template, str) else None,
        generation_config=_generation_config(file.metadata, spec.vocab_size),
        path=file.path,
        files=file.parts,
    )


def _family(file: GgufFile) -> Family:
    architecture = file.metadata.get("general.architecture")
    num_experts = file.metadata.get(f"{architecture}.expert_count")
    has_experts = isinstance(num_experts, int) and num_experts > 0
    is_text = isinstance(architecture, str)
    family = family_of(str(architecture), is_gguf=True, has_experts=has_experts) if is_text else None
    if family is None:
        supported = ", ".join(family.gguf for family in FAMILIES if family.gguf)
        raise UnsupportedModelError(f"architecture {architecture!r} is not supported; supported in GGUF: {supported}")
    return family


def _for_people(metadata: Mapping[str, MetadataValue]) -> dict[str, str]:
    values = {key: metadata.get(f"general.{key}") for key in ("name", "license", "size_label", "organization")}
    return {key: value for key, value in values.items() if isinstance(value, str)}


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
