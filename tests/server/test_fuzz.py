"""Any body gets 2xx or 4xx, and the next plain request still works."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotseat.server.anthropic_schema import MessagesRequest
from hotseat.server.responses_schema import ResponsesRequest
from hotseat.server.schema import ChatCompletionRequest, CompletionRequest
from server.fakes import FakeServer, chat, completion

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
# Values that are nearly right reach further than random ones.
likely_values = st.sampled_from(
    [0, 1, -1, 2, 0.5, 1e308, 2**31, 2**63, True, "", "T", "text", [], ["T"], [1, 2], [[1]], {}, {"5": 1}]
)


def bodies(plain: dict[str, Any], fields: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Return plain requests with some fields replaced."""
    changes = st.dictionaries(st.sampled_from(fields), likely_values | json_values, max_size=4)
    return changes.map(lambda changed: {**plain, **changed})


@pytest.fixture(scope="module")
def one_server() -> Iterator[FakeServer]:
    server = FakeServer(max_model_len=64, num_kv_blocks=16)
    yield server
    server.close()


MESSAGE = {"model": "fake", "messages": [{"role": "user", "content": "Say something"}], "max_tokens": 8}
SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SETTINGS
@given(body=bodies(completion(), list(CompletionRequest.model_fields)))
def test_any_completion_gets_an_answer_and_the_next_one_too(one_server: FakeServer, body: dict[str, Any]) -> None:
    check(one_server, "/v1/completions", body)


@SETTINGS
@given(body=bodies(chat(), list(ChatCompletionRequest.model_fields)))
def test_any_chat_gets_an_answer_and_the_next_one_too(one_server: FakeServer, body: dict[str, Any]) -> None:
    check(one_server, "/v1/chat/completions", body)


@settings(SETTINGS, max_examples=60)
@given(body=bodies(MESSAGE, list(MessagesRequest.model_fields)))
def test_any_message_gets_an_answer_and_the_next_one_too(one_server: FakeServer, body: dict[str, Any]) -> None:
    check_other_api(one_server, "/v1/messages", body)


@settings(SETTINGS, max_examples=60)
@given(body=bodies({"input": "Say something", "max_output_tokens": 8}, list(ResponsesRequest.model_fields)))
def test_any_input_gets_a_response_and_the_next_one_too(one_server: FakeServer, body: dict[str, Any]) -> None:
    check_other_api(one_server, "/v1/responses", body)


def check_other_api(one_server: FakeServer, path: str, body: dict[str, Any]) -> None:
    reply = one_server.post(path, body)
    assert reply.status in (200, 400, 404), (reply.status, reply.body, body)
    assert reply.status == 200 or reply.error["message"]
    assert one_server.post("/v1/completions", completion()).json()["choices"][0]["text"] == one_server.text(8)


@SETTINGS
@given(body=st.binary(max_size=40) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_get_an_answer(one_server: FakeServer, body: bytes) -> None:
    for path in (
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/messages",
        "/tokenize",
        "/detokenize",
        "/abort_requests",
    ):
        reply = one_server.post(path, body)
        assert reply.status < 500, reply.body
        assert reply.status == 200 or reply.error["message"]


def check(server: FakeServer, path: str, body: dict[str, Any]) -> None:
    reply = server.post(path, body)
    assert reply.status in (200, 400, 404), (reply.status, reply.body, body)
    if reply.status != 200:
        assert reply.error["message"]
    elif body.get("stream"):
        assert all("error" not in event for event in reply.events())
    assert server.post("/v1/completions", completion()).json()["choices"][0]["text"] == server.text(8)
