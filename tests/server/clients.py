"""OpenAI's own client, without a socket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import openai

from server.fakes import FakeServer


def ask_openai(server: FakeServer, work: Callable[[openai.AsyncOpenAI], Awaitable[Any]]) -> Any:
    """Run ``work`` with OpenAI's client, whose requests go straight to the application."""

    async def talk() -> Any:
        http_client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=server.app))
        async with openai.AsyncOpenAI(
            api_key="any", base_url="http://localhost/v1", http_client=http_client, max_retries=0
        ) as client:
            return await work(client)

    return server.run(talk())
