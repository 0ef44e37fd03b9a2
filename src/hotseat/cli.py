"""The command line. Here, and nowhere else, arguments and environment are read.

Every room is imported by the command that needs it, so that ``hotseat --help`` answers at once.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from hotseat import arguments as arguments_of
from hotseat import options
from hotseat.errors import ConfigError, HotseatError

if TYPE_CHECKING:
    from pathlib import Path

    from hotseat.core.config import SchedulerConfig
    from hotseat.core.policy import Policy
    from hotseat.llm import LLM

__all__ = ["main"]

logger = logging.getLogger(__name__)

USAGE = """\
usage: hotseat COMMAND [options]

Serve language models with continuous batching.

commands:
{commands}

`hotseat COMMAND --help` lists the options of a command. Each can also be an environment variable
(--max-num-seqs is HOTSEAT_MAX_NUM_SEQS) or a line of a YAML file (--config FILE); the command line wins,
then the environment, then the file.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One call of a command."""

    values: dict[str, Any]  # the options that were chosen
    line: str  # the command line, for reports to quote
    started_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What can be called; its options say what its words mean. ``log_level`` is that of a command that logs."""

    help: str
    known: Callable[[], dict[str, options.Option]]
    run: Callable[[Invocation], int]
    positional: str | None = None
    prefix: str = options.ENVIRONMENT_PREFIX
    log_level: str | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that ``arguments`` (by default those of the process) name; return the exit status."""
    started_at = time.monotonic()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(words, started_at)
    except HotseatError as error:
        sys.stderr.write(f"hotseat: error: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone, for example `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _dispatch(words: list[str], started_at: float) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(USAGE.format(commands=_listed(COMMANDS)))
        return 0
    if words[0] in ("-V", "--version"):
        import hotseat

        sys.stdout.write(f"hotseat {hotseat.__version__}\n")
        return 0
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in COMMANDS:
            line = arguments_of.quote(["hotseat", *words])
            return COMMANDS[name].run(Invocation(values=_read(name, words[length:]), line=line, started_at=started_at))
    return _no_such_command(words)


def _no_such_command(words: list[str]) -> int:
    members = {name: command for name, command in COMMANDS.items() if name.startswith(words[0] + " ")}
    if not members:
        near = get_close_matches(words[0], COMMANDS, n=1)
        raise ConfigError(f"unknown command {words[0]!r}" + (f"; did you mean `hotseat {near[0]}`?" if near else ""))
    usage = f"usage: hotseat {words[0]} COMMAND [options]\n\ncommands:\n{_listed(members)}\n"
    if words[1:] in ([], ["-h"], ["--help"]):
        sys.stdout.write(usage)
        return 0
    sys.stderr.write(f"hotseat: error: unknown command {shlex.join(words[:2])!r}\n\n{usage}")
    return 2


def _listed(commands: Mapping[str, Command]) -> str:
    return "\n".join(f"  {name:<17}{command.help}" for name, command in commands.items())


def _read(name: str, words: list[str]) -> dict[str, Any]:
    """Return the values of a command's options, and begin to log."""
    command = COMMANDS[name]
    known = command.known()
    description = f"{command.help[0].upper()}{command.help[1:]}."
    values = arguments_of.read(
        name, description, known, words, os.environ, positional=command.positional, prefix=command.prefix
    )
    if "cache_dir" in known and "cache_dir" not in values:
        values["cache_dir"] = _cache_dir()
    if command.log_level:
        _set_up_logging(values, default=command.log_level)
    _warn_of_misspelt_variables(known, command.prefix)
    return values


def _warn_of_misspelt_variables(known: Mapping[str, options.Option], prefix: str) -> None:
    suspects = list(options.misspelt_variables(known, os.environ, prefix))
    if not suspects:
        return
    elsewhere = {other.prefix + name.upper() for other in COMMANDS.values() for name in other.known()}
    for variable, near in suspects:
        if variable not in elsewhere | {"HOTSEAT_CACHE_DIR", "HOTSEAT_CONFIG", "HOTSEAT_BENCH_CONFIG"}:
            logger.warning("the environment variable %s is no option; did you mean %s?", variable, near)


# What commands do


def _serve(invocation: Invocation) -> int:
    from hotseat import build
    from hotseat.server.config import ServerConfig
    from hotseat.serving import ObserverOptions, run_server

    values = invocation.values
    return run_server(
        build.EngineArgs.from_values(_only(values, build.ENGINE_OPTIONS)),
        options.build(ServerConfig, values),
        options.build(ObserverOptions, values),
        started_at=invocation.started_at,
    )


def _pull(invocation: Invocation) -> int:
    from hotseat import build

    path = build.fetch(options.build(build.ModelOptions, invocation.values), show_progress=True)
    sys.stdout.write(f"{path}\n")
    return 0


def _generate(invocation: Invocation) -> int:
    from hotseat import terminal

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
    from hotseat import terminal

    chosen = options.build(terminal.ChatOptions, invocation.values)
    with _open_llm(invocation.values) as llm:
        params = terminal.sampling_params(llm, options.build(terminal.SamplingOptions, invocation.values))
        terminal.chat(terminal.Conversation(llm, params, chosen.system))
    return 0


def _explain(invocation: Invocation) -> int:
    from hotseat.asking import ExplainOptions, explain

    sys.stdout.write(explain(options.build(ExplainOptions, invocation.values)))
    return 0


def _simulate(invocation: Invocation) -> int:
    from hotseat.sim.command import scheduler_config, simulate
    from hotseat.sim.config import SimulateOptions

    chosen = options.build(SimulateOptions, invocation.values)
    return simulate(chosen, scheduler_config(chosen, invocation.values), _make_policy, command=invocation.line)


