"""Options of a runner, and how many bytes a block of its KV cache takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast

from hotseat.core.kv_layout import KvLayout
from hotseat.errors import ConfigError
from hotseat.models.spec import DecoderSpec

__all__ = [
    "DTYPES",
    "ISAS",
    "KV_CACHE_DTYPES",
    "KvDtype",
    "RunnerConfig",
    "WeightDtype",
    "kv_bytes_per_block",
    "kv_layout_of",
    "kv_tables",
    "resolve_dtype",
    "resolve_kv_cache_dtype",
]

WeightDtype: TypeAlias = Literal["int8", "bf16", "fp32", "gguf"]
KvDtype: TypeAlias = Literal["bf16", "fp32"]

DTYPES = ("auto", "int8", "bf16", "fp32", "gguf")
KV_CACHE_DTYPES = ("auto", "bf16", "fp32")
DTYPE_ALIASES = {"bfloat16": "bf16", "float32": "fp32", "float": "fp32"}  # vLLM's and PyTorch's words
ISAS = ("auto", "scalar", "avx2", "avx512", "avx512bf16")
MAX_BLOCK_SIZE = 1024
_KV_ITEM_BYTES = {"bf16": 2, "fp32": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """Say in which precision, with how many threads and for what largest batch a runner computes.

    Raises:
        ConfigError: a value is out of range; the message names the option and its value.
    """

    dtype: str = field(
        default="auto",
        metadata={
            "help": "precision of the weights and of what they are multiplied with; auto is gguf "
            "for large quantised GGUF files, else int8 (8-bit weights and activations); fp32 is exact, gguf keeps a "
            "GGUF file's bits (fastest alone)",
            "choices": DTYPES,
            "aliases": DTYPE_ALIASES,
        },
    )
    kv_cache_dtype: str = field(
        default="auto",
        metadata={
            "help": "precision of cached keys and values; auto is fp32 when dtype is fp32, else bf16",
            "choices": KV_CACHE_DTYPES,
            "aliases": DTYPE_ALIASES,
        },
    )
    threads: int | None = field(
        default=None,
        metadata={"help": "threads that compute a step; by default one for each physical core that may be used"},
    )
    isa: str = field(
        default="auto",
        metadata={"help": "instruction set of the kernels; auto is the best that the machine has", "choices": ISAS},
    )
    block_size: int = field(default=16, metadata={"help": "tokens in a block of the KV cache, a power of two"})
    num_kv_blocks: int = field(metadata={"help": "blocks in the KV cache"})
    max_num_seqs: int = field(default=64, metadata={"help": "seats: requests that may run at the same time"})
    max_num_batched_tokens: int = field(default=512, metadata={"help": "tokens that one step may compute"})
    max_model_len: int = field(metadata={"help": "longest sequence, prompt and output together"})
    max_num_drafts: int = field(default=0, metadata={"help": "tokens that one step may verify", "is_option": False})
    kv_layout: KvLayout = field(
        default=KvLayout(), metadata={"help": "blocks of each group of layers, as the scheduler's", "is_option": False}
    )

    def __post_init__(self) -> None:
        _check_choice("dtype", self.dtype, DTYPES)
        _check_choice("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        _check_choice("isa", self.isa, ISAS)
        if self.threads is not None:
            _check_positive("threads", self.threads)
        for name in ("block_size", "num_kv_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            _check_positive(name, getattr(self, name))
        if self.max_num_drafts < 0:
            raise ConfigError(f"max_num_drafts must not be negative, not {self.max_num_drafts}")
        if self.block_size > MAX_BLOCK_SIZE or self.block_size & (self.block_size - 1):
            raise ConfigError(f"block_size must be a power of two up to {MAX_BLOCK_SIZE}, not {self.block_size}")

    @property
    def weight_dtype(self) -> WeightDtype:
        """``dtype`` with ``auto`` resolved."""
        return resolve_dtype(self.dtype)

    @property
    def kv_dtype(self) -> KvDtype:
        """``kv_cache_dtype`` with ``auto`` resolved."""
        return resolve_kv_cache_dtype(self.dtype, self.kv_cache_dtype)

    @property
    def max_num_samples(self) -> int:
        """Rows that one step may sample: one for each seat, and one for each draft."""
        return self.max_num_seqs + self.max_num_drafts

    @property
    def max_blocks_per_seq(self) -> int:
        """Blocks that the longest sequence takes: the width of a block table."""
        return -(-self.max_model_len // self.block_size)


def resolve_dtype(dtype: str) -> WeightDtype:
    """Return the precision that ``dtype`` (maybe ``auto``) means."""
    _check_choice("dtype", dtype, DTYPES)
    return "int8" if dtype == "auto" else cast(WeightDtype, dtype)


def resolve_kv_cache_dtype(dtype: str, kv_cache_dtype: str) -> KvDtype:
    """Return the precision that ``kv_cache_dtype`` (maybe ``auto``) means beside ``dtype``."""
    _check_choice("kv_cache_dtype", kv_cache_dtype, KV_CACHE_DTYPES)
    if kv_cache_dtype == "auto":
        return "fp32" if resolve_dtype(dtype) == "fp32" else "bf16"
    return cast(KvDtype, kv_cache_dtype)


def kv_layout_of(spec: DecoderSpec, max_model_len: int) -> KvLayout:
    """Return how the layers share the KV cache: those with a window apart, where that saves anything.

    Where all have one, the first layer keeps its blocks all the same: the prefix cache needs a group that has them all.
    The widest window holds for the whole group.
    """
    window = max((layer.window for layer in spec.layers if layer.window is not None), default=max_model_len)
    num_windowed = len(_windowed_layers(spec))
    if window >= max_model_len or not num_windowed:
        return KvLayout()
    num_full = spec.num_layers - num_windowed
    layers_per_block = math.gcd(num_full, num_windowed)
    return KvLayout(num_full // layers_per_block, num_windowed // layers_per_block, window)


def kv_tables(spec: DecoderSpec, layout: KvLayout) -> list[int]:
    """Return the block table of each layer: those of the first group come first, each for as many layers as a block."""
    if not layout.num_window:
        return [0] * spec.num_layers
    layers_per_block = spec.num_layers // (layout.num_full + layout.num_window)
    windowed = _windowed_layers(spec)
    in_order = [index for index in range(spec.num_layers) if index not in windowed] + windowed
    tables = [0] * spec.num_layers
    for place, index in enumerate(in_order):
        tables[index] = place // layers_per_block
    return tables


def kv_bytes_per_block(
    spec: DecoderSpec, kv_cache_dtype: KvDtype, block_size: int, layout: KvLayout | None = None
) -> int:
    """Return the bytes of a block of the pool: keys and values of ``block_size`` tokens in its layers."""
    layout = layout or KvLayout()
    num_layers = spec.num_layers // (layout.num_full + layout.num_window)
    items_per_token = 2 * num_layers * spec.num_kv_heads * spec.head_dim
    return items_per_token * block_size * _KV_ITEM_BYTES[kv_cache_dtype]


def _windowed_layers(spec: DecoderSpec) -> list[int]:
    """Return the layers of the second group of the KV cache."""
    windowed = [index for index, layer in enumerate(spec.layers) if layer.window is not None]
    return windowed[1:] if len(windowed) == spec.num_layers else windowed


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {value!r}")


def _check_positive(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} must be a positive integer, not {value!r}")
