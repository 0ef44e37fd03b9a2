"""The options of an engine, and the configurations of scheduler and runner that follow from them and a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hotseat import options
from hotseat.core.config import SchedulerConfig, default_token_budget
from hotseat.engine import EngineConfig
from hotseat.errors import ConfigError
from hotseat.models import LOAD_FORMATS, DecoderSpec, slot_shapes
from hotseat.runner.config import RunnerConfig, kv_bytes_per_block, kv_layout_of, resolve_dtype, resolve_kv_cache_dtype
from hotseat.speculation import SpeculationOptions, SpeculativeConfig
from hotseat.wiring.memory import asked_length, plan_capacity
from hotseat.wiring.vllm_options import VllmOptions

__all__ = ["ENGINE_OPTIONS", "CapacityOptions", "EngineArgs", "ModelOptions", "weight_bytes"]

_BYTES_PER_WEIGHT = {"int8": 1.07, "bf16": 2.0, "fp32": 4.0, "gguf": 1.07}  # with scales; gguf at most


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The model, its source, its chat template and its runner."""

    model: str | None = field(
        default=None, metadata={"help": "GGUF file, Hugging Face directory or hub id (default: SmolLM2-135M-Instruct)"}
    )
    revision: str | None = field(default=None, metadata={"help": "branch, tag or commit on the hub"})
    hf_token: str | None = field(default=None, metadata={"help": "token for the hub (default: HF_TOKEN, or the login)"})
    offline: bool = field(default=False, metadata={"help": "use what is cached and fetch nothing"})
    load_format: str = field(
        default="auto",
        metadata={
            "help": "how weights come into memory; auto: from the mapped file, of which nothing is used afterwards, "
            "mmap: the embedding stays in the mapped file, which then must not be written to, "
            "read: files are read as a whole, for network file systems",
            "choices": LOAD_FORMATS,
        },
    )
    cache_dir: Path | None = field(default=None, metadata={"help": "where the default model is kept"})
    chat_template: str | None = field(
        default=None, metadata={"help": "Jinja file or text instead of the model's own chat template"}
    )
    plain_message_contents: bool = field(
        default=False, metadata={"help": "control tokens that messages spell out stay text, and end or open no turns"}
    )
    generation_config: str = field(
        default="auto",
        metadata={
            "help": "defaults for sampling fields that a request leaves out; auto: the model's own, vllm: neutral ones",
            "choices": ["auto", "vllm"],
        },
    )
    default_max_tokens: int | None = field(
        default=None,
        metadata={"help": "tokens of an answer whose request names no limit; none: what the context holds"},
    )
    seed: int | None = field(
        default=None, metadata={"help": "gives requests without a seed theirs, in their order; none: each is drawn"}
    )
    runner: str = field(
        default="auto",
        metadata={
            "help": "what computes: native (C++), reference (NumPy: exact, slow); auto is native when it was built",
            "choices": ["auto", "native", "reference"],
        },
    )

    def __post_init__(self) -> None:
        if self.generation_config not in ("auto", "vllm"):
            raise ConfigError(f"generation_config must be auto or vllm, not {self.generation_config!r}")
        if self.load_format not in LOAD_FORMATS:
            raise ConfigError(f"load_format must be one of {', '.join(LOAD_FORMATS)}, not {self.load_format!r}")
        if self.runner not in ("auto", "native", "reference"):
            raise ConfigError(f"runner must be auto, native or reference, not {self.runner!r}")
        if self.default_max_tokens is not None and self.default_max_tokens < 1:
            raise ConfigError(f"default_max_tokens must be at least 1, not {self.default_max_tokens}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityOptions:
    """The longest sequence and the size of the KV cache."""

    max_model_len: int | str | None = field(
        default=None,
        metadata={"help": "longest sequence, prompt and output together: 8192 or 8k (default: what the model can)"},
    )
    kv_cache_memory_bytes: int | str | None = field(
        default=None,
        metadata={
            "help": "size of the KV cache: 1GiB … (default: what all seats need, at most a quarter of free memory)"
        },
    )
    num_kv_blocks: int | None = field(
        default=None, metadata={"help": "blocks in the KV cache, instead of a size in bytes"}
    )

    def __post_init__(self) -> None:
        if self.num_kv_blocks is not None and self.num_kv_blocks < 1:
            raise ConfigError(f"num_kv_blocks must be at least 1, not {self.num_kv_blocks}")


ENGINE_OPTIONS = options.collect(
    ("model", ModelOptions),
    ("KV cache", CapacityOptions),
    ("scheduler", SchedulerConfig),
    ("runner", RunnerConfig),
    ("speculation", SpeculationOptions),
    ("engine", EngineConfig),
    ("vLLM", VllmOptions),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArgs:
    """All options of an engine: each is a field of one of the rooms' configurations."""

    model: ModelOptions
    capacity: CapacityOptions
    engine: EngineConfig
    speculation: SpeculativeConfig | None
    values: Mapping[str, Any]  # checked; what is not here has its default

    @classmethod
    def from_values(cls, values: Mapping[str, object], where: str = "") -> EngineArgs:
        """Check ``values`` by name.

        Raises:
            ConfigError: a name is unknown or a value is wrong; ``where`` says in the message whose it is.
        """
        checked = options.from_keywords(ENGINE_OPTIONS, values, where)
        options.build(VllmOptions, checked)  # refuses, or warns
        speculative = options.build(SpeculationOptions, checked).speculative_config
        return cls(
            model=options.build(ModelOptions, checked),
            capacity=options.build(CapacityOptions, checked),
            engine=options.build(EngineConfig, checked),
            speculation=None if speculative is None else SpeculativeConfig.from_values(speculative),
            values=checked,
        )

    def with_dtype(self, choose: Callable[[], str]) -> EngineArgs:
        """Return the options with a dtype in place of auto, which ``choose`` decides."""
        if self.values.get("dtype", "auto") != "auto":
            return self
        return replace(self, values={**self.values, "dtype": choose()})

    def provisional_configs(self, max_model_len: int = 1 << 20) -> SchedulerConfig:
        """Check the scheduler's and the runner's options while model and capacity are unknown.

        Raises:
            ConfigError: a value is wrong.
        """
        seats = self.values.get("max_num_seqs", ENGINE_OPTIONS["max_num_seqs"].default)
        budget = self.values.get("max_num_batched_tokens", default_token_budget(seats))
        values = dict(self.values) | {"max_num_batched_tokens": budget}
        config = options.build(SchedulerConfig, values, max_model_len=max_model_len, num_kv_blocks=1)
        options.build(RunnerConfig, values, max_model_len=max_model_len, num_kv_blocks=1)
        return config

    def room_configs(self, spec: DecoderSpec, memory_bytes: int) -> tuple[SchedulerConfig, RunnerConfig]:
        """Return the configurations of scheduler and runner for a model, which agree with each other."""
        # One block stands in until the capacity is known; everything else is checked here.
        provisional = self.provisional_configs(spec.max_position_embeddings)
        dtype, kv_dtype = self.values.get("dtype", "auto"), self.values.get("kv_cache_dtype", "auto")
        layout = kv_layout_of(spec, asked_length(self.capacity.max_model_len) or spec.max_position_embeddings)
        block_size, kv_dtype = provisional.block_size, resolve_kv_cache_dtype(dtype, kv_dtype)
        weights = weight_bytes(spec, dtype)
        if weights > memory_bytes and resolve_dtype(dtype) != "gguf":  # of which only a bound is known
            raise ConfigError(
                f"the weights take about {weights / 2**20:.0f} MiB as {resolve_dtype(dtype)}, but "
                f"{memory_bytes / 2**20:.0f} MiB of memory are free: choose a smaller dtype "
                "(int8, or gguf for a GGUF file) or model"
            )
        plan = plan_capacity(
            model_max_len=spec.max_position_embeddings,
            max_model_len=self.capacity.max_model_len,
            num_kv_blocks=self.capacity.num_kv_blocks,
            kv_cache_memory_bytes=self.capacity.kv_cache_memory_bytes,
            block_size=block_size,
            bytes_per_block=kv_bytes_per_block(spec, kv_dtype, block_size, layout),
            max_num_seqs=provisional.max_num_seqs,
            memory_bytes=max(0, memory_bytes - weights),
            layout=layout,
            max_chunk=provisional.max_chunk_tokens,
        )
        computed: dict[str, Any] = {
            "max_model_len": plan.max_model_len,
            "num_kv_blocks": plan.num_kv_blocks,
            "kv_layout": layout,
            "max_num_batched_tokens": provisional.max_num_batched_tokens,
        }
        return (
            options.build(SchedulerConfig, self.values, **computed),
            options.build(
                RunnerConfig,
                self.values,
                block_size=block_size,
                max_num_seqs=provisional.max_num_seqs,
                max_num_drafts=self.speculation.max_num_drafts(provisional.max_num_seqs) if self.speculation else 0,
                **computed,
            ),
        )


def weight_bytes(spec: DecoderSpec, dtype: str) -> int:
    """Return about how many bytes the weights take in memory in ``dtype``."""
    num_weights = sum(math.prod(shape) for shape in slot_shapes(spec).values())
    return int(num_weights * _BYTES_PER_WEIGHT[resolve_dtype(dtype)])
