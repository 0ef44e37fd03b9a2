"""Embeddings by OpenAI's client, and what the endpoint refuses."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from typing import Any

import pytest

from server.clients import ask_openai
from server.fakes import FakeServer


def embed(server: FakeServer, **fields: Any) -> Any:
    return ask_openai(server, lambda client: client.embeddings.create(**{"model": "fake", "input": "hot", **fields}))


def test_both_formats_have_the_same_numbers(server: FakeServer) -> None:
    by_default = embed(server)  # the client asks for base64
    as_floats = embed(server, encoding_format="float")
    assert by_default.data[0].embedding == as_floats.data[0].embedding
    assert math.hypot(*as_floats.data[0].embedding) == pytest.approx(1)
    (x, y, z) = as_floats.data[0].embedding
    assert (x / z, y / z) == (pytest.approx(3), pytest.approx(ord("h")))
    raw = server.post("/v1/embeddings", {"input": "hot", "encoding_format": "base64"}).json()["data"][0]["embedding"]
    assert list(struct.unpack("<3f", base64.b64decode(raw))) == as_floats.data[0].embedding


def test_texts_and_ids_are_told_in_their_order(server: FakeServer) -> None:
    texts = embed(server, input=["hot", "a", "seat"])
    ids = embed(server, input=[list(b"hot"), list(b"a"), list(b"seat")])
    assert [item.index for item in texts.data] == [0, 1, 2]
    assert [item.embedding for item in texts.data] == [item.embedding for item in ids.data]
    assert (texts.usage.prompt_tokens, texts.usage.total_tokens) == (8, 8)
    assert embed(server, input=list(b"hot")).data[0].embedding == texts.data[0].embedding


def test_fewer_dimensions_have_the_length_one_too(server: FakeServer) -> None:
    values = embed(server, dimensions=2, encoding_format="float").data[0].embedding
    assert len(values) == 2
    assert math.hypot(*values) == pytest.approx(1)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [999_999]}, "input"),
        ({"input": "x" * 600}, "input"),
        ({"dimensions": 4}, "dimensions"),
        ({"dimensions": 0}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"pooling": "cls"}, "pooling"),
        ({"suffix": "x"}, "suffix"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"priority": 5}, "priority"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(server: FakeServer, fields: dict[str, Any], param: str) -> None:
    reply = server.post("/v1/embeddings", {"input": "hot", **fields})
    assert (reply.status, reply.error["param"]) == (400, param)


def test_an_abort_is_told(start: Callable[..., FakeServer]) -> None:
    server = start()
    server.runner.hold()

    async def abort() -> int:
        exchange, task = server.start_post("/v1/embeddings", {"input": ["hot", "seat"]})
        await server.runner.until_entered()
        ((_, entry),) = server.in_flight.items()
        entry.end(None)
        await task
        return exchange.status

    assert server.run(abort()) == 409


def test_the_tokenizer_is_described(server: FakeServer) -> None:
    info = server.get("/tokenizer_info").json()
    assert (info["bos_token"], info["eos_token"], info["pad_token"]) == ("<bos>", "<eos>", None)
    assert (info["vocab_size"], info["model_max_length"]) == (258, 512)
    assert "add_generation_prompt" in info["chat_template"]
