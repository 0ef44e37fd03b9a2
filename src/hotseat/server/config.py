"""Options of the HTTP server."""

from __future__ import annotations

from dataclasses import dataclass, field

from hotseat.errors import ConfigError

__all__ = ["ServerConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Say where to listen, whom to let in, and what to bear.

    Raises:
        ConfigError: a value is out of range; the message names the option and its value.
    """

    host: str = field(default="127.0.0.1", metadata={"help": "address to listen on; 0.0.0.0 is every interface"})
    port: int = field(default=8000, metadata={"help": "TCP port to listen on; 0 takes a free one", "metavar": "PORT"})
    api_key: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "key that clients must send as `Authorization: Bearer KEY`; may be repeated; "
            "NAME=KEY names the tenant that the key belongs to"
        },
    )
    served_model_name: tuple[str, ...] = field(
        default=(), metadata={"help": "name or names under which the model is served; by default its own"}
    )
    protect_metrics: bool = field(default=False, metadata={"help": "ask for the API key at /metrics too"})
    allowed_origins: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "web origin whose pages may call the API (CORS), may be repeated; `*` is any; none by default",
            "metavar": "ORIGIN",
        },
    )
    max_request_bytes: int = field(
        default=8 * 1024 * 1024, metadata={"help": "largest request body; a larger one is refused with 413"}
    )
    sse_keep_alive_interval_s: float = field(
        default=15.0, metadata={"help": "send a comment on a stream that was silent for so many seconds; 0 is never"}
    )
    shutdown_timeout_s: float = field(
        default=30.0, metadata={"help": "seconds that running requests get to finish after SIGTERM"}
    )
    disable_access_log: bool = field(default=False, metadata={"help": "do not log a line at the end of each request"})
    ssl_keyfile: str | None = field(default=None, metadata={"help": "private key for HTTPS (PEM)"})
    ssl_certfile: str | None = field(default=None, metadata={"help": "certificate for HTTPS (PEM)"})
    root_path: str = field(default="", metadata={"help": "path prefix that a proxy in front strips"})

    def __post_init__(self) -> None:
        _check(0 <= self.port <= 65535, "port must be within 0 and 65535", self.port)
        _check(bool(self.host), "host must not be empty", self.host)
        _check(self.max_request_bytes > 0, "max_request_bytes must be positive", self.max_request_bytes)
        for name in ("sse_keep_alive_interval_s", "shutdown_timeout_s"):
            value = getattr(self, name)
            _check(0 <= value < float("inf"), f"{name} must be zero or a positive number", value)
        _check(all(self.served_model_name), "served_model_name must not be empty", self.served_model_name)
        if not all(key.strip("= ") for key in self.api_key):
            raise ConfigError("api_key must not be empty")  # the key is a secret: no message repeats it
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise ConfigError("ssl_keyfile and ssl_certfile must be given together")


def _check(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise ConfigError(f"{rule}, not {value!r}")
