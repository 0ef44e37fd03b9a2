"""What is refused, with which status and which param; and that the server lives on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from hotseat.server import ServerConfig
from server.fakes import FakeServer, chat, completion

BAD_COMPLETIONS: list[tuple[str, dict[str, Any]]] = [
    ("prompt", {"prompt": ""}),
    ("prompt", {"prompt": []}),
    ("prompt", {"prompt": [""]}),
    ("prompt", {"prompt": ["ok", ""]}),
    ("prompt", {"prompt": [[]]}),
    ("prompt", {"prompt": None}),
    ("prompt", {"prompt": {"text": "x"}}),
    ("prompt", {"prompt": [1, "x"]}),
    ("prompt", {"prompt": [-1]}),
    ("prompt", {"prompt": [258]}),
    ("prompt", {"prompt": [2**40]}),
    ("prompt", {"prompt": ["x"] * 1025}),
    ("prompt", {"prompt": "x" * 600}),
    ("n", {"n": 0}),
    ("n", {"n": 5_000_000}),
    ("n", {"n": 100, "prompt": ["x"] * 100}),
    ("max_tokens", {"max_tokens": -1}),
    ("max_tokens", {"max_tokens": 500}),
    ("max_tokens", {"max_tokens": True}),
    ("min_tokens", {"min_tokens": 9}),
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": "hot"}),
    ("top_p", {"top_p": 0}),
    ("top_k", {"top_k": -2}),
    ("min_p", {"min_p": 1.5}),
    ("presence_penalty", {"presence_penalty": 3}),
    ("repetition_penalty", {"repetition_penalty": 0}),
    ("seed", {"seed": 2**64}),
    ("stop", {"stop": ""}),
    ("stop", {"stop": ["a", ""]}),
    ("stop", {"stop": ["a"] * 17}),
    ("stop_token_ids", {"stop_token_ids": [None]}),
    ("stop_token_ids", {"stop_token_ids": [258]}),
    ("logit_bias", {"logit_bias": {"191222": -100}}),
    ("logit_bias", {"logit_bias": {"AI": -100}}),
    ("logit_bias", {"logit_bias": {"1": None}}),
    ("allowed_token_ids", {"allowed_token_ids": []}),
    ("logprobs", {"logprobs": 10**9}),
    ("logprobs", {"logprobs": -2}),
    ("logprobs", {"logprobs": True}),
    ("prompt_logprobs", {"prompt_logprobs": 1, "stream": True}),
    ("stream_options", {"stream_options": {"include_usage": True}}),
    ("priority", {"priority": 1}),
    ("deadline_ms", {"deadline_ms": 0}),
    ("best_of", {"best_of": 2}),
    ("suffix", {"suffix": "the end"}),
    ("use_beam_search", {"use_beam_search": True}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": 0}),
    ("response_format", {"response_format": {"type": "xml"}}),
    ("response_format", {"response_format": {"type": "json_schema"}}),
    ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}),
    ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}}),
    ("structured_outputs", {"structured_outputs": {}}),
    ("structured_outputs", {"structured_outputs": {"regex": "a", "choice": ["b"]}}),
    ("structured_outputs", {"structured_outputs": {"choice": []}}),
    ("structured_outputs", {"structured_outputs": {"json_object": False}}),
    ("structured_outputs", {"structured_outputs": {"regexp": "a"}}),
    ("structured_outputs", {"structured_outputs": {"json": {"type": "array", "uniqueItems": True}}}),
    ("guided_json", {"guided_json": {"not": {"type": "string"}}}),
    ("guided_json", {"guided_json": {"$ref": "#"}}),
    ("guided_regex", {"guided_regex": "("}),
    ("guided_choice", {"guided_choice": []}),
    ("guided_grammar", {"guided_grammar": ""}),
    ("grammar", {"grammar": "root ::= [a]", "json_schema": {}}),
    ("grammar", {"grammar": 'root ::= "a'}),
]

BAD_CHATS: list[tuple[str, dict[str, Any]]] = [
    ("messages", {"messages": []}),
    ("messages", {"messages": {}}),
    ("messages", {"messages": [{"content": "no role"}]}),
    ("messages", {"messages": [{"role": "user", "content": 5}]}),
    ("max_tokens", {"max_tokens": 0}),
    ("top_logprobs", {"top_logprobs": 2}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 10**9}),
    ("logprobs", {"logprobs": 1}),
    ("tools", {"tools": []}),
    ("tools", {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ("chat_template", {"chat_template": "{{ 1 }}"}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"tools": []}}),
    ("continue_final_message", {"continue_final_message": True}),
    ("modalities", {"modalities": ["text", "audio"]}),
    ("functions", {"functions": [{"name": "f"}]}),
]


@pytest.mark.parametrize(("param", "fields"), BAD_COMPLETIONS)
def test_a_bad_completion_gets_400_with_its_field(server: FakeServer, param: str, fields: dict[str, Any]) -> None:
    check_refusal(server, "/v1/completions", completion(**fields), param)


@pytest.mark.parametrize(("param", "fields"), BAD_CHATS)
def test_a_bad_chat_gets_400_with_its_field(server: FakeServer, param: str, fields: dict[str, Any]) -> None:
    check_refusal(server, "/v1/chat/completions", chat(**fields), param)


def check_refusal(server: FakeServer, path: str, body: dict[str, Any], param: str) -> None:
    for stream in (False, True) if "stream_options" not in body and "stream" not in body else (None,):
        reply = server.post(path, body if stream is None else body | {"stream": stream})
        assert reply.status == 400, reply.body
        assert reply.error["param"] == param
        assert reply.error["type"] == "BadRequestError"
        assert reply.error["code"] == 400
        assert len(reply.error["message"]) < 2000
        assert reply.headers["x-should-retry"] == "false"
        assert reply.headers["content-type"] == "application/json"
    assert server.engine.stats().num_running == 0
    assert server.post("/v1/completions", completion()).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"5",
        b'{"prompt": NaN}',
        b'{"prompt": "x", "temperature": Infinity}',
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"prompt": "x", "unknown": ' + b"[" * 100 + b"]" * 100 + b"}",
    ],
)
def test_what_is_no_good_json_gets_400(server: FakeServer, body: bytes) -> None:
    reply = server.post("/v1/completions", body)
    assert reply.status == 400, reply.body
    assert reply.error["type"] == "BadRequestError"
    assert server.post("/v1/completions", completion()).status == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ["x"] * 100_000},
        {"prompt": [1] * 100_000 + ["x"]},
        {"prompt": ["x", 1] * 50_000},
        {"prompt": [[]] * 60_000},
        {"stop": [1] * 100_000},
        {"logit_bias": {str(token_id): None for token_id in range(40_000)}},
    ],
)
def test_a_large_mistake_is_refused_in_little_time(server: FakeServer, fields: dict[str, Any]) -> None:
    """Others are served by the same event loop: one complaint is made, not one for each item."""
    reply = server.post("/v1/completions", completion(**fields))
    assert reply.status == 400
    assert len(reply.error["message"]) < 1000


def test_a_lone_surrogate_in_a_message_gets_400(server: FakeServer) -> None:
    body = b'{"messages": [{"role": "user", "content": "\\ud800"}], "stream": true}'
    assert server.post("/v1/chat/completions", body).status == 400


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_other_content_types_get_400(server: FakeServer, content_type: str) -> None:
    reply = server.post("/v1/completions", completion(), {"content-type": content_type})
    assert reply.status == 400
    assert "application/json" in reply.error["message"]


def test_a_charset_beside_the_content_type_is_fine(server: FakeServer) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    assert server.post("/v1/completions", completion(), headers).status == 200


def test_an_unknown_model_gets_404(server: FakeServer) -> None:
    reply = server.post("/v1/completions", completion(model="gpt-9"))
    assert reply.status == 404
    assert reply.error == {
        "message": "The model `gpt-9` does not exist; this server has `fake`, `org/fake`.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }


def test_unknown_fields_are_ignored(server: FakeServer) -> None:
    fields = {"surprise": {"a": [1]}, "best_of": 1, "store": False, "metadata": {"k": "v"}, "suffix": None}
    assert server.post("/v1/completions", completion(**fields)).status == 200


def test_values_that_ask_for_nothing_special_are_accepted(server: FakeServer) -> None:
    fields = {"response_format": {"type": "text"}, "modalities": ["text"], "tool_choice": "auto", "n": None}
    assert server.post("/v1/chat/completions", chat(**fields)).status == 200


def test_priority_is_taken_where_the_policy_honours_it(start: Callable[..., FakeServer]) -> None:
    server = start(scheduling_policy="priority", services={"honours_priority": True})
    assert server.post("/v1/completions", completion(priority=-3)).status == 200


def test_a_body_above_the_limit_gets_413(start: Callable[..., FakeServer]) -> None:
    server = start(config=ServerConfig(max_request_bytes=200))
    body = completion(prompt="x" * 300)
    for headers in ({}, {"content-length": "400"}):  # without the header the body is counted as it comes
        reply = server.post("/v1/completions", body, headers)
        assert reply.status == 413
        assert reply.error["code"] == 413
    assert server.post("/v1/completions", completion()).status == 200


def test_more_sequences_than_can_ever_sit_and_wait_get_400(start: Callable[..., FakeServer]) -> None:
    server = start(max_num_seqs=2, max_num_queued_reqs=1)
    for body in (completion(n=4), completion(prompt=["a", "b"], n=2)):
        reply = server.post("/v1/completions", body)
        assert reply.status == 400
        assert reply.error["param"] == "n"
        assert "is 4, but this server has 2 seats and lets 1 sequences wait" in reply.error["message"]
    assert server.post("/v1/completions", completion(n=3)).status == 200


def test_a_full_queue_gets_503_with_a_hint_when_to_come_back(start: Callable[..., FakeServer]) -> None:
    server = start(max_num_seqs=1, max_num_queued_reqs=1)

    async def crowd() -> list[int]:
        server.runner.hold()
        first, running = server.start_post("/v1/completions", completion(prompt="first", max_tokens=400))
        await server.runner.until_entered()
        second, queued = server.start_post("/v1/completions", completion(prompt="second"))
        while not server.engine.stats().num_waiting:
            server.runner.step()
            await server.runner.until_entered()
        third, refused = server.start_post("/v1/completions", completion(prompt="third", stream=True))
        while not refused.done():  # the queue is looked at between two steps
            server.runner.step()
            await server.runner.until_entered()
        server.runner.release()
        await asyncio.gather(running, queued, refused)
        assert third.headers["retry-after"] == "1"
        assert third.headers["x-should-retry"] == "true"
        assert "overloaded" in third.reply().error["message"]
        return [first.status, second.status, third.status]

    assert server.run(crowd()) == [200, 200, 503]
