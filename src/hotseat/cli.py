"""The command line. Here, and nowhere else, arguments and environment are read.

Every room is imported by the command that needs it, so that ``hotseat --help`` answers at once.
"""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

from hotseat import options
from hotseat.errors import ConfigError, HotseatError

if TYPE_CHECKING:
    from pathlib import Path

    from hotseat.core.config import SchedulerConfig
    from hotseat.core.policy import Policy
    from hotseat.core.request import SamplingParams
    from hotseat.llm import LLM

__all__ = ["main"]

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
class Command:
    help: str
    run: Callable[[list[str]], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that ``arguments`` (by default those of the process) name; return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(words)
    except HotseatError as error:
        sys.stderr.write(f"hotseat: error: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone, for example `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _dispatch(words: list[str]) -> int:
    commands = _commands()
    if not words or words[0] in ("-h", "--help", "help"):
        lines = "\n".join(f"  {name:<17}{command.help}" for name, command in commands.items())
        sys.stdout.write(USAGE.format(commands=lines))
        return 0
    if words[0] in ("-V", "--version"):
        import hotseat

        sys.stdout.write(f"hotseat {hotseat.__version__}\n")
        return 0
    for length in (2, 1):
        command = commands.get(" ".join(words[:length]))
        if command:
            return command.run(words[length:])
    near = [name for name in commands if name.startswith(words[0] + " ")] or get_close_matches(words[0], commands, n=1)
    raise ConfigError(f"unknown command {words[0]!r}" + (f"; did you mean `hotseat {near[0]}`?" if near else ""))


def _commands() -> dict[str, Command]:
    return {
        "serve": Command(help="serve a model over HTTP as OpenAI's clients expect it", run=_serve),
        "pull": Command(help="fetch a model, so that later starts need no network", run=_pull),
        "generate": Command(help="complete a text", run=_generate),
        "chat": Command(help="talk to a model in the terminal", run=_chat),
        "explain": Command(help="say where the requests of a server are, and why", run=_explain),
        "simulate": Command(help="run the scheduler on a file of requests, without a model", run=_simulate),
        "bench serve": Command(help="measure a server under load", run=_bench_serve),
        "bench scheduler": Command(help="measure what the scheduler costs", run=_bench_scheduler),
        "bench kernels": Command(help="measure single kernels", run=lambda words: _profile("kernels", words)),
        "bench step": Command(help="measure where the time of steps goes", run=lambda words: _profile("step", words)),
    }


# Commands


def _serve(words: list[str]) -> int:
    started_at = time.monotonic()
    from hotseat import build
    from hotseat.server.config import ServerConfig
    from hotseat.serving import ObserverOptions, run_server

    own = options.collect(("server", ServerConfig), ("observers", ObserverOptions))
    known = build.ENGINE_OPTIONS | own | _LOG_OPTIONS
    values = _read("serve", "Serve a model over HTTP.", known, words, positional="model")
    _set_up_logging(values, default="info")
    return run_server(
        build.EngineArgs.from_values(_only(values, build.ENGINE_OPTIONS)),
        options.build(ServerConfig, values),
        options.build(ObserverOptions, values),
        started_at=started_at,
    )


def _pull(words: list[str]) -> int:
    from hotseat import build

    known = options.collect(("model", build.ModelOptions)) | _LOG_OPTIONS
    values = _read("pull", "Fetch a model into the cache.", known, words, positional="model")
    _set_up_logging(values, default="info")
    path = build.fetch(options.build(build.ModelOptions, values), show_progress=True)
    sys.stdout.write(f"{path}\n")
    return 0


def _generate(words: list[str]) -> int:
    known = _offline_options() | options.collect(("text", GenerateOptions))
    values = _read("generate", "Complete a text (- reads it from standard input).", known, words, positional="prompt")
    _set_up_logging(values, default="warning")
    chosen = options.build(GenerateOptions, values)
    if chosen.prompt is None:
        raise ConfigError('a text is missing: hotseat generate "Once upon a time"')
    prompt = sys.stdin.read() if chosen.prompt == "-" else chosen.prompt
    from hotseat.terminal import Conversation, show

    with _open_llm(values) as llm:
        params = _sampling_params(llm, values)
        pieces = Conversation(llm, params, chosen.system).answer(prompt) if chosen.chat else llm.stream(prompt, params)
        return 0 if show(pieces) else 130


def _chat(words: list[str]) -> int:
    known = _offline_options() | options.collect(("text", ChatOptions))
    values = _read("chat", "Talk to a model in the terminal.", known, words, positional="model")
    _set_up_logging(values, default="warning")
    from hotseat import terminal

    with _open_llm(values) as llm:
        conversation = terminal.Conversation(llm, _sampling_params(llm, values), values.get("system"))
        terminal.chat(conversation)
    return 0


def _bench_serve(words: list[str]) -> int:
    from hotseat.bench import BenchConfig, run

    known = options.collect(("benchmark", BenchConfig))
    # Its own prefix: what HOTSEAT_MODEL says to a server on this machine is a path, and here it would be a name.
    values = _read(
        "bench serve", "Measure an OpenAI-compatible server under load.", known, words, prefix="HOTSEAT_BENCH_"
    )
    return run(options.build(BenchConfig, values), command=shlex.join(["hotseat", "bench", "serve", *words]))


def _explain(words: list[str]) -> int:
    from hotseat.asking import ExplainOptions, explain

    known = options.collect(("request", ExplainOptions))
    values = _read("explain", "Say where requests are, and why.", known, words, positional="request_id")
    sys.stdout.write(explain(options.build(ExplainOptions, values)))
    return 0


def _simulate(words: list[str]) -> int:
    from hotseat.core.config import SchedulerConfig
    from hotseat.sim.command import scheduler_config, simulate
    from hotseat.sim.config import SimulateOptions

    known = options.collect(("simulation", SimulateOptions), ("scheduler", SchedulerConfig))
    values = _read("simulate", "Run the scheduler on a file of requests.", known, words, positional="requests")
    chosen = options.build(SimulateOptions, values)
    command = shlex.join(["hotseat", "simulate", *words])
    return simulate(chosen, scheduler_config(chosen, values), _make_policy, command=command)


def _make_policy(config: SchedulerConfig) -> Policy | None:
    if ":" not in config.scheduling_policy:
        return None  # built in: there is no need to import all that `build` does
    from hotseat import build

    return build.make_policy(config)


def _bench_scheduler(words: list[str]) -> int:
    from hotseat.bench.report import describe_machine
    from hotseat.sim.config import SchedulerBenchOptions
    from hotseat.sim.scheduler_bench import run

    known = options.collect(("benchmark", SchedulerBenchOptions))
    values = _read("bench scheduler", "Measure what the scheduler costs.", known, words, prefix="HOTSEAT_BENCH_")
    command = shlex.join(["hotseat", "bench", "scheduler", *words])
    return run(options.build(SchedulerBenchOptions, values), command=command, machine=asdict(describe_machine()))


def _profile(name: str, words: list[str]) -> int:
    from hotseat.bench.report import describe_machine
    from hotseat.profile import COMMANDS

    about, line = COMMANDS[name], shlex.join(["hotseat", "bench", name, *words])
    known = options.collect(("benchmark", about.options))
    values = _read(f"bench {name}", about.help, known, words, positional="model", prefix="HOTSEAT_BENCH_")
    return about.run(options.build(about.options, values), command=line, machine=asdict(describe_machine()))


# Options of single commands


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    log_level: str | None = field(
        default=None,
        metadata={"help": "what is logged", "choices": ["debug", "info", "warning", "error"]},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    max_tokens: int | None = field(default=512, metadata={"help": "tokens to generate at most; none: what fits"})
    temperature: float | None = field(default=None, metadata={"help": "0 is greedy (default: the model's, else 0.6)"})
    top_p: float | None = field(
        default=None, metadata={"help": "smallest set of tokens with this probability (default: the model's, else 0.9)"}
    )
    top_k: int | None = field(default=None, metadata={"help": "so many most probable tokens; 0 is all"})
    min_p: float | None = field(default=None, metadata={"help": "tokens at least this probable, relative to the first"})
    repetition_penalty: float | None = field(default=None, metadata={"help": "above 1 avoids repetition"})
    seed: int | None = field(default=None, metadata={"help": "fixes the result"})
    stop: tuple[str, ...] = field(default=(), metadata={"help": "text that ends the answer; may be repeated"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    system: str | None = field(default=None, metadata={"help": "system message"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions(ChatOptions):
    prompt: str | None = field(default=None, metadata={"help": "the text"})
    chat: bool = field(default=False, metadata={"help": "ask it as a question, through the model's chat template"})


# A person reads these answers: small models talk nonsense at the API's default temperature of 1.
_TERMINAL_DEFAULTS: dict[str, Any] = {"temperature": 0.6, "top_p": 0.9}
_LOG_OPTIONS = options.collect(("logging", LogOptions))


def _offline_options() -> dict[str, options.Option]:
    from hotseat import build

    return build.ENGINE_OPTIONS | options.collect(("sampling", SamplingOptions)) | _LOG_OPTIONS


def _open_llm(values: Mapping[str, Any]) -> LLM:
    from hotseat import build
    from hotseat.llm import LLM

    return LLM(**_only(values, build.ENGINE_OPTIONS))


def _sampling_params(llm: LLM, values: Mapping[str, Any]) -> SamplingParams:
    from hotseat.core.request import SamplingParams

    chosen = asdict(options.build(SamplingOptions, values))
    given = {name: value for name, value in chosen.items() if value is not None or name == "max_tokens"}
    return SamplingParams(**(_TERMINAL_DEFAULTS | llm.sampling_defaults | given))


def _only(values: Mapping[str, Any], known: Mapping[str, options.Option]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in known}


# Reading options


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _read(
    command: str,
    description: str,
    known: Mapping[str, options.Option],
    words: list[str],
    *,
    positional: str | None = None,
    prefix: str = options.ENVIRONMENT_PREFIX,
) -> dict[str, Any]:
    """Return what was chosen: the command line wins over the environment, the environment over the file.

    Raises:
        ConfigError: an option is unknown or its value is wrong.
    """
    parser = _parser(command, description, known, positional)
    given, unknown = parser.parse_known_args([_with_dashes(word) for word in words])
    if unknown:
        name = unknown[0].partition("=")[0]
        if not name.startswith("-"):
            raise ConfigError(f"unexpected argument {name!r}")
        raise options.unknown_option(name, [*known, "config"], "")
    from_command_line = vars(given)
    path = from_command_line.pop("config", None) or os.environ.get(f"{prefix}CONFIG")
    if positional and (value := from_command_line.pop("positional", None)) is not None:
        from_command_line[positional] = value
    from_file = options.from_file(known, path) if path else {}
    values = from_file | options.from_environment(known, os.environ, prefix) | from_command_line
    if "cache_dir" in known and "cache_dir" not in values:
        values["cache_dir"] = _cache_dir()
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _parser(
    command: str, description: str, known: Mapping[str, options.Option], positional: str | None
) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"hotseat {command}", description=description, allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file of options: `max-num-seqs: 32`")
    if positional:
        parser.add_argument("positional", nargs="?", metavar=positional.upper(), help=known[positional].help)
    groups: dict[str, Any] = {}
    for option in known.values():
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        _add_flag(groups[option.group], option)
    return parser


def _add_flag(group: argparse._ArgumentGroup, option: options.Option) -> None:
    text = _help(option).replace("%", "%%")
    if option.is_boolean:
        group.add_argument(option.flag, action=argparse.BooleanOptionalAction, help=text)
        return
    group.add_argument(
        option.flag,
        action="append" if option.is_sequence else "store",
        type=_checked(option),
        choices=option.choices or None,
        metavar=None if option.choices else option.name.rpartition("_")[2].upper(),
        help=text,
    )


def _checked(option: options.Option) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return option.parse(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _help(option: options.Option) -> str:
    """Return the option's help, with its default where that is a plain value."""
    if option.default in (None, (), "", MISSING) or "(default" in option.help:
        return option.help
    default = option.default
    if isinstance(default, bool):
        default = "on" if default else "off"
    return f"{option.help} (default: {default})"


def _with_dashes(word: str) -> str:
    """Write ``--a_b=c`` as ``--a-b=c``."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


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
