"""Anthropic's own client against the server, with scripted answers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import httpx2
import pytest

from hotseat.server import ServerConfig
from server.fakes import HERMES, FakeServer

TOOL: Any = {
    "name": "weather",
    "description": "Tell the weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
THINKING = "{# </think> #}" + HERMES + "{% if enable_thinking %}<think>\n{% endif %}"
ARGUMENTS = {"city": '</tool_call> } " ü 😀 \n'}
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {json.dumps(ARGUMENTS, ensure_ascii=False)}}}\n</tool_call>'
HELLO: Any = [{"role": "user", "content": "Hello"}]


def ask(server: FakeServer, work: Callable[[anthropic.AsyncAnthropic], Awaitable[Any]], key: str = "any") -> Any:
    """Run ``work`` with Anthropic's client, whose requests go straight to the application."""

    async def talk() -> Any:
        transport = httpx2.ASGITransport(app=server.app)
        http_client = httpx2.AsyncClient(transport=transport, base_url="http://localhost")
        async with anthropic.AsyncAnthropic(
            api_key=key, base_url="http://localhost", http_client=http_client, max_retries=0
        ) as client:
            return await work(client)

    return server.run(talk())


def plain(message: Any) -> dict[str, Any]:
    """Return a message without what is drawn for each answer."""
    values = message.model_dump(exclude={"id", "usage"})
    for block in values["content"]:
        block.pop("id", None)
        block.pop("parsed_output", None)
    return values


def both(server: FakeServer, **fields: Any) -> Any:
    """Return the message, which must be the same streamed and not."""
    values: Any = {"model": "fake", "max_tokens": 200, "messages": HELLO, **fields}
    values["extra_body"] = {"temperature": 0}  # the client has no field for it any more

    async def work(client: anthropic.AsyncAnthropic) -> Any:
        whole = await client.messages.create(**values)
        async with client.messages.stream(**values) as stream:
            streamed = await stream.get_final_message()
        count = {name: values[name] for name in ("system", "tools", "tool_choice", "thinking") if name in values}
        counted = await client.messages.count_tokens(model="fake", messages=values["messages"], **count)
        for message in (whole, streamed):
            assert message.usage.input_tokens + message.usage.cache_read_input_tokens == counted.input_tokens
        assert plain(streamed) == plain(whole)
        assert streamed.usage.output_tokens == whole.usage.output_tokens
        return whole

    return ask(server, work)


def test_a_message_is_answered(answering: Callable[..., FakeServer]) -> None:
    message = both(answering())
    assert [block.type for block in message.content] == ["text"]
    assert message.content[0].text == "Hello there"
    assert (message.role, message.stop_reason, message.stop_sequence) == ("assistant", "end_turn", None)
    assert message.id.startswith("msg_")
    assert message.usage.output_tokens == len("Hello there") + 1


@pytest.mark.parametrize(
    ("fields", "text", "reason", "sequence"),
    [
        ({"max_tokens": 5}, "Hello", "max_tokens", None),
        ({"stop_sequences": ["x", "th"]}, "Hello ", "stop_sequence", "th"),
    ],
)
def test_the_reason_of_the_end_is_told(
    answering: Callable[..., FakeServer], fields: dict[str, Any], text: str, reason: str, sequence: str | None
) -> None:
    message = both(answering(), **fields)
    assert message.content[0].text == text
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)


def test_a_call_stands_beside_the_text(answering: Callable[..., FakeServer]) -> None:
    message = both(answering(f"Let me see.\n{CALL}"), tools=[TOOL])
    assert [block.type for block in message.content] == ["text", "tool_use"]
    assert message.content[1].name == "weather"
    assert message.content[1].input == ARGUMENTS
    assert message.stop_reason == "tool_use"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_forced_call_holds_to_its_schema(answering: Callable[..., FakeServer], choice: Any) -> None:
    message = both(answering("No, I will not."), tools=[TOOL], tool_choice=choice)
    (block,) = message.content
    assert block.input["city"] in ("Oslo", "Rome")
    assert message.stop_reason == "tool_use"


def test_no_call_is_made_when_none_is_wanted(answering: Callable[..., FakeServer]) -> None:
    message = both(answering(CALL), tools=[TOOL], tool_choice={"type": "none"})
    assert [block.type for block in message.content] == ["text"]


