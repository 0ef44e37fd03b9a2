"""Memory planning: the size of the KV cache and the longest sequence, from the options and the free memory."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from hotseat.core.kv_layout import KvLayout
from hotseat.errors import ConfigError

__all__ = ["Capacity", "asked_length", "parse_bytes", "parse_length", "plan_capacity"]

logger = logging.getLogger(__name__)

# The share of free memory that the KV cache takes without an option: the machine has other things to do.
DEFAULT_MEMORY_SHARE = 0.25

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BINARY_UNITS = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """``num_kv_blocks`` blocks for sequences of up to ``max_model_len`` tokens."""

    max_model_len: int
    num_kv_blocks: int


def parse_bytes(name: str, value: int | str) -> int:
    """Read a size such as ``1073741824``, ``512MB`` (decimal) or ``1GiB`` (binary).

    Raises:
        ConfigError: it is no size, or not above zero.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", str(value).lower())
    size = int(float(match[1]) * (_UNITS | _BINARY_UNITS)[match[2] or ""]) if match else 0
    if size <= 0:
        raise ConfigError(f"{name} must be a size such as 1GiB or 512MB, not {value!r}")
    return size


def parse_length(name: str, value: int | str) -> int:
    """Read a number of tokens such as ``8192`` or ``8k`` (8192: lengths are counted in 1024s).

    Raises:
        ConfigError: it is no length, or below one.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([km])?\s*", str(value).lower())
    length = int(float(match[1]) * {"": 1, "k": 2**10, "m": 2**20}[match[2] or ""]) if match else 0
    if length < 1:
        raise ConfigError(f"{name} must be a number of tokens such as 8192 or 8k, not {value!r}")
    return length


def asked_length(max_model_len: int | str | None) -> int | None:
    """Return the longest sequence that an option asks for; ``None``: as the model and the memory allow."""
    return None if max_model_len in (None, "auto") else parse_length("max_model_len", max_model_len or 0)


def plan_capacity(
    *,
    model_max_len: int,
    max_model_len: int | str | None,
    num_kv_blocks: int | None,
    kv_cache_memory_bytes: int | str | None,
    block_size: int,
    bytes_per_block: int,
    max_num_seqs: int,
    memory_bytes: int,
    layout: KvLayout | None = None,
    max_chunk: int = 1,
) -> Capacity:
    """Work out the capacity. ``memory_bytes`` is what is free; nothing given takes a quarter of it at most.

    ``layout`` says how many blocks a sequence takes that is computed in chunks of ``max_chunk`` tokens.

    Raises:
        ConfigError: a value is out of range, or the KV cache would not hold a single block.
    """
    asked_len = asked_length(max_model_len)
    if asked_len is not None and asked_len > model_max_len:
        raise ConfigError(f"max_model_len is {asked_len}, but the model was made for at most {model_max_len} tokens")
    length = asked_len or model_max_len
    layout = layout or KvLayout()
    wanted_blocks = max_num_seqs * layout.num_blocks(length, block_size, max_chunk)
    if num_kv_blocks is not None:
        blocks, source = num_kv_blocks, f"num_kv_blocks {num_kv_blocks}"
    elif kv_cache_memory_bytes is not None:
        blocks = parse_bytes("kv_cache_memory_bytes", kv_cache_memory_bytes) // bytes_per_block
        source = f"kv_cache_memory_bytes {kv_cache_memory_bytes}"
    else:
        blocks = min(wanted_blocks, int(memory_bytes * DEFAULT_MEMORY_SHARE) // bytes_per_block)
        source = f"a quarter of the {memory_bytes / 2**20:.0f} MiB of free memory"
    if blocks * bytes_per_block > memory_bytes:
        raise ConfigError(
            f"{source} is a KV cache of {blocks * bytes_per_block / 2**20:.0f} MiB, "
            f"but {memory_bytes / 2**20:.0f} MiB of memory are free"
        )
    cache_len = layout.max_tokens(blocks, block_size, max_chunk)
    if cache_len < 1:
        needed = bytes_per_block * layout.num_blocks(1, block_size, max_chunk)
        raise ConfigError(f"{source} holds no block of the KV cache: one takes {needed} bytes")
    return Capacity(max_model_len=_fitting_length(length, asked_len, cache_len, source), num_kv_blocks=blocks)


def _fitting_length(length: int, asked_len: int | None, cache_len: int, source: str) -> int:
    """Return ``length``, or what fits into the cache without an option."""
    if length <= cache_len:
        return length
    if asked_len is None:
        logger.info("sequences may have %d tokens (the model: %d), as %s holds no more", cache_len, length, source)
        return cache_len
    logger.warning(
        "max_model_len is %d, but %s holds %d tokens: longer requests are refused", length, source, cache_len
    )
    return length
