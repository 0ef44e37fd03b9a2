"""From options to objects: model, tokenizer, scheduler, runner and engine, made and wired."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import cast

from hotseat.core.config import SchedulerConfig
from hotseat.core.events import EventSink
from hotseat.core.policy import METHODS, Policy
from hotseat.core.scheduler import Scheduler
from hotseat.engine import Engine, MonotonicClock, StepLoop, warm_up
from hotseat.errors import ConfigError
from hotseat.generation import ModelLimits
from hotseat.machine import free_memory
from hotseat.models import (
    DEFAULT_MODEL,
    DecoderSpec,
    LoadedModel,
    LoadFormat,
    Weights,
    default_cache_dir,
    ensure_model,
)
from hotseat.models import load as load_model
from hotseat.runner.config import RunnerConfig
from hotseat.runner.determinism import ModelRunner
from hotseat.runner.dtype_choice import choose_dtype
from hotseat.text import ChatTemplate, Tokenizer, turn_end_ids
from hotseat.wiring.engine_args import EngineArgs, ModelOptions

__all__ = ["EngineComponents", "fetch", "make_components", "make_policy", "make_runner", "read_tokenizer"]

logger = logging.getLogger(__name__)

_SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineComponents:
    """Everything that runs one model, made and wired, but not started."""

    args: EngineArgs
    model: LoadedModel
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    turn_end_ids: frozenset[int]
    scheduler_config: SchedulerConfig
    runner_config: RunnerConfig
    scheduler: Scheduler
    runner: ModelRunner

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The ids that end an answer: the model's list, and what its vocabulary and its chat template tell."""
        return self.turn_end_ids.union(self.model.generation_config.eos_token_ids)

    @property
    def sampling_defaults(self) -> dict[str, float]:
        """Defaults of sampling fields that a request leaves out, by ``SamplingParams``' names."""
        if self.args.model.generation_config == "vllm":
            return {}
        own = self.model.generation_config
        return {name: value for name in _SAMPLING_DEFAULTS if (value := getattr(own, name)) is not None}

    @property
    def limits(self) -> ModelLimits:
        """The limits that the model sets to its requests."""
        return ModelLimits(
            max_model_len=self.scheduler_config.max_model_len,
            vocab_size=self.model.spec.vocab_size,
            eos_token_ids=self.eos_token_ids,
            default_max_tokens=self.args.model.default_max_tokens,
            seed=self.args.model.seed,
        )

    def make_step_loop(self) -> StepLoop:
        """Return the loop for a caller that runs the steps itself."""
        self._warm_up()
        return StepLoop(self.scheduler, self.runner, clock=MonotonicClock())

    def make_engine(
        self,
        sinks: Sequence[EventSink] = (),
        recorders: Sequence[EventSink] = (),
        *,
        on_pause: Callable[[float], None] = lambda seconds: None,
    ) -> Engine:
        """Return the engine, whose own thread runs the steps once it is started.

        ``recorders`` are told of all steps from the scheduler's first on, ``sinks`` of what clients asked for,
        ``on_pause`` how long each pause between two steps was.
        """
        self._warm_up(recorders)
        config = self.args.engine
        return Engine(
            self.scheduler,
            self.runner,
            sinks=[*sinks, *recorders],
            stall_timeout_s=config.stall_timeout_s,
            num_step_records=config.num_step_records,
            on_pause=on_pause,
        )

    def _warm_up(self, recorders: Sequence[EventSink] = ()) -> None:
        """Measure steps when the scheduler has a latency target to keep."""
        if self.scheduler_config.target_itl_ms is not None:
            loop = StepLoop(self.scheduler, self.runner, clock=MonotonicClock(), sinks=recorders)
            warm_up(loop, self.scheduler_config)


def make_components(args: EngineArgs) -> EngineComponents:
    """Load the model and make what runs it.

    Raises:
        ModelError: there is no such model, or it cannot be run.
        ConfigError: an option does not fit the model or the machine.
    """
    memory = free_memory()  # before the weights, which are given back, come into it
    model = _load(args.model)
    logger.info("memory: %s", memory)
    weights, num_copied = _kept_weights(model, args.model)
    decided = args.with_dtype(lambda: choose_dtype(model.spec, weights, memory.num_bytes))
    scheduler_config, runner_config = decided.room_configs(model.spec, memory.num_bytes - num_copied)
    tokenizer = read_tokenizer(model)
    chat_template = _chat_template(model, tokenizer, args.model)
    speculation = None
    if args.speculation is not None:
        speculation = args.speculation.make(scheduler_config.max_num_seqs, model.spec.vocab_size)
    runner = make_runner(args.model.runner, model.spec, weights, runner_config)
    return EngineComponents(
        args=args,
        model=model.without_weights(),
        tokenizer=tokenizer,
        chat_template=chat_template,
        turn_end_ids=turn_end_ids(tokenizer, chat_template),
        scheduler_config=scheduler_config,
        runner_config=runner_config,
        scheduler=Scheduler(scheduler_config, make_policy(scheduler_config), speculation),
        runner=runner,
    )


def _kept_weights(model: LoadedModel, chosen: ModelOptions) -> tuple[Weights, int]:
    """Return the weights with a copy of what the runner reads while it runs, and the bytes that it takes beyond theirs.

    That is the embedding; all else is packed. A file that is served from could be cut, which ends the process.
    """
    if chosen.load_format == "mmap":
        return model.weights, 0
    embedding = model.weights["token_embedding"]
    copied = replace(embedding, data=embedding.data.copy())
    is_counted = not model.spec.tie_word_embeddings  # as if it was packed
    return {**model.weights, "token_embedding": copied}, 0 if is_counted else copied.data.nbytes


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
        load_format=cast(LoadFormat, chosen.load_format),
    )


def read_tokenizer(model: LoadedModel) -> Tokenizer:
    """Return the tokenizer that came along with a model."""
    source = model.tokenizer_source
    if source.kind == "gguf":
        return Tokenizer.from_gguf(source.metadata)
    return Tokenizer.from_file(source.path, source.config)


def _chat_template(model: LoadedModel, tokenizer: Tokenizer, options: ModelOptions) -> ChatTemplate:
    source, chosen = model.chat_template, options.chat_template
    if chosen is not None:
        try:
            source = Path(chosen).read_text(encoding="utf-8") if "{" not in chosen else chosen
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"chat_template {chosen!r} cannot be read: {error}") from None
    plain = tokenizer.control_tokens if options.plain_message_contents else ()
    return ChatTemplate(source, special_tokens=tokenizer.special_tokens, plain_tokens=plain)


def make_policy(config: SchedulerConfig) -> Policy | None:
    """Import the user's policy when one is named as ``module:Class``; the scheduler makes its own ones.

    Raises:
        ConfigError: there is no such module or class, or it has no method of a policy.
    """
    module_name, colon, class_name = config.scheduling_policy.partition(":")
    if not colon:
        return None
    try:
        policy: Policy = getattr(import_module(module_name), class_name)()
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(f"scheduling_policy {config.scheduling_policy!r} cannot be used: {error}") from error
    if not any(callable(getattr(policy, name, None)) for name in METHODS):
        raise ConfigError(
            f"scheduling_policy {config.scheduling_policy!r} has no method of a policy ({', '.join(METHODS)})"
        )
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