def test_thinking_has_a_block_of_its_own_and_only_where_it_is_asked_for(answering: Callable[..., FakeServer]) -> None:
    server = answering("It rains.</think>\n\nTake a coat.", THINKING)
    message = both(server, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert (message.content[0].thinking, message.content[1].text) == ("It rains.", "Take a coat.")
    assert message.usage.output_tokens_details.thinking_tokens == len("It rains.</think>")
    assert [block.type for block in both(server).content] == ["text"]


def test_a_form_binds_the_answer(answering: Callable[..., FakeServer]) -> None:
    output = {"format": {"type": "json_schema", "schema": TOOL["input_schema"]}}
    message = both(answering("No"), output_config=output)
    assert json.loads(message.content[0].text)["city"] in ("Oslo", "Rome")


def rendered(server: FakeServer, **fields: Any) -> str:
    """Return the prompt that a request becomes."""
    seen: list[str] = []
    tokenize = server.generator.tokenize

    async def note(text: str, **options: Any) -> list[int]:
        seen.append(text)
        return await tokenize(text, **options)

    server.generator.tokenize = note
    reply = server.post("/v1/messages/count_tokens", {"messages": HELLO, **fields})
    assert reply.status == 200, reply.body
    assert reply.json()["input_tokens"] == len(seen[0].encode())
    return seen[0]


def test_a_history_with_results_is_rendered_as_a_chat(answering: Callable[..., FakeServer]) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Weather?", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "And?"},
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]},
            ],
        },
    ]
    assert rendered(answering(), messages=messages) == (
        '<user>Weather?\n<assistant>I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n'
        "</tool_call>\n<user>Result of weather:\nrain\n\nAnd?\n<assistant>"
    )


def test_system_prompts_become_one_and_the_line_for_the_bill_is_left_out(answering: Callable[..., FakeServer]) -> None:
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1f"},
        {"type": "text", "text": "Be brief."},
    ]
    messages = [*HELLO, {"role": "system", "content": "Be kind."}]
    prompt = rendered(answering(), system=system, messages=messages)
    assert prompt == "<system>Be brief.\nBe kind.\n<user>Hello\n<assistant>"


def test_an_assistant_at_the_end_has_begun_the_answer(answering: Callable[..., FakeServer]) -> None:
    prompt = rendered(answering(), messages=[*HELLO, {"role": "assistant", "content": "I"}])
    assert prompt == "<user>Hello\n<assistant>I"


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]: the type 'image'"),
        ({"messages": []}, "messages"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tools": [{"name": "f", "input_schema": {"uniqueItems": True}}], "tool_choice": {"type": "any"}}, "unique"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"stop": ["x"]}, "send `stop_sequences`"),
        ({"n": 2}, "`n`"),
        ({"min_p": "x"}, "min_p"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f"}]}]}, "input"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    answering: Callable[..., FakeServer], fields: dict[str, Any], words: str
) -> None:
    reply = answering().post("/v1/messages", {"messages": HELLO, "max_tokens": 10, **fields})
    assert reply.status == 400
    error = reply.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert words in error["error"]["message"]


def test_errors_have_the_types_of_the_api(answering: Callable[..., FakeServer]) -> None:
    server = answering(config=ServerConfig(api_key=("secret",), max_request_bytes=300))

    def create(key: str, model: str, content: str) -> Any:
        return ask(
            server,
            lambda client: client.messages.create(
                model=model, max_tokens=5, messages=[{"role": "user", "content": content}]
            ),
            key,
        )

    with pytest.raises(anthropic.AuthenticationError) as refused:
        create("wrong", "fake", "x")
    assert refused.value.type == "authentication_error"
    with pytest.raises(anthropic.NotFoundError):
        create("secret", "other", "x")
    with pytest.raises(anthropic.RequestTooLargeError):
        create("secret", "fake", "x" * 400)
    assert create("secret", "fake", "x").stop_reason in ("end_turn", "max_tokens")


def test_events_come_in_their_order(answering: Callable[..., FakeServer]) -> None:
    server = answering(f"See.\n{CALL}")
    body = {"messages": HELLO, "max_tokens": 200, "tools": [TOOL], "stream": True, "temperature": 0}
    events = [
        part.partition("\ndata: ") for part in server.post("/v1/messages", body).body.decode().strip().split("\n\n")
    ]
    names = [name.removeprefix("event: ") for name, _, _ in events]
    assert names == [json.loads(data)["type"] for _, _, data in events]
    kept = [name for at, name in enumerate(names) if name != "content_block_delta" or names[at - 1] != name]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert kept == ["message_start", "ping", *block, *block, "message_delta", "message_stop"]
    indices = [json.loads(data)["index"] for name, _, data in events if "content_block" in name]
    assert indices == sorted(indices)


def test_an_aborted_stream_ends_and_a_failed_one_says_so(start: Callable[..., FakeServer]) -> None:
    server = start()
    server.runner.hold()

    async def stream(then: Callable[[], None]) -> bytes:
        exchange, task = server.start_post(
            "/v1/messages", {"messages": HELLO, "max_tokens": 50, "stream": True, "temperature": 0}
        )
        await server.runner.until_entered()
        server.runner.step()
        await exchange.written.wait()
        then()
        server.runner.release()
        await task
        return exchange.body

    def abort() -> None:
        ((_, entry),) = server.in_flight.items()
        entry.end(None)

    body = server.run(stream(abort)).decode()
    assert '"stop_reason":null' in body
    assert body.rstrip().endswith('{"type":"message_stop"}')
    server.runner.hold()
    body = server.run(stream(lambda: setattr(server.runner, "fails", True))).decode()
    assert 'event: error\ndata: {"type":"error","error":{"type":"api_error"' in body
