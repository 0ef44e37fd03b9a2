"""Options of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from hotseat.errors import ConfigError

__all__ = ["EngineConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The engine's stall time-out and the number of step records that it keeps.

    Raises:
        ConfigError: a value is out of range; the message names the option and its value.
    """

    stall_timeout_s: float = field(
        default=60.0,
        metadata={"help": "/health answers 503 when requests wait and no step made progress for so many seconds"},
    )
    num_step_records: int = field(default=4096, metadata={"help": "steps whose records are kept for /v1/steps"})

    def __post_init__(self) -> None:
        if not self.stall_timeout_s > 0:
            raise ConfigError(f"stall_timeout_s must be a positive number, not {self.stall_timeout_s!r}")
        if self.num_step_records < 1:
            raise ConfigError(f"num_step_records must be a positive integer, not {self.num_step_records!r}")
