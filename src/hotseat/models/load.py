"""Find a model wherever it is, and load it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from hotseat.errors import ModelError, ModelNotFoundError
from hotseat.models.catalog import DEFAULT_MODEL, default_cache_dir, ensure_model
from hotseat.models.file_bytes import LoadFormat
from hotseat.models.gguf_choice import gguf_models
from hotseat.models.gguf_llama import load_gguf
from hotseat.models.hf import load_hf_directory
from hotseat.models.hub import fetch_from_hub
from hotseat.models.loaded import LoadedModel

__all__ = ["gguf_in", "load", "load_files", "locate"]

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")
_PATH_STARTS = ("/", "./", "../", "~")


def load(
    model: str | None,
    *,
    cache_dir: Path | None = None,
    revision: str | None = None,
    token: str | None = None,
    offline: bool = False,
    load_format: LoadFormat = "auto",
) -> LoadedModel:
    """Load a model; its weights are views of its files, which are mapped, or with ``load_format`` read as a whole.

    ``model`` is ``None`` (the default model, fetched once into ``cache_dir``), a GGUF file (of one in parts, any), a
    Hugging Face directory, a directory with one GGUF model, or a hub id, perhaps with the kind of its GGUF file
    (``owner/name:Q4_K_M``). Raises ``ModelNotFoundError`` when there is none, ``UnsupportedModelError`` when it cannot
    be run, and ``ModelError`` when its files are not sound.
    """
    path, name = locate(model, cache_dir=cache_dir, revision=revision, token=token, offline=offline)
    try:
        loaded = load_files(path, name=name, load_format=load_format)
    except OSError as error:
        raise ModelError(f"cannot read the model {model}: {error}") from error
    if name != DEFAULT_MODEL.name:
        return loaded
    return replace(loaded, generation_config=replace(loaded.generation_config, temperature=DEFAULT_MODEL.temperature))


def locate(
    model: str | None,
    *,
    cache_dir: Path | None = None,
    revision: str | None = None,
    token: str | None = None,
    offline: bool = False,
) -> tuple[Path, str | None]:
    """Return the file or directory of ``model``, fetched if need be, and its name if it is not that of the files."""
    if model is None or model == DEFAULT_MODEL.name:
        return ensure_model(DEFAULT_MODEL, cache_dir or default_cache_dir({}), offline=offline), DEFAULT_MODEL.name
    path = Path(model).expanduser()
    try:
        if path.exists():
            return path, None
        if _looks_like_a_path(model):
            looked_for = "" if str(path.absolute()) == model else f" (looked for {path.absolute()})"
            raise ModelNotFoundError(f"there is no file or directory {model}{looked_for}")
        return fetch_from_hub(model, revision=revision, token=token, offline=offline), model
    except OSError as error:
        raise ModelError(f"cannot read the model {model}: {error}") from error


def load_files(path: Path, *, name: str | None = None, load_format: LoadFormat = "auto") -> LoadedModel:
    """Load a local file or directory."""
    if not path.is_dir():
        return _load_file(path, name, load_format)
    if (gguf := gguf_in(path)) is not None:
        return load_gguf(gguf, name=name or path.resolve().name, load_format=load_format)
    return load_hf_directory(path, name=name, load_format=load_format)


def gguf_in(directory: Path) -> Path | None:
    """Return the GGUF model of a directory that has one and no safetensors."""
    ggufs = gguf_models(file.name for file in directory.iterdir())
    if len(ggufs) == 1 and not any(directory.glob("*.safetensors")):
        return directory / ggufs[0]
    return None


def _load_file(path: Path, name: str | None, load_format: LoadFormat) -> LoadedModel:
    with path.open("rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    if is_gguf or path.suffix == ".gguf":
        return load_gguf(path, name=name, load_format=load_format)
    raise ModelError(f"{path} is not a GGUF file; a model is a GGUF file, a Hugging Face directory or a hub id")


def _looks_like_a_path(model: str) -> bool:
    return model.startswith(_PATH_STARTS) or model.endswith(".gguf") or not _HUB_ID.fullmatch(model)
