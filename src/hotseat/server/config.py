"""Options of the HTTP server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hotseat.errors import ConfigError
from hotseat.formats import reasoning_parser_names, tool_parser_names

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
            "NAME=KEY names the tenant that the key belongs to. Other users of the machine can see a command line: "
            "HOTSEAT_API_KEY, --config and --api-key-file keep the key out of it"
        },
    )
    api_key_file: Path | None = field(
        default=None, metadata={"help": "file with an API key a line, KEY or NAME=KEY; read again when it changes"}
    )
    admin_api_key: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "key that may see and abort the requests of others and reset the prefix cache, may be repeated",
            "metavar": "KEY",
        },
    )
    isolate_prefix_cache: bool = field(
        default=False, metadata={"help": "share cached prefixes only among the requests of one API key"}
    )
    allowed_hosts: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "name that the Host header may hold beside localhost and addresses; may be repeated; `.NAME` is "
            "any subdomain, `*` any name; on a loopback address without API keys no other name passes",
            "metavar": "NAME",
        },
    )
    served_model_name: tuple[str, ...] = field(
        default=(), metadata={"help": "name or names under which the model is served; by default its own"}
    )
    tool_call_parser: str | None = field(
        default=None,
        metadata={"help": "format in which the model calls tools; by default found by the chat template"},
    )
    reasoning_parser: str | None = field(
        default=None,
        metadata={"help": "format of the model's reasoning; by default found by the chat template"},
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
        default=4 * 1024 * 1024, metadata={"help": "largest request body; a larger one is refused with 413"}
    )
    pooling: Literal["last", "mean"] = field(
        default="last",
        metadata={
            "help": "what stands for a text in /v1/embeddings: its last token's hidden state, or the mean of all"
        },
    )
    sse_keep_alive_interval_s: float = field(
        default=15.0, metadata={"help": "send a comment on a stream that was silent for so many seconds; 0 is never"}
    )
    receive_timeout_s: float = field(
        default=60.0,
        metadata={
            "help": "seconds that a client has to send a request, header and body, from the connection or its first "
            "byte on; then 408; 0 is no limit"
        },
    )
    max_connections: int | None = field(
        default=None,
        metadata={
            "help": "connections at a time; for one more, that which has sent no request for the longest is closed, "
            "or, where all are busy, the new one gets 503; none: as many as files may be open, less 64"
        },
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
        connections = self.max_connections
        _check(connections is None or connections > 0, "max_connections must be positive", connections)
        for name in ("sse_keep_alive_interval_s", "receive_timeout_s", "shutdown_timeout_s"):
            value = getattr(self, name)
            _check(0 <= value < float("inf"), f"{name} must be zero or a positive number", value)
        _check(all(self.served_model_name), "served_model_name must not be empty", self.served_model_name)
        for name in ("api_key", "admin_api_key"):
            if not all(key.strip("= ") for key in getattr(self, name)):
                raise ConfigError(f"{name} must not be empty")  # the key is a secret: no message repeats it
        for name, known in (("tool_call_parser", tool_parser_names()), ("reasoning_parser", reasoning_parser_names())):
            value = getattr(self, name)
            _check(value is None or value in known, f"{name} must be one of {', '.join(known)}", value)
        _check(all(self.allowed_hosts), "allowed_hosts must not be empty", self.allowed_hosts)
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise ConfigError("ssl_keyfile and ssl_certfile must be given together")


def _check(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise ConfigError(f"{rule}, not {value!r}")
