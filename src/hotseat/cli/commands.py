"""The commands: what each does and which options it has.

Every room is imported by the command that needs it, so that ``hotseat --help`` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hotseat import options
from hotseat.cli.command import LOG_OPTIONS, Command, Invocation
from hotseat.cli.model_commands import MODEL_COMMANDS
from hotseat.errors import ConfigError

if TYPE_CHECKING:
    from hotseat.core.config import SchedulerConfig
    from hotseat.core.policy import Policy
    from hotseat.llm import LLM

__all__ = ["COMMANDS", "Command", "Invocation"]


# What commands do


def _serve(invocation: Invocation) -> int:
    from hotseat import wiring
    from hotseat.server.config import ServerConfig
    from hotseat.wiring.server import ObserverOptions, run_server

    values = invocation.values
    return run_server(
        wiring.EngineArgs.from_values(_only(values, wiring.ENGINE_OPTIONS)),
        options.build(ServerConfig, values),
        options.build(ObserverOptions, values),
        started_at=invocation.started_at,
    )


def _generate(invocation: Invocation) -> int:
    from hotseat.cli import terminal

    chosen = options.build(terminal.GenerateOptions, invocation.values)
    if chosen.prompt is None:
        raise ConfigError('a text is missing: hotseat generate "Once upon a time"')
    prompt = sys.stdin.read() if chosen.prompt == "-" else chosen.prompt
    with _open_llm(invocation.values) as llm:
        params = terminal.sampling_params(llm, options.build(terminal.SamplingOptions, invocation.values))
        conversation = terminal.Conversation(llm, params, chosen.system)
        pieces = conversation.answer(prompt) if chosen.chat else llm.stream(prompt, params)
        return 0 if terminal.show(pieces) else 130


def _chat(invocation: Invocation) -> int:
    from hotseat.cli import terminal

    chosen = options.build(terminal.ChatOptions, invocation.values)
    sampling = options.build(terminal.SamplingOptions, invocation.values)
    has_colour = not invocation.is_plain
    if chosen.url is not None:
        from hotseat.cli.remote import RemoteChat

        fields = {name: value for name, value in asdict(sampling).items() if value not in (None, ())}
        server = RemoteChat(chosen.url, chosen.api_key, fields)
        talk = terminal.Conversation(server, None, chosen.system, lambda text: server.num_tokens)
        terminal.chat(talk, name=f"{server.name} at {chosen.url}", has_colour=has_colour)
        return 0
    with _open_llm(invocation.values) as llm:
        count = llm.get_tokenizer().encode
        params = terminal.sampling_params(llm, sampling)
        talk = terminal.Conversation(llm, params, chosen.system, lambda text: len(count(text, False)))
        terminal.chat(talk, name=llm.model_name, has_colour=has_colour)
    return 0


def _explain(invocation: Invocation) -> int:
    from hotseat.cli.explain import ExplainOptions, explain

    sys.stdout.write(explain(options.build(ExplainOptions, invocation.values)))
    return 0


def _trace(invocation: Invocation) -> int:
    from hotseat.cli.trace import TraceOptions, trace

    sys.stdout.write(trace(options.build(TraceOptions, invocation.values)))
    return 0


def _batch(invocation: Invocation) -> int:
    from hotseat import wiring
    from hotseat.wiring.batch import BatchOptions, run_batch_files

    return run_batch_files(
        wiring.EngineArgs.from_values(_only(invocation.values, wiring.ENGINE_OPTIONS)),
        options.build(BatchOptions, invocation.values),
    )


def _simulate(invocation: Invocation) -> int:
    from hotseat.simulator.command import scheduler_config, simulate
    from hotseat.simulator.config import SimulateOptions

    chosen = options.build(SimulateOptions, invocation.values)
    return simulate(chosen, scheduler_config(chosen, invocation.values), _make_policy, command=invocation.line)


def _tune(invocation: Invocation) -> int:
    from hotseat.simulator.config import SimulateOptions
    from hotseat.simulator.tune import TuneOptions, tune

    values = invocation.values
    return tune(options.build(TuneOptions, values), options.build(SimulateOptions, values), values, _make_policy)


def _make_policy(config: SchedulerConfig) -> Policy | None:
    if ":" not in config.scheduling_policy:
        return None  # built in: there is no need to import all that `build` does
    from hotseat import wiring

    return wiring.make_policy(config)


def _bench_serve(invocation: Invocation) -> int:
    from hotseat.loadgen import BenchConfig, run

    return run(options.build(BenchConfig, invocation.values), command=invocation.line)


def _bench_scheduler(invocation: Invocation) -> int:
    from hotseat.machine import describe_machine
    from hotseat.simulator.config import SchedulerBenchOptions
    from hotseat.simulator.scheduler_bench import run

    chosen = options.build(SchedulerBenchOptions, invocation.values)
    return run(chosen, command=invocation.line, machine=asdict(describe_machine()))


# What they can be told


def _serve_options() -> dict[str, options.Option]:
    from hotseat import wiring
    from hotseat.server.config import ServerConfig
    from hotseat.wiring.server import ObserverOptions

    own = options.collect(("server", ServerConfig), ("observers", ObserverOptions))
    return wiring.ENGINE_OPTIONS | own | LOG_OPTIONS


def _generate_options() -> dict[str, options.Option]:
    from hotseat.cli.terminal import GenerateOptions

    return _offline_options(GenerateOptions)


def _chat_options() -> dict[str, options.Option]:
    from hotseat.cli.terminal import ChatOptions

    return _offline_options(ChatOptions)


def _offline_options(own: type) -> dict[str, options.Option]:
    from hotseat import wiring
    from hotseat.cli.terminal import SamplingOptions

    return wiring.ENGINE_OPTIONS | options.collect(("sampling", SamplingOptions), ("text", own)) | LOG_OPTIONS


def _explain_options() -> dict[str, options.Option]:
    from hotseat.cli.explain import ExplainOptions

    return options.collect(("request", ExplainOptions))


def _trace_options() -> dict[str, options.Option]:
    from hotseat.cli.trace import TraceOptions

    return options.collect(("trace", TraceOptions))


def _batch_options() -> dict[str, options.Option]:
    from hotseat import wiring
    from hotseat.wiring.batch import BatchOptions

    return wiring.ENGINE_OPTIONS | options.collect(("batch", BatchOptions)) | LOG_OPTIONS


def _simulate_options() -> dict[str, options.Option]:
    from hotseat.core.config import SchedulerConfig
    from hotseat.simulator.config import SimulateOptions

    return options.collect(("simulation", SimulateOptions), ("scheduler", SchedulerConfig))


def _tune_options() -> dict[str, options.Option]:
    from hotseat.core.config import SchedulerConfig
    from hotseat.simulator.config import SimulateOptions
    from hotseat.simulator.tune import TuneOptions

    left_out = ("record", "compare", "compare_policy", "compare_capacity", "replay", "json", "max_tokens")
    known = options.collect(("tuning", TuneOptions), ("simulation", SimulateOptions), ("scheduler", SchedulerConfig))
    return {name: option for name, option in known.items() if name not in left_out}


def _bench_serve_options() -> dict[str, options.Option]:
    from hotseat.loadgen import BenchConfig

    return options.collect(("benchmark", BenchConfig))


def _bench_scheduler_options() -> dict[str, options.Option]:
    from hotseat.simulator.config import SchedulerBenchOptions

    return options.collect(("benchmark", SchedulerBenchOptions))


def _open_llm(values: Mapping[str, Any]) -> LLM:
    from hotseat import wiring
    from hotseat.llm import LLM

    return LLM(**_only(values, wiring.ENGINE_OPTIONS))


def _only(values: Mapping[str, Any], known: Mapping[str, options.Option]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in known}


# Benchmarks have their own prefix: what HOTSEAT_MODEL says to a server here is a path, and to them it would be a name.
_BENCH = "HOTSEAT_BENCH_"


def _roofline_command(name: str, *, help: str) -> Command:  # noqa: A002  # as the field of Command
    def known() -> dict[str, options.Option]:
        from hotseat.roofline import COMMANDS

        return options.collect(("benchmark", COMMANDS[name].options))

    def run(invocation: Invocation) -> int:
        from hotseat.machine import describe_machine
        from hotseat.roofline import COMMANDS

        chosen = options.build(COMMANDS[name].options, invocation.values)
        return COMMANDS[name].run(chosen, command=invocation.line, machine=asdict(describe_machine()))

    return Command(help=help, known=known, run=run, positional=("model",), prefix=_BENCH)


_FIRST_OF_MODEL = ("dtype", "threads", "max_model_len", "kv_cache_memory_bytes")
_FIRST_OF_TEXT = ("system", "max_tokens", "temperature", "top_p", "seed", "stop", "dtype", "threads")

COMMANDS: dict[str, Command] = {
    "serve": Command(
        help="serve a model over HTTP as OpenAI's clients expect it",
        known=_serve_options,
        run=_serve,
        positional=("model",),
        log_level="info",
        first=("host", "port", "api_key", "max_num_seqs", "default_max_tokens", "scheduling_policy", *_FIRST_OF_MODEL),
    ),
    **MODEL_COMMANDS,
    "generate": Command(
        help="complete a text (- reads it from standard input)",
        known=_generate_options,
        run=_generate,
        positional=("model", "prompt"),
        log_level="warning",
        first=("chat", *_FIRST_OF_TEXT),
    ),
    "chat": Command(
        help="talk to a model in the terminal",
        known=_chat_options,
        run=_chat,
        positional=("model",),
        log_level="warning",
        first=("url", "api_key", *_FIRST_OF_TEXT),
    ),
    "batch": Command(
        help="answer a file of requests, a JSON line each, as OpenAI's batches have them",
        known=_batch_options,
        run=_batch,
        positional=("model",),
        log_level="warning",
    ),
    "explain": Command(
        help="say where the requests of a server are, and why",
        known=_explain_options,
        run=_explain,
        positional=("request_id",),
    ),
    "trace": Command(
        help="write what the steps did as a trace for Perfetto or chrome://tracing",
        known=_trace_options,
        run=_trace,
        positional=("records",),
    ),
    "simulate": Command(
        help="run the scheduler on a file of requests, without a model",
        known=_simulate_options,
        run=_simulate,
        positional=("requests",),
    ),
    "tune": Command(
        help="find scheduler options that keep a latency target on a file of requests, by simulation",
        known=_tune_options,
        run=_tune,
        positional=("requests",),
    ),
    "bench serve": Command(
        help="measure a server under load", known=_bench_serve_options, run=_bench_serve, prefix=_BENCH
    ),
    "bench scheduler": Command(
        help="measure what the scheduler costs", known=_bench_scheduler_options, run=_bench_scheduler, prefix=_BENCH
    ),
    "bench kernels": _roofline_command("kernels", help="measure single kernels"),
    "bench step": _roofline_command("step", help="measure where the time of steps goes"),
}
