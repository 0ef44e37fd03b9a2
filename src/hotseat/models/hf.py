"""Load a model from a Hugging Face directory."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hotseat.errors import ModelError, ModelNotFoundError
from hotseat.models.binding import Names, StoredTensor, bind, later_layers, ordered
from hotseat.models.description import describe
from hotseat.models.family import Family
from hotseat.models.file_bytes import LoadFormat
from hotseat.models.gguf_choice import gguf_models
from hotseat.models.hf_config import Config, HfFields, check_config, hf_family, text_config
from hotseat.models.hf_quantized import quantized_matrices
from hotseat.models.loaded import GenerationConfig, LoadedModel, TokenizerSource, token_ids
from hotseat.models.safetensors import SafetensorsFile, read_safetensors
from hotseat.models.weights import WeightTensor

__all__ = ["HF_FILES", "load_hf_directory", "read_config"]

_INDEX = "model.safetensors.index.json"
# Of checkpoints that hold a language model among others, and what stands for it in one of text alone.
_NESTED_PREFIXES = (
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    # GPT-2 of before 2020
    ("h.", "transformer.h."),
    ("wte.", "transformer.wte."),
    ("wpe.", "transformer.wpe."),
    ("ln_f.", "transformer.ln_f."),
)
_IGNORED = (
    r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq|(model\.)?(vision_tower|multi_modal_projector)\..*"
    r"|transformer\.h\.\d+\.attn\.(bias|masked_bias)"
    r"|gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)"
)
# Everything that is read, as patterns; enough to download.
HF_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model*.safetensors",
    _INDEX,
)


def load_hf_directory(directory: Path, *, name: str | None = None, load_format: LoadFormat = "auto") -> LoadedModel:
    """Load ``directory``; what cannot be run is refused before any tensor is read."""
    config = text_config(read_config(directory))
    try:
        check_config(config)
        files, prefix = _without_prefix(_weight_files(directory, load_format))
        quantized, parts = quantized_matrices(config, files, prefix)
        plain = {tensor: file.tensors[prefix[tensor]] for tensor, file in files.items() if tensor not in parts}
        found: dict[str, StoredTensor] = {**plain, **quantized}
        family, architecture = hf_family(config)
        names = Names(family, found, is_gguf=False)
        fields = HfFields(config, family, names)
        ties, ignored = _resolve_tie(config, family, names, files, prefix)
        embedding = found.get(names.of_model("token_embedding"))
        spec = describe(
            family,
            fields,
            names,
            architecture=architecture,
            vocab_size=fields.count("vocab_size", embedding.shape[0] if embedding else None),
            ties=ties,
            context=fields.context,
        )
        later = later_layers(spec.num_layers, fields.optional("num_nextn_predict_layers"))
        sources = bind(spec, names, found, ignored=f"{ignored}|{later}")
        rotary_dim = fields.rotary_dim(spec.head_dim)
    except ModelError as error:
        raise type(error)(f"{directory}: {error}") from None

    def stored(tensor: str) -> WeightTensor:
        return quantized[tensor].read() if tensor in quantized else files[tensor].weight(prefix[tensor])

    weights = {
        slot: _plus_one_for(slot, ordered(slot, stored(one.name), one, spec, family.hf_rope, rotary_dim), family)
        for slot, one in sources.items()
    }
    tokenizer = directory / "tokenizer.json"
    if not tokenizer.is_file():
        raise ModelError(f"{directory}: there is no tokenizer.json, which is needed (no other tokenizer file is read)")
    tokenizer_config = _read_json(directory / "tokenizer_config.json", optional=True)
    return LoadedModel(
        name=name or directory.resolve().name,
        spec=spec,
        weights=weights,
        tokenizer_source=TokenizerSource(kind="tokenizer.json", path=tokenizer, config=tokenizer_config),
        chat_template=_chat_template(directory, tokenizer_config),
        generation_config=_generation_config(directory, config, spec.vocab_size),
        path=directory,
        files=tuple({id(file): file.data for file in files.values()}.values()),
    )


def read_config(directory: Path) -> Mapping[str, Any]:
    """Return the directory's config.json."""
    return _read_json(directory / "config.json")


def _read_json(path: Path, *, optional: bool = False) -> Mapping[str, Any]:
    if not path.is_file():
        if optional:
            return {}
        ggufs = gguf_models(file.name for file in path.parent.glob("*.gguf"))
        hint = f"; name one of its GGUF files instead: {', '.join(ggufs[:5])}" if ggufs else ""
        raise ModelNotFoundError(f"{path.parent} is not a Hugging Face model: there is no {path.name}{hint}")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object")
    return value


