"""Hostile clients, one of each kind: what they send, and how. ``hurt.py`` measures what they do to others.

Only for a server of one's own on the loopback address.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from hotseat.loadgen.http_client import HttpClient

MEGABYTE = 1024 * 1024
LARGE = 8 * MEGABYTE - 4096  # just below the largest body that a server takes by default
NUM_SLOW = 200

Attack = Callable[[str, float, Counter[str]], Awaitable[None]]  # url, seconds, what it was answered


async def send_forever(
    url: str, seconds: float, answers: Counter[str], path: str, message: bytes, *, at_once: int = 1
) -> None:
    """Send ``message`` again and again over ``at_once`` connections, until the time is up."""
    client, give_up_at = HttpClient(url), time.monotonic() + seconds

    async def one() -> None:
        while time.monotonic() < give_up_at:
            try:
                response = await client.post(path, message, lambda data, now: None)
                answers[str(response.status)] += 1
                await asyncio.sleep(0.01)
            except OSError as error:
                answers[type(error).__name__] += 1
                await asyncio.sleep(0.1)

    tasks = [asyncio.create_task(one()) for _ in range(at_once)]
    try:
        await asyncio.wait(tasks, timeout=seconds)
        answers["unanswered"] += sum(not task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        client.close()


def posts(path: str, body: dict[str, Any] | Callable[[], bytes], *, at_once: int = 1) -> Attack:
    """Return a client that sends one body for ever."""

    async def attack(url: str, seconds: float, answers: Counter[str]) -> None:
        message = json.dumps(body).encode() if isinstance(body, dict) else body()
        await send_forever(url, seconds, answers, path, message, at_once=at_once)

    return attack


async def many_salts(url: str, seconds: float, answers: Counter[str]) -> None:
    """Small prompts, each with a salt of 8 MB of its own."""
    client, give_up_at, i = HttpClient(url), time.monotonic() + seconds, 0
    while time.monotonic() < give_up_at:
        i += 1
        body = {"prompt": "sixteen words " * 12, "max_tokens": 1, "cache_salt": f"{i:08}" * (LARGE // 8)}
        response = await client.post("/v1/completions", json.dumps(body).encode(), lambda data, now: None)
        answers[str(response.status)] += 1
    client.close()


async def waiting_and_listed(url: str, seconds: float, answers: Counter[str]) -> None:
    """10,000 sequences that wait, while all requests are listed again and again."""
    body = {"prompt": ["The sea is calm"] * 100, "max_tokens": 50, "stream": True, "ignore_eos": True}
    fill = asyncio.create_task(
        send_forever(url, seconds, answers, "/v1/completions", json.dumps(body).encode(), at_once=100)
    )
    client = HttpClient(url)
    while not fill.done():
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            response = await asyncio.wait_for(client.get("/v1/requests"), seconds)
            answers[f"list {response.status}"] += 1
        await asyncio.sleep(0.05)
    await fill
    client.close()


def trickles(first: bytes, piece: bytes, *, every_s: float, connections: int = NUM_SLOW) -> Attack:
    """Return a client with many connections that send ``first``, and then ``piece`` now and then; none at all if empty.

    At the end it counts how many connections the server had closed.
    """

    async def attack(url: str, seconds: float, answers: Counter[str]) -> None:
        host, port, give_up_at = urlsplit(url).hostname, urlsplit(url).port, time.monotonic() + seconds

        async def one() -> None:
            try:
                reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), seconds)
            except (TimeoutError, OSError) as error:
                answers[type(error).__name__] += 1
                return
            try:
                writer.write(first)
                while time.monotonic() < give_up_at and not reader.at_eof():
                    if piece:
                        writer.write(piece)
                        await writer.drain()
                    with contextlib.suppress(asyncio.TimeoutError):
                        data = await asyncio.wait_for(reader.read(65536), min(every_s, seconds))
                        answers[data[9:12].decode("latin-1") or "closed"] += 1
                        return
                answers["still open"] += 1
            except OSError:
                answers["closed"] += 1
            finally:
                writer.close()

        await asyncio.gather(*(one() for _ in range(connections)))

    return attack


async def slow_reader(url: str, seconds: float, answers: Counter[str]) -> None:
    """Long streams with log-probabilities whose bytes are never read."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    body = {"prompt": "x", "max_tokens": 2000, "n": 8, "stream": True, "logprobs": 20, "ignore_eos": True}
    message = json.dumps(body).encode()
    head = _BEGUN + b"Content-Length: %d\r\n\r\n" % len(message)
    writers = []
    for _ in range(4):
        reader, writer = await asyncio.open_connection(host, port, limit=1024)
        writer.write(head + message)
        await writer.drain()
        writers.append((reader, writer))
    await asyncio.sleep(seconds)
    answers["never read"] += len(writers)
    for _, writer in writers:
        writer.transport.abort()


