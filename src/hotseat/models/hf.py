"""Load a model from a Hugging Face directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hotseat.errors import ModelError, ModelNotFoundError
from hotseat.models.gguf_choice import gguf_models
from hotseat.models.hf_llama import HF_IGNORED_TENSORS, HF_TENSOR_NAMES, spec_from_config
from hotseat.models.loaded import GenerationConfig, LoadedModel, TokenizerSource, token_ids
from hotseat.models.safetensors import SafetensorsFile, read_safetensors
from hotseat.models.slots import match_slots
from hotseat.models.spec import DecoderSpec

__all__ = ["HF_FILES", "load_hf_directory", "read_config"]

_INDEX = "model.safetensors.index.json"
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


def load_hf_directory(directory: Path, *, name: str | None = None) -> LoadedModel:
    """Load ``directory``; what cannot be run is refused before any tensor is read."""
    config = read_config(directory)
    try:
        spec = spec_from_config(config)
        files = _weight_files(directory)
        spec, ignored = _resolve_tie(spec, files)
        found = {tensor: file.tensors[tensor] for tensor, file in files.items()}
        slots = match_slots(spec, found, HF_TENSOR_NAMES, ignored=ignored)
    except ModelError as error:
        raise type(error)(f"{directory}: {error}") from None
    tokenizer = directory / "tokenizer.json"
    if not tokenizer.is_file():
        raise ModelError(f"{directory}: there is no tokenizer.json, which is needed (no other tokenizer file is read)")
    tokenizer_config = _read_json(directory / "tokenizer_config.json", optional=True)
    return LoadedModel(
        name=name or directory.resolve().name,
        spec=spec,
        weights={slot: files[tensor].weight(tensor) for slot, tensor in slots.items()},
        tokenizer_source=TokenizerSource(kind="tokenizer.json", path=tokenizer, config=tokenizer_config),
        chat_template=_chat_template(directory, tokenizer_config),
        generation_config=_generation_config(directory, config, spec.vocab_size),
        path=directory,
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


def _weight_files(directory: Path) -> dict[str, SafetensorsFile]:
    """Return tensor name → the file that holds it."""
    single = directory / "model.safetensors"
    if single.is_file():
        file = read_safetensors(single)
        return dict.fromkeys(file.tensors, file)
    if not (directory / _INDEX).is_file():
        raise ModelNotFoundError(f"there is neither model.safetensors nor {_INDEX}; other weight formats are not read")
    weight_map = _read_json(directory / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelError(f"{_INDEX} has no weight_map from tensors to files")
    shards = {name: _read_shard(directory, name) for name in sorted(set(weight_map.values()))}
    for tensor, shard in weight_map.items():
        if tensor not in shards[shard].tensors:
            raise ModelError(f"tensor {tensor} is not in {shard}, where {_INDEX} says it is")
    return {tensor: shards[shard] for tensor, shard in weight_map.items()}


def _read_shard(directory: Path, name: str) -> SafetensorsFile:
    if name != Path(name).name:
        raise ModelError(f"{_INDEX} names {name!r}, which is not a file of the same directory")
    if not (directory / name).is_file():
        raise ModelNotFoundError(f"{_INDEX} names {name}, which is missing")
    return read_safetensors(directory / name)


def _resolve_tie(spec: DecoderSpec, files: Mapping[str, SafetensorsFile]) -> tuple[DecoderSpec, str]:
    """Tie the embeddings if the config says so, unless the file has an output of its own with other values.

    Returns the spec and the pattern of tensors that may be ignored.
    """
    output, embedding = HF_TENSOR_NAMES["output"], HF_TENSOR_NAMES["token_embedding"]
    if not spec.tie_word_embeddings or output not in files or embedding not in files:
        return spec, HF_IGNORED_TENSORS
    first, second = files[output].tensors[output], files[embedding].tensors[embedding]
    is_alike = (first.kind, first.shape) == (second.kind, second.shape)
    if is_alike and np.array_equal(_raw(files[output], output), _raw(files[embedding], embedding)):
        return spec, f"{HF_IGNORED_TENSORS}|{output}"
    return replace(spec, tie_word_embeddings=False), HF_IGNORED_TENSORS


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
