"""A command, one call of it, and the options of the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hotseat import options

__all__ = ["LOG_OPTIONS", "Command", "Invocation", "LogOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One call of a command."""

    values: dict[str, Any]  # the options that were chosen
    line: str  # the command line, for reports to quote
    started_at: float
    is_plain: bool = False  # the terminal's user wants no colours (NO_COLOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command: its help, its options and its function. ``log_level`` is the default of a command that logs."""

    help: str
    known: Callable[[], dict[str, options.Option]]
    run: Callable[[Invocation], int]
    positional: tuple[str, ...] = ()
    prefix: str = options.ENVIRONMENT_PREFIX
    log_level: str | None = None
    first: tuple[str, ...] = ()  # options that its --help shows; without any, all


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """The level of the log."""

    log_level: str | None = field(
        default=None,
        metadata={
            "help": "what is logged",
            "choices": ["debug", "info", "warning", "error"],
            "aliases": {name.upper(): name for name in ("debug", "info", "warning", "error")},
        },
    )


LOG_OPTIONS = options.collect(("logging", LogOptions))