def _weight_files(directory: Path, load_format: LoadFormat) -> dict[str, SafetensorsFile]:
    """Return tensor name → the file that holds it."""
    single = directory / "model.safetensors"
    if single.is_file():
        file = read_safetensors(single, load_format)
        return dict.fromkeys(file.tensors, file)
    if not (directory / _INDEX).is_file():
        raise ModelNotFoundError(f"there is neither model.safetensors nor {_INDEX}; other weight formats are not read")
    weight_map = _read_json(directory / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelError(f"{_INDEX} has no weight_map from tensors to files")
    shards = {name: _read_shard(directory, name, load_format) for name in sorted(set(weight_map.values()))}
    for tensor, shard in weight_map.items():
        if tensor not in shards[shard].tensors:
            raise ModelError(f"tensor {tensor} is not in {shard}, where {_INDEX} says it is")
    return {tensor: shards[shard] for tensor, shard in weight_map.items()}


def _read_shard(directory: Path, name: str, load_format: LoadFormat) -> SafetensorsFile:
    if name != Path(name).name:
        raise ModelError(f"{_INDEX} names {name!r}, which is not a file of the same directory")
    if not (directory / name).is_file():
        raise ModelNotFoundError(f"{_INDEX} names {name}, which is missing")
    return read_safetensors(directory / name, load_format)


def _without_prefix(files: Mapping[str, SafetensorsFile]) -> tuple[dict[str, SafetensorsFile], dict[str, str]]:
    """Return the tensors of the language model by their names in a checkpoint of text alone, and their own names."""
    own: dict[str, str] = {}
    for name in files:
        plain = name
        for start, instead in _NESTED_PREFIXES:
            if name.startswith(start):
                plain = instead + name.removeprefix(start)
                break
        own[plain] = name
    return {plain: files[name] for plain, name in own.items()}, own


def _resolve_tie(
    config: Config, family: Family, names: Names, files: Mapping[str, SafetensorsFile], own: Mapping[str, str]
) -> tuple[bool, str]:
    """Tell whether the embeddings are tied, and return the pattern of tensors that may be ignored.

    They are if the config says so, unless the file has an output of its own with other values.
    """
    output, embedding = names.of_model("output"), names.of_model("token_embedding")
    if not config.get("tie_word_embeddings", family.ties):
        return False, _IGNORED
    if output not in files or embedding not in files:
        return True, _IGNORED
    first, second = (files[name].tensors[own[name]] for name in (output, embedding))
    is_alike = (first.kind, first.shape) == (second.kind, second.shape)
    if is_alike and np.array_equal(_raw(files[output], own[output]), _raw(files[embedding], own[embedding])):
        return True, f"{_IGNORED}|{re.escape(output)}"
    return False, _IGNORED


def _plus_one_for(slot: str, tensor: WeightTensor, family: Family) -> WeightTensor:
    """Return a norm's weight as it is multiplied: Gemma stores it less 1."""
    if not family.hf_adds_one or not slot.endswith("norm"):
        return tensor
    values = np.ascontiguousarray(tensor.dequantize() + np.float32(1))
    return WeightTensor(kind="F32", shape=tensor.shape, data=values.reshape(-1, values.shape[-1]).view(np.uint8))


def _raw(file: SafetensorsFile, name: str) -> np.ndarray:
    tensor = file.tensors[name]
    return np.frombuffer(file.data, np.uint8, tensor.num_bytes, tensor.offset)


def _chat_template(directory: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    if (path := directory / "chat_template.jinja").is_file():
        return path.read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):  # [{"name": "default", "template": …}, …]
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _generation_config(directory: Path, config: Mapping[str, Any], vocab_size: int) -> GenerationConfig:
    own = _read_json(directory / "generation_config.json", optional=True)

    def number(key: str) -> Any:
        value = own.get(key)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def either(key: str) -> Any:
        return own[key] if own.get(key) is not None else config.get(key)

    eos, bos = either("eos_token_id"), either("bos_token_id")
    return GenerationConfig(
        eos_token_ids=token_ids(eos if isinstance(eos, list) else [eos], vocab_size),
        bos_token_id=next(iter(token_ids([bos], vocab_size)), None),
        temperature=number("temperature"),
        top_p=number("top_p"),
        top_k=number("top_k"),
        min_p=number("min_p"),
        repetition_penalty=number("repetition_penalty"),
    )
