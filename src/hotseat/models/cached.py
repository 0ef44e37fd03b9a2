"""The models that lie on this machine, in Hotseat's cache and in that of huggingface_hub."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from hotseat.errors import ModelNotFoundError
from hotseat.models.catalog import DEFAULT_MODEL, cached_path

__all__ = ["CachedModel", "cached_models", "remove_cached"]

_KINDS = (".gguf", ".safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """One model, its size on the disk and where it lies."""

    name: str
    num_bytes: int
    path: Path


def cached_models(cache_dir: Path, hub_cache: Path | None = None) -> list[CachedModel]:
    """Return the models by name; ``hub_cache`` is by default where huggingface_hub keeps its own."""
    found = []
    if (path := cached_path(DEFAULT_MODEL, cache_dir)) is not None:
        found.append(CachedModel(name=DEFAULT_MODEL.name, num_bytes=path.stat().st_size, path=path))
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir(hub_cache).repos
    except CacheNotFound:
        return found
    for repo in repos:
        names = {file.file_name for revision in repo.revisions for file in revision.files}
        if repo.repo_type == "model" and any(name.endswith(_KINDS) for name in names):
            found.append(CachedModel(name=repo.repo_id, num_bytes=repo.size_on_disk, path=repo.repo_path))
    return sorted(found, key=lambda one: one.name.lower())


def remove_cached(name: str, cache_dir: Path, hub_cache: Path | None = None) -> CachedModel:
    """Delete a model from its cache and return what it was.

    Raises:
        ModelNotFoundError: it is not in a cache; the message lists those that are.
    """
    models = cached_models(cache_dir, hub_cache)
    for one in models:
        if one.name == name:
            if one.path.is_dir():
                shutil.rmtree(one.path)
            else:
                one.path.unlink()
            return one
    there = ", ".join(one.name for one in models) or "none"
    raise ModelNotFoundError(f"there is no model {name} in the caches, only: {there}")
