"""The list of what can be served: architectures, tensor types, kinds of rotary embedding."""

from __future__ import annotations

from pathlib import Path

from hotseat.models import (
    DEFAULT_MODEL,
    FAMILIES,
    SUPPORTED_KINDS,
    SUPPORTED_ROPE_TYPES,
    cached_models,
    remove_cached,
)

__all__ = ["list_models", "remove_model"]


def list_models(cache_dir: Path) -> str:
    """Return the list as text, the models that are on this machine first."""
    cached = [f"  {one.name}  ({_size(one.num_bytes)})  {one.path}" for one in cached_models(cache_dir)]
    rows = [
        (name, model_type, family.gguf or "-") for family in FAMILIES for name, model_type in sorted(family.hf.items())
    ]
    rows = [("Hugging Face", "model_type", "GGUF"), *sorted(rows, key=lambda row: row[0].lower())]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    table = [f"  {first:<{widths[0]}}  {second:<{widths[1]}}  {third}" for first, second, third in rows]
    size = f"{DEFAULT_MODEL.num_bytes / 1e6:.0f} MB"
    return "\n".join(
        [
            "on this machine (`hotseat rm MODEL` deletes one):",
            *(cached or ["  none"]),
            "",
            f"default model: {DEFAULT_MODEL.name} ({DEFAULT_MODEL.licence}, {size})",
            "",
            "architectures:",
            *table,
            "",
            f"tensor types in GGUF: {', '.join(SUPPORTED_KINDS)}",
            "tensor types in safetensors: F32, F16, BF16",
            f"scaling of rotary embeddings: {', '.join(SUPPORTED_ROPE_TYPES)}",
            "",
            "`hotseat inspect MODEL` says of a model whether it runs.",
            "",
        ]
    )


def remove_model(name: str, cache_dir: Path) -> str:
    """Delete a model from its cache and return a line about it.

    Raises:
        ModelNotFoundError: it is not there.
    """
    removed = remove_cached(name, cache_dir)
    return f"deleted {removed.name} ({_size(removed.num_bytes)})\n"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"
