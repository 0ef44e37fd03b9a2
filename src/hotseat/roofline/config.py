"""Options of ``hotseat bench kernels`` and ``hotseat bench step``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hotseat.errors import ConfigError
from hotseat.options.lists import counts, names
from hotseat.runner.config import DTYPES, ISAS, KV_CACHE_DTYPES

__all__ = ["KernelBenchOptions", "StepBenchOptions"]

STATISTICS = ("median", "best")
WEIGHT_DTYPES = tuple(name for name in DTYPES if name != "auto")
REAL_ISAS = tuple(name for name in ISAS if name != "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineOptions:
    """Options of both commands.

    Raises:
        ConfigError: a value is wrong; the message names the option.
    """

    model: str | None = field(
        default=None, metadata={"help": "GGUF file, Hugging Face directory or hub id (default: SmolLM2-135M-Instruct)"}
    )
    cache_dir: Path | None = field(default=None, metadata={"help": "where the default model is kept"})
    threads: int | None = field(
        default=None, metadata={"help": "threads that compute (default: one for each physical core that may be used)"}
    )
    pin: bool = field(
        default=True,
        metadata={"help": "keep each thread on a CPU of its own, so that other work on the machine disturbs less"},
    )
    statistic: str = field(
        default="median",
        metadata={
            "help": "which repetition is shown: median, or best for a machine that has other work to do; "
            "the JSON file has them all",
            "choices": STATISTICS,
        },
    )
    json: Path | None = field(default=None, metadata={"help": "write all results to this file"})

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads must be at least 1, not {self.threads}")
        if self.statistic not in STATISTICS:
            raise ConfigError(f"statistic must be one of {', '.join(STATISTICS)}, not {self.statistic!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBenchOptions(RooflineOptions):
    """Options of ``hotseat bench kernels``."""

    rows: str = field(default="1,2,4,8,16,32,64,256", metadata={"help": "numbers of rows that are multiplied"})
    contexts: str = field(default="128,1024,8192", metadata={"help": "positions that attention looks at"})
    streams: int = field(default=8, metadata={"help": "sequences that decode side by side, for attention"})
    queries: int = field(default=512, metadata={"help": "rows of a prefill, for attention"})
    dtype: str | None = field(
        default=None,
        metadata={"help": "precisions of the weights (default: all; gguf if the file has groups)"},
    )
    isa: str | None = field(
        default=None,
        metadata={"help": "instruction sets (default: all that the machine has, but scalar, which is slow)"},
    )
    num_rounds: int = field(default=15, metadata={"help": "times that each point is measured, in turns"})

    def __post_init__(self) -> None:
        # Slots give the class a second body, where a bare super() does not find its way.
        RooflineOptions.__post_init__(self)
        for name in ("streams", "queries", "num_rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        _ = self.row_counts, self.context_lens, self.dtypes, self.isas

    @property
    def row_counts(self) -> list[int]:
        return counts("rows", self.rows, may_be_empty=True)

    @property
    def context_lens(self) -> list[int]:
        return counts("contexts", self.contexts, may_be_empty=True)

    @property
    def dtypes(self) -> list[str] | None:
        return None if self.dtype is None else names("dtype", self.dtype, WEIGHT_DTYPES)

    @property
    def isas(self) -> list[str] | None:
        return None if self.isa is None else names("isa", self.isa, REAL_ISAS)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBenchOptions(RooflineOptions):
    """Options of ``hotseat bench step``."""

    batch: str = field(default="1,8,32", metadata={"help": "numbers of requests that decode side by side"})
    context: int = field(default=160, metadata={"help": "mean length of their sequences"})
    prefill: str = field(default="512", metadata={"help": "lengths of prompts that are computed alone"})
    dtype: str = field(default="auto", metadata={"help": "precisions of the weights"})
    kv_cache_dtype: str = field(
        default="auto",
        metadata={
            "help": "precision of keys and values; auto is fp32 beside fp32, else bf16",
            "choices": KV_CACHE_DTYPES,
        },
    )
    isa: str = field(default="auto", metadata={"help": "instruction set", "choices": ISAS})
    max_num_batched_tokens: int = field(default=512, metadata={"help": "tokens that one step computes at most"})
    temperature: float = field(default=0.0, metadata={"help": "sampling temperature"})
    step_cost: Path | None = field(
        default=None, metadata={"help": "learn what steps cost, and write it for `hotseat simulate --step-cost FILE`"}
    )
    num_steps: int = field(default=32, metadata={"help": "decode steps of a round"})
    num_rounds: int = field(default=5, metadata={"help": "times that each point is measured, in turns"})

    def __post_init__(self) -> None:
        RooflineOptions.__post_init__(self)
        for name in ("context", "max_num_batched_tokens", "num_steps", "num_rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature must not be negative, not {self.temperature!r}")
        if self.max_num_batched_tokens < max(self.batches, default=0):
            raise ConfigError(
                f"max_num_batched_tokens = {self.max_num_batched_tokens} is less than a batch of {max(self.batches)}"
            )
        _ = self.prefills, self.dtypes

    @property
    def batches(self) -> list[int]:
        return counts("batch", self.batch, may_be_empty=True)

    @property
    def prefills(self) -> list[int]:
        return counts("prefill", self.prefill, may_be_empty=True)

    @property
    def dtypes(self) -> list[str]:
        return names("dtype", self.dtype, DTYPES)
