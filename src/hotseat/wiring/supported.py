"""The list of what can be served: architectures, tensor types, kinds of rotary embedding."""

from __future__ import annotations

from hotseat.models import DEFAULT_MODEL, FAMILIES, SUPPORTED_KINDS, SUPPORTED_ROPE_TYPES

__all__ = ["list_models"]


def list_models() -> str:
    """Return the list as text."""
    rows = [
        (name, model_type, family.gguf or "-") for family in FAMILIES for name, model_type in sorted(family.hf.items())
    ]
    rows = [("Hugging Face", "model_type", "GGUF"), *sorted(rows, key=lambda row: row[0].lower())]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    table = [f"  {first:<{widths[0]}}  {second:<{widths[1]}}  {third}" for first, second, third in rows]
    size = f"{DEFAULT_MODEL.num_bytes / 1e6:.0f} MB"
    return "\n".join(
        [
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
