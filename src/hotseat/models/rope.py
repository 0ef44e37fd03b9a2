"""Rotary embeddings: from a model's rope parameters to one inverse frequency per pair of dimensions.

The parameters are named as in a Hugging Face config, for GGUF files too. The arithmetic is float32 in transformers'
order of operations, so that the frequencies are the same numbers (in a few cases the next float32).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hotseat.errors import ModelError, UnsupportedModelError
from hotseat.models.spec import RopeSpec

__all__ = ["SUPPORTED_ROPE_TYPES", "pad_rope", "rope_spec"]

SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3", "yarn")

# Beyond these a file is not to be believed.
_MAX_HEAD_DIM = 4096
_MAX_NUMBER = 1e15

RopeParameters: TypeAlias = Mapping[str, Any]
Frequencies: TypeAlias = npt.NDArray[np.float32]  # [head_dim / 2], radians per position


@np.errstate(all="ignore")  # a hostile number may overflow on the way: the result is checked to be finite
def rope_spec(
    parameters: RopeParameters, *, head_dim: int, theta: float, factors: npt.NDArray[np.float32] | None = None
) -> RopeSpec:
    """Return the inverse frequencies for ``parameters`` (``rope_type`` and what that type needs).

    ``factors`` divide the frequencies one by one, as GGUF's ``rope_freqs.weight`` does.
    """
    rope_type = parameters.get("rope_type", "default")
    if rope_type not in SUPPORTED_ROPE_TYPES:
        supported = ", ".join(SUPPORTED_ROPE_TYPES)
        raise UnsupportedModelError(f"rope scaling {rope_type!r} is not supported; supported are: {supported}")
    if head_dim % 2 or not 2 <= head_dim <= _MAX_HEAD_DIM:
        raise ModelError(f"rotary embeddings need an even head size of at most {_MAX_HEAD_DIM}, not {head_dim}")
    if not 1 < theta < _MAX_NUMBER:
        raise ModelError(f"rope_theta must be a sensible number above 1, not {theta}")
    attention_factor = 1.0
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    periods = (theta ** exponents.astype(np.float64)).astype(np.float32)  # a power in float32 errs by several units
    frequencies = np.float32(1) / periods
    if rope_type == "linear":
        frequencies = frequencies / np.float32(_number(parameters, "factor"))
    elif rope_type == "llama3":
        frequencies = _llama3(frequencies, parameters)
    elif rope_type == "yarn":
        frequencies = _yarn(periods, parameters, theta)
        attention_factor = _yarn_attention_factor(parameters)
    elif parameters.get("attention_factor") is not None:
        attention_factor = _number(parameters, "attention_factor")
    if factors is not None:
        frequencies = frequencies / factors
    if not np.isfinite(frequencies).all():
        raise ModelError(f"the rope frequencies are not finite: {frequencies.tolist()}")
    return RopeSpec(inverse_frequencies=tuple(frequencies.tolist()), attention_factor=attention_factor)


def pad_rope(rope: RopeSpec, head_dim: int, rotary_dim: int) -> RopeSpec:
    """Add pairs that pass through unrotated: those of the dimensions beyond ``rotary_dim``."""
    rest = (0.0,) * ((head_dim - rotary_dim) // 2)
    short = rope.short + rest if rope.short else ()
    return replace(rope, inverse_frequencies=rope.inverse_frequencies + rest, short=short)


def _number(parameters: RopeParameters, name: str, default: float | None = None) -> float:
    value = parameters.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _MAX_NUMBER:
        rope_type = parameters.get("rope_type")
        raise ModelError(f"rope scaling {rope_type!r} needs a positive number as {name!r}, not {value!r}")
    return value


def _llama3(frequencies: Frequencies, parameters: RopeParameters) -> Frequencies:
    """Slow the long wavelengths down by ``factor``, keep the short ones, blend between (Llama 3.1)."""
    factor = _number(parameters, "factor")
    low, high = _number(parameters, "low_freq_factor"), _number(parameters, "high_freq_factor")
    context = _number(parameters, "original_max_position_embeddings")
    if high <= low:
        raise ModelError(f"rope scaling 'llama3' needs high_freq_factor {high} above low_freq_factor {low}")
    wavelengths = 1 / frequencies * np.float32(2 * math.pi)  # PyTorch divides a number by a tensor in this way
    scaled = np.where(wavelengths > context / low, frequencies / np.float32(factor), frequencies)
    smooth = (1 / wavelengths * np.float32(context) - np.float32(low)) / np.float32(high - low)
    blended = (1 - smooth) * scaled / np.float32(factor) + smooth * scaled
    is_between = (wavelengths >= context / high) & (wavelengths <= context / low)
    return np.where(is_between, blended, scaled)


def _yarn(periods: Frequencies, parameters: RopeParameters, theta: float) -> Frequencies:
    """Interpolate slow dimensions, keep fast ones, ramp between (YaRN, arXiv:2309.00071, section 3.2)."""
    factor = _number(parameters, "factor")
    context = _number(parameters, "original_max_position_embeddings")
    head_dim = 2 * len(periods)

    def dimension_of(num_rotations: float) -> float:
        return head_dim * math.log(context / (num_rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = dimension_of(_number(parameters, "beta_fast", 32))
    high = dimension_of(_number(parameters, "beta_slow", 1))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # no division by zero
    ramp = (np.arange(len(periods), dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    kept = 1 - np.clip(ramp, np.float32(0), np.float32(1))
    frequencies: Frequencies = 1 / (np.float32(factor) * periods) * (1 - kept) + 1 / periods * kept
    return frequencies


def _yarn_attention_factor(parameters: RopeParameters) -> float:
    if parameters.get("attention_factor") is not None:
        return float(_number(parameters, "attention_factor"))
    factor = _number(parameters, "factor")
    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        return _mscale(factor, _number(parameters, "mscale")) / _mscale(factor, _number(parameters, "mscale_all_dim"))
    return _mscale(factor, 1.0)


def _mscale(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
