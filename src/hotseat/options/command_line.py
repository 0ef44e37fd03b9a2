"""Values of options from the words of a command line, with the environment and a YAML file behind them."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from typing import Any, NoReturn

from hotseat.errors import ConfigError
from hotseat.options.option import ENVIRONMENT_PREFIX, Option
from hotseat.options.sources import from_environment, from_file, unknown_option

__all__ = ["quote", "read"]

_SECRETS = ("--api-key", "--admin-api-key", "--hf-token")


def read(
    command: str,
    description: str,
    known: Mapping[str, Option],
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    positional: Sequence[str] = (),
    prefix: str = ENVIRONMENT_PREFIX,
    first: Sequence[str] = (),
) -> dict[str, Any]:
    """Return what was chosen: the command line wins over the environment, the environment over the file.

    ``first`` are the options that ``--help`` shows; ``--help-all`` shows all (without any, ``--help`` does too).
    ``positional`` are options that may be written without their flags, in this order; fewer words are the last ones.

    Raises:
        ConfigError: an option is unknown or its value is wrong.
    """
    if {"-h", "--help"} & set(words) and first:
        shown = {name: known[name] for name in (*positional, *first)}
        parser = _parser(command, description, shown, positional)
        parser.epilog = f"--help-all lists all {sum(not one.is_hidden for one in known.values())} options."
        parser.parse_known_args(["--help"])
    parser = _parser(command, description, known, positional)
    given, unknown = parser.parse_known_intermixed_args([_with_dashes(word) for word in words])
    if len(free := getattr(given, "positional", [])) > len(positional):
        unknown = [*unknown, free[len(positional)]]
    if unknown:
        name = unknown[0].partition("=")[0]
        if not name.startswith("-"):
            raise ConfigError(f"unexpected argument {name!r}")
        raise unknown_option(name, [*known, "config"], "")
    from_command_line = vars(given)
    path = from_command_line.pop("config", None) or environment.get(f"{prefix}CONFIG")
    free = from_command_line.pop("positional", None) or []
    for option, word in zip(positional[len(positional) - len(free) :], free, strict=True):
        from_command_line[option] = known[option].parse(word)
    in_file = from_file(known, path) if path else {}
    values = in_file | from_environment(known, environment, prefix) | from_command_line
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def quote(words: Sequence[str]) -> str:
    """Return a command line for reports to quote; stars stand for keys, since reports are made to be shared."""
    shown, hides = [], False
    for word in words:
        name, equals, _ = _with_dashes(word).partition("=")
        is_secret = name in _SECRETS and not hides
        shown.append("***" if hides else f"{name}=***" if is_secret and equals else word)
        hides = is_secret and not equals
    return shlex.join(shown)


class _Switch(argparse.Action):
    """``--x`` is true and ``--no-x`` false."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, flag: str | None = None
    ) -> None:
        setattr(namespace, self.dest, not (flag or "").startswith("--no-"))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _parser(
    command: str, description: str, known: Mapping[str, Option], positional: Sequence[str]
) -> argparse.ArgumentParser:
    words = " ".join(f"[{known[name].metavar}]" for name in positional)
    parser = _Parser(
        prog=f"hotseat {command}",
        usage=" ".join(filter(None, [f"hotseat {command}", words, "[options]"])),
        description=description,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--help-all", action="help", help="show all options")
    parser.add_argument("--config", metavar="FILE", help="YAML file of options: `max-num-seqs: 32`")
    if positional:
        text = "; ".join(_help(known[name]) for name in positional)
        parser.add_argument("positional", nargs="*", metavar=words, help=text.replace("%", "%%"))
    groups: dict[str, Any] = {}
    for option in known.values():
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        _add_flag(groups[option.group], option)
    return parser


def _add_flag(group: argparse._ArgumentGroup, option: Option) -> None:
    text = argparse.SUPPRESS if option.is_hidden else _help(option).replace("%", "%%")
    if option.is_boolean:
        opposite = f"--no-{option.flag[2:]}"
        flags = [opposite, option.flag] if option.default is True else [option.flag]
        group.add_argument(*flags[::-1], dest=option.name, action=_Switch, nargs=0, help=text)
        if opposite not in flags:
            group.add_argument(opposite, dest=option.name, action=_Switch, nargs=0, help=argparse.SUPPRESS)
        return
    group.add_argument(
        *filter(None, (option.short, option.flag)),
        dest=option.name,
        action="append" if option.is_sequence else "store",
        type=_checked(option),
        choices=option.choices or None,
        metavar=None if option.choices else option.metavar,
        help=text,
    )


def _checked(option: Option) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return option.parse(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _help(option: Option) -> str:
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
