"""The Responses API by OpenAI's own client, with scripted answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import openai
import pydantic
import pytest

from server.clients import ask_openai
from server.fakes import HERMES, FakeServer

TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tell the weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": False,
}
THINKING = "{# </think> #}" + HERMES + "<think>\n"
ARGUMENTS = '{"city": "</tool_call> } \\" ü 😀 \\n"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
MESSAGE_EVENTS = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done"]
MESSAGE_EVENTS += ["content_part.done", "output_item.done"]
CALL_EVENTS = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
REASONING_EVENTS = ["output_item.added", "reasoning_text.delta", "reasoning_text.done", "output_item.done"]


def plain(response: Any) -> dict[str, Any]:
    """Return a response without what is drawn or measured for each answer."""
    values = response.model_dump(exclude={"id", "created_at", "completed_at", "usage"})
    for item in values["output"]:
        for name in ("id", "call_id", "parsed_arguments"):
            item.pop(name, None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    return values


def both(server: FakeServer, **fields: Any) -> tuple[Any, list[str]]:
    """Return the response, which must be the same streamed and not, and the events of the stream."""
    values: Any = {"model": "fake", "input": "Hello", "temperature": 0, "max_output_tokens": 300, **fields}

    async def work(client: openai.AsyncOpenAI) -> tuple[Any, list[Any]]:
        whole = await client.responses.create(**values)
        raw = [event async for event in await client.responses.create(**values, stream=True)]
        streamed = raw[-1].response
        assert plain(streamed) == plain(whole)
        assert streamed.usage.output_tokens == whole.usage.output_tokens
        if whole.status == "completed":
            async with client.responses.stream(**values) as stream:
                assert plain(await stream.get_final_response()) == plain(whole)
        return whole, raw

    response, events = ask_openai(server, work)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert len({event.response.id for event in events if hasattr(event, "response")}) == 1
    names = [event.type.removeprefix("response.") for event in events]
    return response, [name for at, name in enumerate(names) if not name.endswith("delta") or names[at - 1] != name]


def test_a_text_is_answered_with_a_message(answering: Callable[..., FakeServer]) -> None:
    response, events = both(answering(), instructions="Be brief.", metadata={"a": "b"})
    assert events == ["created", "in_progress", *MESSAGE_EVENTS, "completed"]
    assert (response.output_text, response.status, response.object) == ("Hello there", "completed", "response")
    assert (response.instructions, response.metadata, response.store) == ("Be brief.", {"a": "b"}, False)
    assert response.usage.total_tokens == response.usage.input_tokens + len("Hello there") + 1
    assert response.output[0].id.startswith("msg_")


def test_an_answer_of_nothing_is_an_empty_message(answering: Callable[..., FakeServer]) -> None:
    response, events = both(answering(""))
    assert events == ["created", "in_progress", *MESSAGE_EVENTS, "completed"]
    assert (len(response.output), response.output_text) == (1, "")


def test_an_answer_that_is_cut_is_incomplete(answering: Callable[..., FakeServer]) -> None:
    response, events = both(answering(), max_output_tokens=5)
    assert events[-1] == "incomplete"
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (response.output_text, response.output[0].status) == ("Hello", "incomplete")


def test_calls_and_text_are_items_of_their_own(answering: Callable[..., FakeServer]) -> None:
    response, events = both(answering(f"See.\n{CALL}\n{CALL}"), tools=[TOOL])
    assert events == ["created", "in_progress", *MESSAGE_EVENTS, *CALL_EVENTS, *CALL_EVENTS, "completed"]
    assert [item.type for item in response.output] == ["message", "function_call", "function_call"]
    assert [item.arguments for item in response.output[1:]] == [ARGUMENTS, ARGUMENTS]
    assert response.output[1].call_id != response.output[2].call_id


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "weather"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
    ],
)
def test_a_forced_call_holds_to_its_schema(answering: Callable[..., FakeServer], choice: Any) -> None:
    other = {"type": "function", "name": "other", "parameters": {"type": "object"}}
    tools = [TOOL] if choice == "required" else [other, TOOL]
    response, _ = both(answering("No, I will not."), tools=tools, tool_choice=choice)
    (call,) = response.output
    assert call.name == "weather"
    assert json.loads(call.arguments)["city"] in ("Oslo", "Rome")


def test_reasoning_is_an_item_of_its_own(answering: Callable[..., FakeServer]) -> None:
    server = answering("It rains.</think>\n\nTake a coat.", THINKING)
    response, events = both(server, reasoning={"effort": "low"})
    assert events == ["created", "in_progress", *REASONING_EVENTS, *MESSAGE_EVENTS, "completed"]
    assert response.output[0].content[0].text == "It rains."
    assert response.output_text == "Take a coat."
    assert response.usage.output_tokens_details.reasoning_tokens == len("It rains.</think>")


def test_the_format_of_a_text_does_not_bind_a_forced_call(answering: Callable[..., FakeServer]) -> None:
    form = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "integer"}}}
    response, _ = both(answering("No"), tools=[TOOL], tool_choice="required", text=form)
    assert json.loads(response.output[0].arguments)["city"] in ("Oslo", "Rome")


class Trip(pydantic.BaseModel):
    city: Literal["Oslo", "Rome"]


def test_a_pydantic_model_is_parsed(answering: Callable[..., FakeServer]) -> None:
    async def work(client: openai.AsyncOpenAI) -> Any:
        return await client.responses.parse(model="fake", input="Where?", text_format=Trip)

    assert isinstance(ask_openai(answering("No"), work).output_parsed, Trip)


def test_logprobs_are_told_where_they_are_included(answering: Callable[..., FakeServer]) -> None:
    response, _ = both(answering(), include=["message.output_text.logprobs"], top_logprobs=2)
    logprobs = response.output[0].content[0].logprobs
    assert "".join(entry.token for entry in logprobs).startswith("Hello there")
    assert {len(entry.top_logprobs) for entry in logprobs} == {2}


def rendered(server: FakeServer, **fields: Any) -> str:
    """Return the prompt that a request becomes."""
    reply = server.post("/v1/responses", {"max_output_tokens": 1, **fields})
    assert reply.status == 200, reply.body
    return server.runner.prompt(0)


def test_a_conversation_of_items_is_rendered_as_a_chat(answering: Callable[..., FakeServer]) -> None:
    items = [
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"role": "user", "content": "And?"},
    ]
    call = '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments|tojson }}}</tool_call>'
    calls = "{% for c in m.tool_calls or [] %}" + call + "{% endfor %}"
    template = HERMES.replace("{{ m.content }}", "{{ m.content }}{{ m.reasoning_content }}" + calls)
    assert rendered(answering(template=template), input=items, instructions="Be brief.") == (
        "<system>Be brief.\nBe kind.<user>Weather?<assistant>I look.hm"
        '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call><tool>rain<user>And?<assistant>'
    )


def test_tools_that_are_not_there_are_left_out(answering: Callable[..., FakeServer]) -> None:
    server = answering()
    assert rendered(server, input="Hi", tools=[{"type": "web_search"}], tool_choice="auto").startswith("<user>")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "whole conversation"),
        ({"conversation": "c"}, "conversation", ""),
        ({"background": True}, "background", ""),
        ({"truncation": "auto"}, "truncation", ""),
        ({"include": ["nonsense"]}, "include", "nonsense"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input", "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input", "input[0].content[0]"),
        ({"input": [{"type": "function_call", "name": "f", "call_id": "x"}]}, "input", "arguments"),
        ({"input": 5}, "input", ""),
        ({"max_tokens": 5}, "max_tokens", "send `max_output_tokens`"),
        ({"n": 2}, "n", ""),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages", "send `input`"),
        ({"temperature": -1}, "temperature", ""),
        ({"max_output_tokens": 0}, "max_output_tokens", ""),
        ({"tool_choice": "required"}, "tool_choice", ""),
        ({"tool_choice": "nonsense"}, "tool_choice", ""),
        ({"tools": [TOOL, TOOL]}, "tools", "twice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text", ""),
        ({"text": {"format": {"type": "json_schema", "schema": {"uniqueItems": True}}}}, "text", "uniqueItems"),
        ({"top_logprobs": 99}, "top_logprobs", ""),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    answering: Callable[..., FakeServer], fields: dict[str, Any], param: str, words: str
) -> None:
    reply = answering().post("/v1/responses", {"input": "Hi", **fields})
    assert (reply.status, reply.error["param"]) == (400, param)
    assert words in reply.error["message"]


def test_a_stream_that_fails_says_so_and_ends(start: Callable[..., FakeServer]) -> None:
    server = start()
    server.runner.hold()

    async def stream() -> bytes:
        exchange, task = server.start_post("/v1/responses", {"input": "Hi", "stream": True})
        await server.runner.until_entered()
        server.runner.step()
        await exchange.written.wait()
        server.runner.fails = True
        server.runner.release()
        await task
        return exchange.body

    events = [json.loads(part.partition("\ndata: ")[2]) for part in server.run(stream()).decode().strip().split("\n\n")]
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-1]["response"]["error"]["code"] == "server_error"


@pytest.mark.parametrize("streams", [True, False])
def test_an_abort_cancels_the_response(start: Callable[..., FakeServer], streams: bool) -> None:
    server = start()
    server.runner.hold()

    async def answer() -> bytes:
        exchange, task = server.start_post("/v1/responses", {"input": "Hi", "stream": streams})
        await server.runner.until_entered()
        ((_, entry),) = server.in_flight.items()
        entry.end(None)
        await task
        return exchange.body

    assert b'"status":"cancelled"' in server.run(answer())