def _chat(text: str, **further: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 4, **further}


_BEGUN = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
_WILD = {"temperature": 2.0, "top_p": 0.9999, "max_tokens": 200, "ignore_eos": True, "prompt": "The sea"}

ATTACKS: dict[str, Attack] = {
    "stop of 8 MB, n 128": posts("/v1/completions", {"prompt": "x", "stop": "s" * LARGE, "n": 128, "max_tokens": 4}),
    "100,000 stops": posts("/v1/completions", {"prompt": "x", "stop": [f"stop{i}" for i in range(100_000)], "n": 64}),
    "salts of 8 MB": many_salts,
    "user of 8 MB": posts("/v1/completions", {"prompt": "x", "user": "u" * LARGE, "max_tokens": 1}),
    "a million allowed ids": posts(
        "/v1/completions", {"prompt": "x", "allowed_token_ids": list(range(1000)) * 1000, "n": 16, "max_tokens": 64}
    ),
    "10,000 waiting, listed": waiting_and_listed,
    "1,024 prompts": posts("/v1/completions", {"prompt": ["The sea is calm. " * 20] * 1024, "max_tokens": 4}),
    "n 128": posts("/v1/completions", {"prompt": "The sea", "n": 128, "max_tokens": 200, "ignore_eos": True}),
    "top_p 0.9999 at temperature 2": posts("/v1/completions", {**_WILD, "n": 64}),
    "deep JSON": posts("/v1/completions", lambda: b'{"prompt": ' + b"[" * (LARGE - 100)),
    "wide JSON": posts("/v1/completions", lambda: b'{"prompt": "x", "more": [' + b"{}," * (LARGE // 3 - 100) + b"1]}"),
    "chat of 7 MB": posts("/v1/chat/completions", _chat("the sea is calm " * 440_000), at_once=2),
    "tokenize 7 MB": posts("/tokenize", {"prompt": "the sea is calm " * 440_000}, at_once=2),
    "completion of 7 MB": posts("/v1/completions", {"prompt": "the sea is calm " * 440_000, "max_tokens": 1}),
    "detokenize a million": posts("/detokenize", {"tokens": [7] * 1_000_000}),
    "16,000 messages": posts("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 400}] * 16_000}),
    "template bomb": posts(
        "/v1/chat/completions",
        _chat("hi", chat_template="{% for i in range(10**9) %}{% for j in range(10**9) %}x{% endfor %}{% endfor %}"),
    ),
    "65,536 aborts": posts("/abort_requests", {"request_ids": [f"cmpl-{i}" for i in range(65_536)]}),
    "reset again and again": posts("/reset_prefix_cache", {}, at_once=4),
    "slow header": trickles(b"GET / HTTP/1.1\r\n", b"a: b\r\n", every_s=1.0),
    "slow body": trickles(_BEGUN + b"Content-Length: 100000\r\n\r\n{", b" ", every_s=1.0),
    "idle connections": trickles(b"", b"", every_s=600.0, connections=1000),
    "huge header": trickles(b"GET / HTTP/1.1\r\n", b"a: " + b"b" * MEGABYTE + b"\r\n", every_s=0.1, connections=2),
    "slow reader": slow_reader,
}
