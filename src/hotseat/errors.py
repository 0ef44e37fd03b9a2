"""Exceptions that a caller may meet.

    HotseatError
    ├── InvalidRequestError      the caller's fault: a field, a value, a limit (HTTP 400)
    │   └── PromptTooLongError   the sequence can never fit (HTTP 400)
    ├── ModelError               a model cannot be used
    │   ├── ModelNotFoundError   no such file, directory or hub id
    │   └── UnsupportedModelError  architecture or tensor type that Hotseat does not run
    ├── ConfigError              an option of the engine or server is wrong
    ├── GrammarError             a grammar cannot go on; its request ends (HTTP 500)
    ├── QueueFullError           the waiting queue is at its limit (HTTP 503)
    └── EngineStoppedError       the engine is shut down or died (HTTP 503)

Our own mistakes are ``assert`` statements, never one of these.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "EngineStoppedError",
    "GrammarError",
    "HotseatError",
    "InvalidRequestError",
    "ModelError",
    "ModelNotFoundError",
    "PromptTooLongError",
    "QueueFullError",
    "UnsupportedModelError",
]


class HotseatError(Exception):
    """Root of every exception that Hotseat raises on purpose."""


class InvalidRequestError(HotseatError):
    """A request asks for something that cannot be done.

    ``param`` names the offending field as the client wrote it, or is ``None``.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLongError(InvalidRequestError):
    """The prompt (plus what is asked for) exceeds what the engine can ever hold."""


class ModelError(HotseatError):
    """A model cannot be used."""


class ModelNotFoundError(ModelError):
    """No model is at the given path or hub id."""


class UnsupportedModelError(ModelError):
    """The model's architecture or a tensor type is not supported; the message lists those that are."""


class ConfigError(HotseatError):
    """An option of the engine or server is wrong; the message names the option and its value."""


class GrammarError(HotseatError):
    """The grammar of one answer cannot go on: it ran out of its fuel, or was given a token that it forbids."""


class QueueFullError(HotseatError):
    """The waiting queue is at its limit; try again later."""


class EngineStoppedError(HotseatError):
    """The engine takes no more requests: it was shut down, or it died."""
