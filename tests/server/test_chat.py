"""POST /v1/chat/completions: what comes back for what is asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from server.fakes import FakeRunner, FakeServer, chat, texts_by_choice

PROMPT = "<user>Say something\n<assistant>"


def content_of(choice: dict) -> str:
    return choice["delta"].get("content", "")


def prompt_of(server: FakeServer, **fields: object) -> str:
    """Return the prompt that the template made of a request."""
    answer = server.post("/v1/chat/completions", chat(return_token_ids=True, **fields)).json()
    return bytes(answer["prompt_token_ids"]).decode()


def test_a_chat_completion_has_the_shape_of_openai(server: FakeServer) -> None:
    answer = server.post("/v1/chat/completions", chat()).json()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": server.text(8), "refusal": None}
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    assert answer["usage"]["prompt_tokens"] == len(PROMPT)


def test_without_a_limit_the_answer_fills_the_context(server: FakeServer) -> None:
    body = chat()
    del body["max_tokens"]
    assert server.post("/v1/chat/completions", body).json()["usage"]["total_tokens"] == 512


def test_max_completion_tokens_is_a_bound_and_may_exceed_the_context(server: FakeServer) -> None:
    body = chat(max_completion_tokens=3)
    assert server.post("/v1/chat/completions", body).json()["usage"]["completion_tokens"] == 3
    del body["max_tokens"]
    answer = server.post("/v1/chat/completions", body | {"max_completion_tokens": 100_000}).json()
    assert answer["usage"]["total_tokens"] == 512


@pytest.mark.parametrize("stream", [False, True])
def test_answers_that_cannot_fit_are_refused_with_the_numbers(server: FakeServer, stream: bool) -> None:
    reply = server.post("/v1/chat/completions", chat(max_tokens=500, stream=stream))
    assert reply.status == 400
    assert reply.error["param"] == "max_tokens"
    for number in ("512", str(len(PROMPT)), "500"):
        assert number in reply.error["message"]


def test_a_stream_opens_with_the_role_and_ends_each_choice_once(server: FakeServer) -> None:
    body = chat(n=3, temperature=1, seed=7, max_tokens=40)
    whole = server.post("/v1/chat/completions", body).json()
    events = server.post("/v1/chat/completions", body | {"stream": True}).events()
    expected = {choice["index"]: choice["message"]["content"] for choice in whole["choices"]}
    assert texts_by_choice(events, content_of) == expected
    for index in range(3):
        choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
        assert choices[-1]["finish_reason"] == "length"


def test_all_events_of_a_step_go_out_in_one_write(server: FakeServer) -> None:
    async def talk() -> tuple[int, int]:
        server.runner.hold()
        exchange, task = server.start_post("/v1/chat/completions", chat(stream=True, n=4, max_tokens=1))
        server.runner.release()
        await task
        return exchange.num_writes, len(exchange.reply().events())

    num_writes, num_events = server.run(talk())
    assert num_events == 8  # for each choice: the role, and its one token with the reason
    assert num_writes < num_events


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_have_openais_shape_with_true_bytes(start: Callable[..., FakeServer], stream: bool) -> None:
    server = start(runner=FakeRunner(reply="é!"))
    reply = server.post("/v1/chat/completions", chat(logprobs=True, top_logprobs=1, max_tokens=3, stream=stream))
    events = reply.events() if stream else [reply.json()]
    content = [
        entry
        for event in events
        for choice in event["choices"]
        for entry in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert [entry["bytes"] for entry in content] == [[0xC3], [0xA9], [0x21]]
    assert [entry["token"] for entry in content] == ["\\xc3", "\\xa9", "!"]
    assert content[2]["top_logprobs"] == [{"token": "!", "logprob": -0.25, "bytes": [0x21]}]


def test_logprobs_without_top_logprobs_have_an_empty_list(server: FakeServer) -> None:
    (choice,) = server.post("/v1/chat/completions", chat(logprobs=True)).json()["choices"]
    assert all(entry["top_logprobs"] == [] for entry in choice["logprobs"]["content"])


def test_contents_are_texts_or_lists_of_text_parts(server: FakeServer) -> None:
    parts = [{"type": "text", "text": "Say"}, {"type": "text", "text": "it"}]
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "B"},
    ]
    assert prompt_of(server, messages=messages) == "<user>Say\nit\n<assistant>\n<user>B\n<assistant>"


def test_parts_that_are_no_text_are_refused_with_a_pointer(server: FakeServer) -> None:
    parts = [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    reply = server.post("/v1/chat/completions", chat(messages=[{"role": "user", "content": parts}]))
    assert reply.status == 400
    assert "image_url" in reply.error["message"]
    assert reply.error["param"].startswith("messages")


def test_a_final_message_can_be_continued_and_echoed(server: FakeServer) -> None:
    messages = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "Well, "}]
    fields = {"messages": messages, "add_generation_prompt": False, "continue_final_message": True}
    assert prompt_of(server, **fields) == "<user>A\n<assistant>Well, "
    (choice,) = server.post("/v1/chat/completions", chat(**fields, echo=True)).json()["choices"]
    assert choice["message"]["content"] == "Well, " + server.text(8)
    events = server.post("/v1/chat/completions", chat(**fields, echo=True, stream=True)).events()
    assert texts_by_choice(events, content_of) == {0: "Well, " + server.text(8)}


def test_no_special_token_is_added_after_the_template(server: FakeServer) -> None:
    assert prompt_of(server) == PROMPT


def test_a_model_without_a_template_cannot_chat(start: Callable[..., FakeServer]) -> None:
    server = start(services={"chat_template": None})
    reply = server.post("/v1/chat/completions", chat())
    assert reply.status == 400
    assert reply.error["param"] == "messages"


def test_tools_are_accepted_when_no_call_is_wanted(server: FakeServer) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert server.post("/v1/chat/completions", chat(tools=tools, tool_choice="none")).status == 200
