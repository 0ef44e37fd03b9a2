"""Fixtures of the server's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hotseat.text import ChatTemplate
from server.fakes import HERMES, FakeRunner, FakeServer


@pytest.fixture
def start() -> Iterator[Callable[..., FakeServer]]:
    """Start servers with options of the test's own; they stop when it ends."""
    servers: list[FakeServer] = []

    def start_one(**options: Any) -> FakeServer:
        servers.append(FakeServer(**options))
        return servers[-1]

    yield start_one
    for server in servers:
        server.close()


@pytest.fixture
def answering(start: Callable[..., FakeServer]) -> Callable[..., FakeServer]:
    """Start servers whose model writes a given reply and ends."""

    def make(reply: str = "Hello there", template: str = HERMES, **options: Any) -> FakeServer:
        return start(
            runner=FakeRunner(reply=reply, ends=True), services={"chat_template": ChatTemplate(template)}, **options
        )

    return make


@pytest.fixture
def server(start: Callable[..., FakeServer]) -> FakeServer:
    return start()
