"""The event loop goes on while a body of any kind is read, refused or answered."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hotseat.server.body import MAX_VALUES, num_values
from hotseat.server.lag import LagMonitor
from server.fakes import Exchange, FakeServer, chat, completion

MAX_SILENCE_S = 0.5  # a tenth of it on an idle machine; seconds when one call does it all


@pytest.fixture(autouse=True)
def frozen_garbage() -> Iterator[None]:
    """Keep the tests' own objects out of the collector's way, as the server does with its modules."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def post(server: FakeServer, target: str, data: bytes) -> tuple[int, dict[str, Any], float]:
    """Return status, body and the longest silence of the event loop meanwhile."""

    async def exchange() -> tuple[int, dict[str, Any], float]:
        gaps: list[float] = []

        async def tick() -> None:
            last = time.perf_counter()
            while True:
                await asyncio.sleep(0.001)
                gaps.append(time.perf_counter() - last)
                last += gaps[-1]

        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0.01)
        one = Exchange("POST", target, data, {"content-type": "application/json"})
        await server.app(one.scope, one.receive, one.send)
        await asyncio.sleep(0.01)
        ticking.cancel()
        return one.status, one.reply().json(), max(gaps)

    return server.run(exchange())  # type: ignore[no-any-return]


def test_aborts_by_the_thousand_let_others_in_between(server: FakeServer) -> None:
    ids = [f"cmpl-{number:032x}" for number in range(65_536)]
    status, body, silence_s = post(server, "/abort_requests", json.dumps({"request_ids": ids}).encode())
    assert (status, body) == (200, {"aborted": [], "not_found": ids})
    assert silence_s < MAX_SILENCE_S


@pytest.mark.parametrize(
    ("target", "data"),
    [
        ("/v1/completions", b'{"prompt":"a","x":[' + b",".join([b"[]"] * 1_300_000) + b"]}"),
        ("/v1/completions", b'{"prompt":"a","x":[' + b",".join([b'{"a":1}'] * 500_000) + b"]}"),
        ("/v1/completions", b'{"prompt":"a",' + b",".join(b'"x%d":1' % number for number in range(300_000)) + b"}"),
        ("/v1/completions", b'{"prompt":[' + b",".join([b"65"] * 1_300_000) + b"]}"),
        ("/detokenize", b'{"tokens":[' + b",".join([b"65"] * 1_300_000) + b"]}"),
    ],
    ids=["lists", "objects", "names", "token ids", "tokens"],
)
def test_a_body_of_a_million_values_is_refused_before_they_are_made(
    server: FakeServer, target: str, data: bytes
) -> None:
    status, body, silence_s = post(server, target, data)
    assert status == 413
    assert str(MAX_VALUES) in body["error"]["message"]
    assert silence_s < MAX_SILENCE_S


def test_values_are_counted_outside_of_texts_alone() -> None:
    texts = ["a,b:[c]{d}", 'quoted ",[{:" twice', "back\\slash\\", '\\"', "", "é\n"]
    assert num_values(json.dumps(texts).encode(), 100) == len(texts)  # five commas and a list
    assert num_values(json.dumps({"a": texts, "b": {"c": 1}}).encode(), 100) == len(texts) + 6
    assert num_values(b"[" * 1000, 100) > 100
    assert num_values(b'{"a": "' + b"," * 1000, 100) == 2  # a text without an end


def test_a_text_of_commas_is_no_list_of_values(server: FakeServer) -> None:
    status, body, _ = post(server, "/tokenize", json.dumps({"prompt": "," * (2 * MAX_VALUES)}).encode())
    assert status == 400
    assert "max_model_len" in body["error"]["message"]


def test_messages_and_template_arguments_are_bounded(server: FakeServer) -> None:
    message = {"role": "user", "content": "a"}
    for field, value in (("messages", [message] * 4097), ("chat_template_kwargs", {f"k{i}": i for i in range(257)})):
        reply = server.post("/v1/chat/completions", chat(**{field: value}))
        assert (reply.status, reply.error["param"]) == (400, field)


def test_log_probabilities_by_the_hundred_thousand_are_written_beside_the_others(
    start: Callable[..., FakeServer],
) -> None:
    server = start(max_num_seqs=64, num_kv_blocks=2048, max_num_batched_tokens=512)
    request = completion(n=64, max_tokens=200, logprobs=20)
    status, body, silence_s = post(server, "/v1/completions", json.dumps(request).encode())
    assert status == 200
    assert [len(choice["logprobs"]["tokens"]) for choice in body["choices"]] == [200] * 64
    assert silence_s < MAX_SILENCE_S


def test_the_lag_of_the_loop_is_what_held_it() -> None:
    async def scenario() -> list[float]:
        lags: list[float] = []
        monitor = LagMonitor(lags.append)
        while len(lags) < 2:
            await asyncio.sleep(0)
        time.sleep(0.2)
        num_before = len(lags)
        while len(lags) == num_before:
            await asyncio.sleep(0)
        monitor.stop()
        await asyncio.sleep(0.05)
        assert len(lags) == num_before + 1
        return lags

    lags = asyncio.run(scenario())
    assert lags[-1] > 0.15
    assert min(lags) >= 0.0
