"""An engine wired to its observers and to the HTTP server."""

from __future__ import annotations

import contextlib
import gc
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from hotseat.core.events import EventSink
from hotseat.errors import ConfigError
from hotseat.generation import Generator
from hotseat.runner.config import kv_bytes_per_block
from hotseat.server import ModelInfo, ServerConfig, ServerServices, run_app
from hotseat.telemetry import EngineMetrics, Exposition, LineFile, RecordWriter, RequestLog, RequestWriter, StatsLog
from hotseat.wiring.components import EngineComponents, make_components
from hotseat.wiring.engine_args import EngineArgs
from hotseat.wiring.precheck import precheck

__all__ = ["ObserverOptions", "make_services", "run_server"]

logger = logging.getLogger(__name__)

DEFAULT_QUEUE_MEMORY_BYTES = 256 * 2**20
METRICS_NAMES = ("vllm", "native", "both")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverOptions:
    """Metrics, logs and records of the engine's work."""

    metrics_names: str = field(
        default="vllm",
        metadata={
            "help": "prefix of metrics that vLLM has too: vllm:, native (hotseat:) or both",
            "choices": METRICS_NAMES,
        },
    )
    enable_log_requests: bool = field(
        default=False, metadata={"help": "log how each sequence ended, how long it waited and what it cost"}
    )
    disable_log_stats: bool = field(
        default=False, metadata={"help": "do not log throughput, queue and cache every ten seconds while there is work"}
    )
    record: Path | None = field(
        default=None, metadata={"help": "write what each step did to this file, a JSON line each"}
    )
    record_requests: Path | None = field(
        default=None,
        metadata={
            "help": "write when each request came and how long it was to this file, as `hotseat simulate` reads it"
        },
    )

    def __post_init__(self) -> None:
        if self.metrics_names not in METRICS_NAMES:
            raise ConfigError(f"metrics_names must be one of {', '.join(METRICS_NAMES)}, not {self.metrics_names!r}")


def run_server(args: EngineArgs, config: ServerConfig, observers: ObserverOptions, *, started_at: float) -> int:
    """Serve until a signal says stop; return the exit status.

    Raises:
        ConfigError: an option does not fit the model or the machine, or the port is taken.
        ModelError: the model cannot be loaded.
    """
    precheck(args)
    with contextlib.ExitStack() as stack:
        files = {
            name: stack.enter_context(_open_record(name, path))
            for name in ("record", "record_requests")
            if (path := getattr(observers, name)) is not None
        }

        def build() -> ServerServices:
            components = make_components(_with_bounded_queue(args))
            services = make_services(components, config, observers, files, started_at)
            # Modules, vocabulary and options live as long as the process. To search them for garbage again and again
            # would stop all requests for tens of milliseconds each time.
            gc.collect()
            gc.freeze()
            return services

        return run_app(build, config, started_at=started_at)


def _with_bounded_queue(args: EngineArgs) -> EngineArgs:
    """Bound the memory of waiting requests, unless the options say otherwise."""
    return replace(args, values={"max_queue_memory_bytes": DEFAULT_QUEUE_MEMORY_BYTES, **args.values})


def _open_record(name: str, path: Path) -> LineFile:
    try:
        return LineFile(path)
    except OSError as error:
        raise ConfigError(f"{name} {str(path)!r} cannot be written: {error}") from None


def make_services(
    components: EngineComponents,
    config: ServerConfig,
    observers: ObserverOptions,
    files: Mapping[str, LineFile],
    started_at: float,
) -> ServerServices:
    scheduling = components.scheduler_config
    names = config.served_model_name or (components.model.name,)
    metrics = EngineMetrics(
        max_model_len=scheduling.max_model_len,
        num_blocks=scheduling.num_kv_blocks,
        counts_prefix_cache=scheduling.enable_prefix_caching,
    )
    sinks: list[EventSink] = [metrics]
    if observers.enable_log_requests:
        sinks.append(RequestLog())
    recorders = _recorders(files, scheduling.block_size)
    engine = components.make_engine(sinks, recorders, on_pause=metrics.engine_pauses.observe)
    exposition = Exposition(
        metrics,
        model_name=names[0],
        cache_info=_cache_info(components),
        num_seats=scheduling.max_num_seqs,
        names=observers.metrics_names,
        read_step_time_error=lambda: engine.stats().step_time_error,
    )
    _log_capacity(components)
    logger.info("answers are %s", components.runner.determinism)
    return ServerServices(
        engine=engine,
        generator=Generator(engine, components.tokenizer, components.limits),
        tokenizer=components.tokenizer,
        model=_model_info(components, names),
        chat_template=components.chat_template,
        tool_call_parser=config.tool_call_parser,
        reasoning_parser=config.reasoning_parser,
        sampling_defaults=components.sampling_defaults,
        render_metrics=exposition.render,
        honours_priority=components.scheduler.policy.uses_priority,
        honours_deadline=components.scheduler.policy.uses_deadline,
        max_num_seqs=scheduling.max_num_seqs,
        max_num_queued_reqs=scheduling.max_num_queued_reqs,
        dtype=components.runner_config.weight_dtype,
        policy=scheduling.scheduling_policy,
        started_s=started_at,
        determinism=asdict(components.runner.determinism),
        observe_loop_lag=metrics.loop_lags.observe,
        tick=None if observers.disable_log_stats else StatsLog(metrics).tick,
    )


def _model_info(components: EngineComponents, names: tuple[str, ...]) -> ModelInfo:
    return ModelInfo(
        served_names=names,
        max_model_len=components.scheduler_config.max_model_len,
        created=int(time.time()),
        root=str(components.model.path),
    )


def _recorders(files: Mapping[str, LineFile], block_size: int) -> list[EventSink]:
    recorders: list[EventSink] = []
    if "record" in files:
        recorders.append(RecordWriter(files["record"]))
    if "record_requests" in files:
        recorders.append(RequestWriter(files["record_requests"], block_size))
    return recorders


def _cache_info(components: EngineComponents) -> dict[str, str]:
    scheduling = components.scheduler_config
    return {
        "block_size": str(scheduling.block_size),
        "num_gpu_blocks": str(scheduling.num_kv_blocks),  # vLLM's name, which gateways look for
        "cache_dtype": components.runner_config.kv_dtype,
        "enable_prefix_caching": str(scheduling.enable_prefix_caching),
    }


def _log_capacity(components: EngineComponents) -> None:
    scheduling, running = components.scheduler_config, components.runner_config
    spec, layout = components.model.spec, scheduling.kv_layout
    block_bytes = kv_bytes_per_block(spec, running.kv_dtype, scheduling.block_size, layout)
    logger.info(
        "KV cache: %d tokens in %d blocks (%s, %.0f MiB, layout %s); sequences of up to %d tokens",
        scheduling.max_cached_tokens,
        scheduling.num_kv_blocks,
        running.kv_dtype,
        scheduling.num_kv_blocks * block_bytes / 2**20,
        layout,
        scheduling.max_model_len,
    )
