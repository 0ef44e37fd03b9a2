"""The entry point: from the words of a command line to the command that they name."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from hotseat.cli.commands import COMMANDS, Command, Invocation
from hotseat.errors import ConfigError, HotseatError
from hotseat.options import command_line, misspelt_variables

if TYPE_CHECKING:
    from pathlib import Path

    from hotseat.options import Option

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that ``arguments`` (by default those of the process) name; return the exit status."""
    started_at = time.monotonic()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(words, started_at)
    except HotseatError as error:
        sys.stderr.write(f"hotseat: error: {error}\n")
        return 2
    except MemoryError as error:
        sys.stderr.write(
            f"hotseat: error: not enough memory ({error or 'an allocation failed'}): lower --kv-cache-memory-bytes, "
            "--max-model-len or --max-num-seqs, or choose a smaller --dtype or model\n"
        )
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
            line = command_line.quote(["hotseat", *words])
            values, is_plain = _read(name, words[length:]), bool(os.environ.get("NO_COLOR"))
            return COMMANDS[name].run(Invocation(values=values, line=line, started_at=started_at, is_plain=is_plain))
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
    values = command_line.read(
        name,
        description,
        known,
        words,
        os.environ,
        positional=command.positional,
        prefix=command.prefix,
        first=[option for option in command.first if option in known],
    )
    if "cache_dir" in known and "cache_dir" not in values:
        values["cache_dir"] = _cache_dir()
    if command.log_level:
        _set_up_logging(values, default=command.log_level)
    _warn_of_misspelt_variables(known, command.prefix)
    return values


def _warn_of_misspelt_variables(known: Mapping[str, Option], prefix: str) -> None:
    suspects = list(misspelt_variables(known, os.environ, prefix))
    if not suspects:
        return
    elsewhere = {other.prefix + name.upper() for other in COMMANDS.values() for name in other.known()}
    for variable, near in suspects:
        if variable not in elsewhere | {"HOTSEAT_CACHE_DIR", "HOTSEAT_CONFIG", "HOTSEAT_BENCH_CONFIG"}:
            logger.warning("the environment variable %s is no option; did you mean %s?", variable, near)


def _cache_dir() -> Path:
    from hotseat.wiring import default_cache_dir

    return default_cache_dir(os.environ)


def _set_up_logging(values: Mapping[str, Any], *, default: str) -> None:
    level = values.get("log_level") or default
    if level not in ("debug", "info", "warning", "error"):
        raise ConfigError(f"log_level must be debug, info, warning or error, not {level!r}")
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
