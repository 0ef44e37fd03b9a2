"""Which matrices ``dtype gguf`` multiplies exactly as they are stored, and which are rounded to Q8_0 first."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

from hotseat.errors import ConfigError
from hotseat.models.spec import DecoderSpec, is_matrix
from hotseat.models.weights import Weights

__all__ = ["UNGROUPED_KINDS", "check_groups", "log_groups", "matrix_kinds", "matrix_slots"]

logger = logging.getLogger(__name__)

UNGROUPED_KINDS = ("F32", "F16", "BF16")  # have no groups: the nearest format that is multiplied is Q8_0
_HALF_PANEL = 32  # columns of packed weights that share a storage format


def matrix_kinds(spec: DecoderSpec, weights: Weights) -> Counter[str]:
    """Count the matrices that are multiplied by how they are stored."""
    return Counter(weights[slot].kind for slot in matrix_slots(spec, weights))


def log_groups(spec: DecoderSpec, weights: Weights) -> None:
    """Say how many matrices keep the bits of their file, and how many do not."""
    kinds = matrix_kinds(spec, weights)
    rounded = Counter({kind: count for kind, count in kinds.items() if kind in UNGROUPED_KINDS})
    exact = kinds - rounded
    if exact:
        logger.info(
            "dtype gguf: %d of %d matrices are multiplied exactly as they are stored (%s)",
            exact.total(),
            kinds.total(),
            _listed(exact),
        )
    if rounded:
        logger.warning(
            "dtype gguf: %d of %d matrices are %s in the file and were rounded to Q8_0, 8-bit codes in groups of 32%s",
            rounded.total(),
            kinds.total(),
            " or ".join(sorted(rounded)),
            f" ({_listed(rounded)})" if len(rounded) > 1 else "",
        )


def check_groups(spec: DecoderSpec, weights: Weights) -> None:
    """Make sure that q, k and v can lie side by side.

    Raises:
        ConfigError: they are of different formats, and one is no multiple of 32 rows.
    """
    for layer in range(spec.num_layers):
        slots = [f"layers.{layer}.{name}" for name in ("q", "k", "v")]
        formats = {_format(weights[slot].kind) for slot in slots}
        for slot in slots[:-1]:
            if len(formats) > 1 and weights[slot].shape[0] % _HALF_PANEL:
                raise ConfigError(
                    f"dtype gguf needs multiples of {_HALF_PANEL} rows where q, k and v are of different kinds, "
                    f"{slot} has {weights[slot].shape[0]}"
                )


def matrix_slots(spec: DecoderSpec, weights: Weights) -> Iterator[str]:
    """Yield the slots of the matrices that are multiplied, the output's first."""
    yield "token_embedding" if spec.tie_word_embeddings else "output"
    yield from (slot for slot in weights if slot.startswith("layers.") and is_matrix(slot))


def _format(kind: str) -> str:
    return "Q8_0" if kind in UNGROUPED_KINDS else kind


def _listed(kinds: Counter[str]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
