"""Embeddings from pooled hidden states: cut and scaled to length 1."""

from __future__ import annotations

import math
from typing import Any

from hotseat.errors import InvalidRequestError

__all__ = ["embedding_of"]


def embedding_of(pooled: Any, dimensions: int | None = None, *, normalize: bool = True) -> list[float]:
    """Return the first ``dimensions`` values of ``pooled``, float32[hidden_size], scaled to length 1.

    Raises:
        InvalidRequestError: there are not so many.
    """
    values: list[float] = pooled.tolist()
    if dimensions is not None:
        if not 0 < dimensions <= len(values):
            raise InvalidRequestError(
                f"`dimensions` must be between 1 and {len(values)}, which this model has, not {dimensions}.",
                param="dimensions",
            )
        values = values[:dimensions]
    if not normalize:
        return values
    # fsum is exact, so the bits do not depend on how wide the machine adds.
    length = math.sqrt(math.fsum(value * value for value in values))
    return [value / length for value in values] if length else values
