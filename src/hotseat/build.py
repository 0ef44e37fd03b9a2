"""The composition root: turn options into objects and wire them. The only place that knows all rooms behind the API.

Must not know: HTTP, the command line, the environment.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from hotseat import capacity, options
from hotseat.core.config import SchedulerConfig
from hotseat.core.policy import Policy
from hotseat.core.scheduler import Scheduler
from hotseat.engine import Engine, EngineConfig, EventSink, MonotonicClock, StepLoop, warm_up
from hotseat.errors import ConfigError
from hotseat.generation import ModelLimits
from hotseat.models import (
    DEFAULT_MODEL,
    DecoderSpec,
    LoadedModel,
    Weights,
    default_cache_dir,
    ensure_model,
    slot_shapes,
)
from hotseat.models import load as load_model
from hotseat.runner.config import RunnerConfig, kv_bytes_per_block, resolve_dtype, resolve_kv_cache_dtype
from hotseat.runner.determinism import ModelRunner
from hotseat.text import ChatTemplate, Tokenizer

__all__ = [
    "ENGINE_OPTIONS",
    "Assembly",
    "CapacityOptions",
    "EngineArgs",
    "ModelOptions",
    "assemble",
    "default_cache_dir",
]

logger = logging.getLogger(__name__)

_BYTES_PER_WEIGHT = {"int8": 1.07, "bf16": 2.0, "fp32": 4.0, "gguf": 1.25}  # with scales; gguf at most
_SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Which model, from where, and how it is spoken to."""

    model: str | None = field(
        default=None, metadata={"help": "GGUF file, Hugging Face directory or hub id (default: SmolLM2-135M-Instruct)"}
    )
    revision: str | None = field(default=None, metadata={"help": "branch, tag or commit on the hub"})
    hf_token: str | None = field(default=None, metadata={"help": "token for the hub (default: HF_TOKEN, or the login)"})
    offline: bool = field(default=False, metadata={"help": "use what is cached and fetch nothing"})
    cache_dir: Path | None = field(default=None, metadata={"help": "where the default model is kept"})
    chat_template: str | None = field(
        default=None, metadata={"help": "Jinja file or text instead of the model's own chat template"}
    )
    generation_config: str = field(
        default="auto",
        metadata={
            "help": "defaults for sampling fields that a request leaves out; auto: the model's own, vllm: neutral ones",
            "choices": ["auto", "vllm"],
        },
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
        if self.runner not in ("auto", "native", "reference"):
            raise ConfigError(f"runner must be auto, native or reference, not {self.runner!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityOptions:
    """How long sequences may be and how large the KV cache is."""

    max_model_len: int | str | None = field(
        default=None,
        metadata={"help": "longest sequence, prompt and output together: 8192 or 8k (default: what the model can)"},
    )
    kv_cache_memory_bytes: int | str | None = field(
        default=None,
        metadata={
            "help": "size of the KV cache: 1GiB, 512MB … (default: what all seats need, but a quarter of free memory)"
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
    ("engine", EngineConfig),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArgs:
    """All options of an engine: each is a field of one of the rooms' configurations."""

    model: ModelOptions
    capacity: CapacityOptions
    engine: EngineConfig
    values: Mapping[str, Any]  # checked; what is not here has its default

    @classmethod
    def from_values(cls, values: Mapping[str, object], where: str = "") -> EngineArgs:
        """Check ``values`` by name.

        Raises:
            ConfigError: a name is unknown or a value is wrong; ``where`` says in the message whose it is.
        """
        checked = options.from_keywords(ENGINE_OPTIONS, values, where)
        return cls(
            model=options.build(ModelOptions, checked),
            capacity=options.build(CapacityOptions, checked),
            engine=options.build(EngineConfig, checked),
            values=checked,
        )

    def room_configs(self, spec: DecoderSpec, memory_bytes: int) -> tuple[SchedulerConfig, RunnerConfig]:
        """Return the configurations of scheduler and runner for a model, which agree with each other."""
        # One block and the model's length stand in until the capacity is known; everything else is checked here.
        provisional = options.build(
            SchedulerConfig,
            dict(self.values) | {"max_num_batched_tokens": self._max_num_batched_tokens()},
            max_model_len=spec.max_position_embeddings,
            num_kv_blocks=1,
        )
        dtype, kv_dtype = self.values.get("dtype", "auto"), self.values.get("kv_cache_dtype", "auto")
        plan = capacity.plan(
            model_max_len=spec.max_position_embeddings,
            max_model_len=self.capacity.max_model_len,
            num_kv_blocks=self.capacity.num_kv_blocks,
            kv_cache_memory_bytes=self.capacity.kv_cache_memory_bytes,
            block_size=provisional.block_size,
            bytes_per_block=kv_bytes_per_block(spec, resolve_kv_cache_dtype(dtype, kv_dtype), provisional.block_size),
            max_num_seqs=provisional.max_num_seqs,
            memory_bytes=max(0, memory_bytes - _weight_bytes(spec, dtype)),
        )
        computed: dict[str, Any] = {
            "max_model_len": plan.max_model_len,
            "num_kv_blocks": plan.num_kv_blocks,
            "max_num_batched_tokens": provisional.max_num_batched_tokens,
        }
        return (
            options.build(SchedulerConfig, self.values, **computed),
            options.build(
                RunnerConfig,
                self.values,
                block_size=provisional.block_size,
                max_num_seqs=provisional.max_num_seqs,
                **computed,
            ),
        )

    def _max_num_batched_tokens(self) -> int:
        """Return the token budget; one that nobody chose grows with the seats, each of which needs a token."""
        seats = self.values.get("max_num_seqs", ENGINE_OPTIONS["max_num_seqs"].default)
        default = max(ENGINE_OPTIONS["max_num_batched_tokens"].default, seats)
        budget: int = self.values.get("max_num_batched_tokens", default)
        return budget


def _weight_bytes(spec: DecoderSpec, dtype: str) -> int:
    num_weights = sum(math.prod(shape) for shape in slot_shapes(spec).values())
    return int(num_weights * _BYTES_PER_WEIGHT[resolve_dtype(dtype)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """Everything that runs one model, made and wired, but not started."""

    args: EngineArgs
    model: LoadedModel
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    scheduler_config: SchedulerConfig
    runner_config: RunnerConfig
    scheduler: Scheduler
    runner: ModelRunner

    @property
    def eos_token_ids(self) -> frozenset[int]:
        ids = self.model.generation_config.eos_token_ids
        if not ids and self.tokenizer.eos_token_id is not None:
            ids = (self.tokenizer.eos_token_id,)
        return frozenset(ids)

    @property
    def sampling_defaults(self) -> dict[str, float]:
        """What sampling fields are when a request leaves them out, by ``SamplingParams``' names."""
        if self.args.model.generation_config == "vllm":
            return {}
        own = self.model.generation_config
        return {name: value for name in _SAMPLING_DEFAULTS if (value := getattr(own, name)) is not None}

    @property
    def limits(self) -> ModelLimits:
        """What the model decides about its requests."""
        return ModelLimits(
            max_model_len=self.scheduler_config.max_model_len,
            vocab_size=self.model.spec.vocab_size,
            eos_token_ids=self.eos_token_ids,
        )

    def make_step_loop(self) -> StepLoop:
        """Return the loop for a caller that runs the steps itself."""
        self._warm_up()
        return StepLoop(self.scheduler, self.runner, clock=MonotonicClock())

    def make_engine(self, sinks: Sequence[EventSink] = (), recorders: Sequence[EventSink] = ()) -> Engine:
        """Return the engine, whose own thread runs the steps once it is started.

        ``recorders`` are told of all steps from the scheduler's first on, ``sinks`` of what clients asked for.
        """
        self._warm_up(recorders)
        config = self.args.engine
        return Engine(
            self.scheduler,
            self.runner,
            sinks=[*sinks, *recorders],
            stall_timeout_s=config.stall_timeout_s,
            num_step_records=config.num_step_records,
        )

    def _warm_up(self, recorders: Sequence[EventSink] = ()) -> None:
        """Measure steps when the scheduler has a latency target to keep."""
        if self.scheduler_config.target_itl_ms is not None:
            loop = StepLoop(self.scheduler, self.runner, clock=MonotonicClock(), sinks=recorders)
            warm_up(loop, self.scheduler_config)


def assemble(args: EngineArgs) -> Assembly:
    """Load the model and make what runs it.

    Raises:
        ModelError: there is no such model, or it cannot be run.
        ConfigError: an option does not fit the model or the machine.
    """
    model = _load(args.model)
    scheduler_config, runner_config = args.room_configs(model.spec, capacity.available_memory_bytes())
    tokenizer = _tokenizer(model)
    return Assembly(
        args=args,
        model=model,
        tokenizer=tokenizer,
        chat_template=_chat_template(model, tokenizer, args.model.chat_template),
        scheduler_config=scheduler_config,
        runner_config=runner_config,
        scheduler=Scheduler(scheduler_config, make_policy(scheduler_config)),
        runner=make_runner(args.model.runner, model.spec, model.weights, runner_config),
    )


def fetch(chosen: ModelOptions, *, show_progress: bool = False) -> Path:
    """Make sure that a model is on this machine, and return where.

    Raises:
        ModelError: there is no such model, or it cannot be run.
    """
    if chosen.model is None:
        cache_dir = chosen.cache_dir or default_cache_dir({})
        return ensure_model(DEFAULT_MODEL, cache_dir, offline=chosen.offline, show_progress=show_progress)
    return _load(chosen).path


def _load(chosen: ModelOptions) -> LoadedModel:
    return load_model(
        chosen.model,
        cache_dir=chosen.cache_dir,
        revision=chosen.revision,
        token=chosen.hf_token,
        offline=chosen.offline,
    )


def _tokenizer(model: LoadedModel) -> Tokenizer:
    source = model.tokenizer_source
    if source.kind == "gguf":
        return Tokenizer.from_gguf(source.metadata)
    return Tokenizer.from_file(source.path, source.config)


def _chat_template(model: LoadedModel, tokenizer: Tokenizer, chosen: str | None) -> ChatTemplate:
    source = model.chat_template
    if chosen is not None:
        try:
            source = Path(chosen).read_text(encoding="utf-8") if "{" not in chosen else chosen
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"chat_template {chosen!r} cannot be read: {error}") from None
    return ChatTemplate(source, special_tokens=tokenizer.special_tokens)


def make_policy(config: SchedulerConfig) -> Policy | None:
    """Import the user's policy when one is named as ``module:Class``; the scheduler makes its own ones.

    Raises:
        ConfigError: there is no such module or class.
    """
    module_name, colon, class_name = config.scheduling_policy.partition(":")
    if not colon:
        return None
    try:
        policy: Policy = getattr(import_module(module_name), class_name)()
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(f"scheduling_policy {config.scheduling_policy!r} cannot be used: {error}") from error
    for name in ("key", "may_preempt"):
        if not callable(getattr(policy, name, None)):
            raise ConfigError(f"scheduling_policy {config.scheduling_policy!r} has no method {name}")
    return policy


def make_runner(kind: str, spec: DecoderSpec, weights: Weights, config: RunnerConfig) -> ModelRunner:
    """Return the native runner, or NumPy's when it is asked for or there is no native one.

    Raises:
        ConfigError: ``kind`` is ``native`` and the extension is not there.
    """
    if kind != "reference":
        try:
            from hotseat.runner.native import NativeRunner

            return NativeRunner(spec, weights, config)
        except ImportError as error:
            if kind == "native":
                raise ConfigError(f"runner is native, but the extension cannot be loaded: {error}") from error
            logger.warning(
                "the native extension cannot be loaded (%s): computing with NumPy, which is many times slower; "
                "reinstall on a machine with a C++ compiler (in a source tree: make native)",
                error,
            )
    from hotseat.runner.reference import ReferenceRunner

    return ReferenceRunner(spec, weights, config)
