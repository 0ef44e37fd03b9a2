"""Weights as they are stored, and their exact values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hotseat.models.dequantize import dequantize_rows

__all__ = ["WeightTensor", "Weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTensor:
    """One tensor in its stored form, usually a view of a file.

    ``kind`` is a GGML type name, one of ``dequantize.SUPPORTED_KINDS``.
    ``data`` are the raw bytes, C-contiguous uint8[rows, bytes_per_row]; a vector has one row.
    """

    kind: str
    shape: tuple[int, ...]  # [out_features, in_features] or [n]
    data: np.ndarray  # uint8[rows, bytes_per_row]

    def dequantize(self) -> np.ndarray:
        """Return the exact values as float32, in ``shape``."""
        return dequantize_rows(self.kind, self.data).reshape(self.shape)


# Keys: MODEL_SLOTS, and f"layers.{i}.{slot}" for LAYER_SLOTS. Tied embeddings: "output" is absent.
Weights: TypeAlias = Mapping[str, WeightTensor]
