"""Options of the server."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hotseat.errors import ConfigError
from hotseat.server import ServerConfig


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", -1),
        ("port", 65536),
        ("host", ""),
        ("max_request_bytes", 0),
        ("sse_keep_alive_interval_s", -1.0),
        ("shutdown_timeout_s", float("inf")),
        ("shutdown_timeout_s", float("nan")),
        ("served_model_name", ("",)),
        ("api_key", ("",)),
        ("api_key", ("good", "=")),
        ("ssl_keyfile", "key.pem"),
        ("tool_call_parser", "x"),
        ("reasoning_parser", "x"),
    ],
)
def test_a_wrong_option_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        ServerConfig(**{name: value})


def test_every_option_explains_itself() -> None:
    assert all(field.metadata["help"] for field in dataclasses.fields(ServerConfig))


def test_the_server_listens_on_this_machine_only_by_default() -> None:
    assert ServerConfig().host == "127.0.0.1"
    assert ServerConfig().port == 8000
