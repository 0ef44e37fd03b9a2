"""The choice of ``dtype auto`` for a model; docs/decisions/007 says why."""

from __future__ import annotations

import logging
import math

from hotseat.models.dequantize import block_layout
from hotseat.models.spec import DecoderSpec, slot_shapes
from hotseat.models.weights import Weights
from hotseat.runner.config import WeightDtype
from hotseat.runner.groups import matrix_slots

__all__ = ["choose_dtype", "stored_bits"]

logger = logging.getLogger(__name__)

_MOST_BITS = 7.0  # beyond, int8 reads hardly more bytes
_SMALL_BYTES = 512 << 20  # weights in int8 that are read in so short a time that batches matter more
_PACKED_SHARE = 1.04  # of a file's bytes: the integers of two-level scales take a byte each


def stored_bits(spec: DecoderSpec, weights: Weights) -> float:
    """Return the mean bits a weight, as it is stored, of the matrices that are multiplied."""
    num_bytes, num_weights = 0, 0.0
    for slot in matrix_slots(spec, weights):
        tensor = weights[slot]
        values, block_bytes = block_layout(tensor.kind)
        num_bytes += tensor.data.nbytes
        num_weights += tensor.data.nbytes / block_bytes * values
    return num_bytes * 8 / num_weights


def choose_dtype(spec: DecoderSpec, weights: Weights, free_bytes: float = math.inf) -> WeightDtype:
    """Return gguf for weights of few bits that are many, or too many for memory in int8, and else int8.

    The choice is the same on all instruction sets, as the bits of answers are. One line of the log says it.
    """
    bits = stored_bits(spec, weights)
    num_weights = sum(math.prod(shape) for shape in slot_shapes(spec).values())
    int8_bytes, gguf_bytes = int(num_weights * 1.07), int(num_weights * bits / 8 * _PACKED_SHARE)
    is_few = bits <= _MOST_BITS
    does_not_fit = is_few and int8_bytes > free_bytes
    chosen: WeightDtype = "gguf" if is_few and (int8_bytes >= _SMALL_BYTES or does_not_fit) else "int8"
    logger.info(
        "dtype auto: %s, about %.0f MB of weights (%s would take %.0f MB; the file has %.1f bits a weight%s)",
        chosen,
        (gguf_bytes if chosen == "gguf" else int8_bytes) / 1e6,
        "int8" if chosen == "gguf" else "gguf",
        (int8_bytes if chosen == "gguf" else max(gguf_bytes, 0)) / 1e6,
        bits,
        f", {free_bytes / 1e6:.0f} MB are free" if does_not_fit else "",
    )
    return chosen