def _make_policy(config: SchedulerConfig) -> Policy | None:
    if ":" not in config.scheduling_policy:
        return None  # built in: there is no need to import all that `build` does
    from hotseat import build

    return build.make_policy(config)


def _bench_serve(invocation: Invocation) -> int:
    from hotseat.bench import BenchConfig, run

    return run(options.build(BenchConfig, invocation.values), command=invocation.line)


def _bench_scheduler(invocation: Invocation) -> int:
    from hotseat.bench.report import describe_machine
    from hotseat.sim.config import SchedulerBenchOptions
    from hotseat.sim.scheduler_bench import run

    chosen = options.build(SchedulerBenchOptions, invocation.values)
    return run(chosen, command=invocation.line, machine=asdict(describe_machine()))


# What they can be told


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    log_level: str | None = field(
        default=None,
        metadata={"help": "what is logged", "choices": ["debug", "info", "warning", "error"]},
    )


_LOG_OPTIONS = options.collect(("logging", LogOptions))


def _serve_options() -> dict[str, options.Option]:
    from hotseat import build
    from hotseat.server.config import ServerConfig
    from hotseat.serving import ObserverOptions

    own = options.collect(("server", ServerConfig), ("observers", ObserverOptions))
    return build.ENGINE_OPTIONS | own | _LOG_OPTIONS


def _pull_options() -> dict[str, options.Option]:
    from hotseat import build

    return options.collect(("model", build.ModelOptions)) | _LOG_OPTIONS


def _generate_options() -> dict[str, options.Option]:
    from hotseat.terminal import GenerateOptions

    return _offline_options(GenerateOptions)


def _chat_options() -> dict[str, options.Option]:
    from hotseat.terminal import ChatOptions

    return _offline_options(ChatOptions)


def _offline_options(own: type) -> dict[str, options.Option]:
    from hotseat import build
    from hotseat.terminal import SamplingOptions

    return build.ENGINE_OPTIONS | options.collect(("sampling", SamplingOptions), ("text", own)) | _LOG_OPTIONS


def _explain_options() -> dict[str, options.Option]:
    from hotseat.asking import ExplainOptions

    return options.collect(("request", ExplainOptions))


def _simulate_options() -> dict[str, options.Option]:
    from hotseat.core.config import SchedulerConfig
    from hotseat.sim.config import SimulateOptions

    return options.collect(("simulation", SimulateOptions), ("scheduler", SchedulerConfig))


def _bench_serve_options() -> dict[str, options.Option]:
    from hotseat.bench import BenchConfig

    return options.collect(("benchmark", BenchConfig))


def _bench_scheduler_options() -> dict[str, options.Option]:
    from hotseat.sim.config import SchedulerBenchOptions

    return options.collect(("benchmark", SchedulerBenchOptions))


def _open_llm(values: Mapping[str, Any]) -> LLM:
    from hotseat import build
    from hotseat.llm import LLM

    return LLM(**_only(values, build.ENGINE_OPTIONS))


def _only(values: Mapping[str, Any], known: Mapping[str, options.Option]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in known}


def _cache_dir() -> Path:
    from hotseat import build

    return build.default_cache_dir(os.environ)


def _set_up_logging(values: Mapping[str, Any], *, default: str) -> None:
    level = values.get("log_level") or default
    if level not in ("debug", "info", "warning", "error"):
        raise ConfigError(f"log_level must be debug, info, warning or error, not {level!r}")
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )


# Benchmarks have their own prefix: what HOTSEAT_MODEL says to a server here is a path, and to them it would be a name.
_BENCH = "HOTSEAT_BENCH_"


def _profile_command(name: str, *, help: str) -> Command:  # noqa: A002  # as the field of Command
    def known() -> dict[str, options.Option]:
        from hotseat.profile import COMMANDS

        return options.collect(("benchmark", COMMANDS[name].options))

    def run(invocation: Invocation) -> int:
        from hotseat.bench.report import describe_machine
        from hotseat.profile import COMMANDS

        chosen = options.build(COMMANDS[name].options, invocation.values)
        return COMMANDS[name].run(chosen, command=invocation.line, machine=asdict(describe_machine()))

    return Command(help=help, known=known, run=run, positional="model", prefix=_BENCH)


COMMANDS: dict[str, Command] = {
    "serve": Command(
        help="serve a model over HTTP as OpenAI's clients expect it",
        known=_serve_options,
        run=_serve,
        positional="model",
        log_level="info",
    ),
    "pull": Command(
        help="fetch a model, so that later starts need no network",
        known=_pull_options,
        run=_pull,
        positional="model",
        log_level="info",
    ),
    "generate": Command(
        help="complete a text (- reads it from standard input)",
        known=_generate_options,
        run=_generate,
        positional="prompt",
        log_level="warning",
    ),
    "chat": Command(
        help="talk to a model in the terminal",
        known=_chat_options,
        run=_chat,
        positional="model",
        log_level="warning",
    ),
    "explain": Command(
        help="say where the requests of a server are, and why",
        known=_explain_options,
        run=_explain,
        positional="request_id",
    ),
    "simulate": Command(
        help="run the scheduler on a file of requests, without a model",
        known=_simulate_options,
        run=_simulate,
        positional="requests",
    ),
    "bench serve": Command(
        help="measure a server under load", known=_bench_serve_options, run=_bench_serve, prefix=_BENCH
    ),
    "bench scheduler": Command(
        help="measure what the scheduler costs", known=_bench_scheduler_options, run=_bench_scheduler, prefix=_BENCH
    ),
    "bench kernels": _profile_command("kernels", help="measure single kernels"),
    "bench step": _profile_command("step", help="measure where the time of steps goes"),
}
