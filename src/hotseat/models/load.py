"""Find a model wherever it is, and load it."""

from __future__ import annotations

from pathlib import Path

from hotseat.errors import ModelNotFoundError
from hotseat.models.catalog import DEFAULT_MODEL, default_cache_dir, ensure_model
from hotseat.models.gguf_llama import load_gguf
from hotseat.models.loaded import LoadedModel

__all__ = ["load"]


def load(
    model: str | None,
    *,
    cache_dir: Path | None = None,
    revision: str | None = None,
    token: str | None = None,
    offline: bool = False,
) -> LoadedModel:
    """Load the default model (``None``) or a GGUF file."""
    if model is None:
        path = ensure_model(DEFAULT_MODEL, cache_dir or default_cache_dir({}), offline=offline)
        return load_gguf(path, name=DEFAULT_MODEL.name)
    if not Path(model).is_file():
        raise ModelNotFoundError(f"there is no file {model}")
    return load_gguf(Path(model))
