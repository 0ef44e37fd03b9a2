"""Requests about forms, tools and reasoning and what must come back, through OpenAI's client over a socket.

The model is scripted: each prompt says what it answers. What a real model answers in a form is tested beside.
"""

from __future__ import annotations

import http.client
import json
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from server.processes import TIMEOUT_S, Process
from server.scripted import FAIL, say

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
OTHER: Any = {"type": "function", "function": {"name": "time"}}
HARD = '{"city": "</tool_call> } \\" ü 😀 \\n"}'


def call(arguments: str, name: str = "weather") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    process = Process("server.scripted", "0")
    yield process.url
    process.kill()


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url + "/v1", api_key="x", timeout=TIMEOUT_S, max_retries=0) as one:
        yield one


def values_for(reply: str, fields: dict[str, Any]) -> dict[str, Any]:
    own = ("tools", "tool_choice", "parallel_tool_calls", "response_format", "stop", "logprobs", "top_logprobs", "n")
    known = {name: fields[name] for name in own if name in fields}
    extra = {name: value for name, value in fields.items() if name not in (*own, "max_tokens", "messages")}
    return {
        "model": "fake",
        "messages": fields.get("messages", say(reply)),
        "temperature": 0,
        "max_tokens": fields.get("max_tokens", 400),
        **known,
        "extra_body": extra,
    }


def both(client: openai.OpenAI, reply: str, **fields: Any) -> Any:
    """Return the choice of an answer, which OpenAI's client must add up from a stream to the same."""
    values = values_for(reply, fields)
    choice = client.chat.completions.create(**values).choices[0]
    with client.chat.completions.stream(**values) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert (streamed.message.content or "") == (choice.message.content or "")
    assert streamed.finish_reason == choice.finish_reason
    one, other = (
        [(made.function.name, made.function.arguments) for made in found.message.tool_calls or ()]
        for found in (choice, streamed)
    )
    assert one == other
    return choice


def calls_of(choice: Any) -> list[tuple[str, str]]:
    return [(made.function.name, made.function.arguments) for made in choice.message.tool_calls or ()]


# Forms

WRONG_FORMS: list[tuple[str, dict[str, Any]]] = [
    ("structured_outputs", {"structured_outputs": {"regex": "a", "choice": ["b"]}}),
    ("structured_outputs", {"structured_outputs": {}}),
    ("structured_outputs", {"structured_outputs": {"choice": []}}),
    ("structured_outputs", {"structured_outputs": {"json_object": False}}),
    ("structured_outputs", {"structured_outputs": {"json": [1]}}),
    ("structured_outputs", {"structured_outputs": {"json": {"maximum": 10**30, "type": "integer"}}}),
    ("response_format", {"response_format": {"type": "json_schema"}}),
    ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
    ("grammar", {"grammar": "root ::= ("}),
    ("grammar", {"json_schema": {}, "grammar": 'root ::= "a"'}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("param", "fields"), WRONG_FORMS)
def test_a_wrong_form_is_400_and_names_its_field(
    client: openai.OpenAI, param: str, fields: dict[str, Any], stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**values_for("x", fields), stream=stream)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "null"}}, "not"),
        ({"$ref": "http://elsewhere/x"}, "elsewhere"),
        ({"type": "string", "pattern": "(?=a)"}, "look"),
        ({"type": "integer", "minimum": 5, "maximum": 1}, "minimum"),
        ({"$ref": "#"}, "match"),
    ],
)
def test_a_schema_that_cannot_be_held_to_is_400_with_the_reason(
    client: openai.OpenAI, schema: dict[str, Any], word: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=word):
        client.chat.completions.create(**values_for("x", {"structured_outputs": {"json": schema}}))
    fine = {"structured_outputs": {"json": {"type": "string", "format": "password"}}}
    assert both(client, '"x"', **fine).message.content == '"x"'


def test_a_client_that_leaves_while_its_form_compiles_leaves_nothing(client: openai.OpenAI, url: str) -> None:
    properties = {f"field_{number}": {"type": "string", "maxLength": 300 + number} for number in range(300)}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    body = {"model": "fake", "messages": say("x"), "structured_outputs": {"json": schema}, "max_tokens": 4000}
    host = url.removeprefix("http://")
    for number in range(3):
        body["structured_outputs"] = {"json": {**schema, "title": str(number)}}  # none of them is in the cache
        connection = http.client.HTTPConnection(host, timeout=TIMEOUT_S)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        connection.close()
    assert both(client, "yes", structured_outputs={"choice": ["yes"]}).message.content == "yes"
    ended = threading.Event()
    for _ in range(200):
        with urllib.request.urlopen(f"{url}/v1/requests", timeout=TIMEOUT_S) as reply:
            if not json.load(reply)["data"]:
                ended.set()
                break
        ended.wait(0.05)
    assert ended.is_set(), "a request of a client that left is still there"


# Tools


def test_a_required_call_has_no_content_and_valid_arguments(client: openai.OpenAI) -> None:
    choice = both(client, call('{"city": "Rome"}'), tools=[TOOL], tool_choice="required")
    assert choice.message.content is None
    assert calls_of(choice) == [("weather", '{"city": "Rome"}')]
    assert choice.finish_reason == "tool_calls"


def test_a_named_tool_is_called_by_that_name_and_ends_with_stop(client: openai.OpenAI) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    choice = both(client, call('{"city": "Rome"}'), tools=[OTHER, TOOL], tool_choice=named)
    assert calls_of(choice) == [("weather", '{"city": "Rome"}')]
    assert choice.finish_reason == "stop"


def test_no_call_is_looked_for_where_none_is_wanted(client: openai.OpenAI) -> None:
    choice = both(client, call(HARD), tools=[TOOL], tool_choice="none")
    assert (choice.message.content, calls_of(choice)) == (call(HARD), [])


@pytest.mark.parametrize("text", ["Hello", "1 < 2 <tool", "<tool_cal", "a\n\n"])
def test_text_with_tools_is_content_to_its_end(client: openai.OpenAI, text: str) -> None:
    choice = both(client, text, tools=[TOOL])
    assert (choice.message.content, calls_of(choice), choice.finish_reason) == (text, [], "stop")


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("tools", {"tools": []}),
        ("tools", {"tools": [TOOL, TOOL]}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": "required", "structured_outputs": {"choice": ["x"]}}),
    ],
)
def test_wrong_tools_are_400_and_name_their_field(client: openai.OpenAI, param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**values_for("x", fields))
    assert caught.value.param == param


def test_a_streamed_call_tells_id_type_and_name_once(client: openai.OpenAI) -> None:
    values = values_for(f"{call(HARD)}\n{call('{}', 'time')}", {"tools": [TOOL, OTHER]})
    seen: dict[int, list[Any]] = {}
    for chunk in client.chat.completions.create(**values, stream=True):
        for part in chunk.choices[0].delta.tool_calls or ():
            seen.setdefault(part.index, []).append(part)
    assert list(seen) == [0, 1]
    for parts, (name, arguments) in zip(seen.values(), [("weather", HARD), ("time", "{}")], strict=True):
        assert [bool(part.id) for part in parts] == [True] + [False] * (len(parts) - 1)
        assert [part.type for part in parts] == ["function"] + [None] * (len(parts) - 1)
        assert [part.function.name for part in parts] == [name] + [None] * (len(parts) - 1)
        assert "".join(part.function.arguments for part in parts) == arguments


def test_two_calls_have_ids_of_their_own_and_no_blanks_between(client: openai.OpenAI) -> None:
    choice = both(client, f"{call(HARD)}\n{call(HARD)}", tools=[TOOL])
    assert choice.message.content is None
    assert calls_of(choice) == [("weather", HARD)] * 2
    assert len({made.id for made in choice.message.tool_calls}) == 2
    single = both(client, f"{call(HARD)}\n{call(HARD)}", tools=[TOOL], parallel_tool_calls=False)
    assert calls_of(single) == [("weather", HARD)]


def test_arguments_as_text_and_as_object_make_the_same_prompt(client: openai.OpenAI) -> None:
    prompts = []
    for arguments in ('{"city": "Rome"}', {"city": "Rome"}):
        made = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
        messages = [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [made]},
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            *say("ok"),
        ]
        choice = both(client, "", messages=messages, tools=[TOOL])
        assert choice.message.content == "ok"
        raw = client.chat.completions.create(**values_for("", {"messages": messages, "return_token_ids": True}))
        prompts.append(raw.model_dump()["prompt_token_ids"])
    assert prompts[0] == prompts[1]


def test_a_call_that_is_cut_is_told_in_part(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(**values_for(call(HARD), {"tools": [TOOL], "max_tokens": 62})).choices[0]
    assert choice.finish_reason == "length"
    ((name, arguments),) = calls_of(choice)
    assert name == "weather"
    assert HARD.startswith(arguments)
    chunks = list(
        client.chat.completions.create(**values_for(call(HARD), {"tools": [TOOL], "max_tokens": 62}), stream=True)
    )
    assert chunks[-1].choices[0].finish_reason == "length"


# Streams and errors


def test_a_stream_begins_with_the_role_and_keeps_its_name(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(**values_for("Hello", {}), stream=True))
    first, *rest = chunks
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert all(chunk.choices[0].delta.role is None for chunk in rest)
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1


def test_a_stream_ends_with_reason_then_usage(client: openai.OpenAI) -> None:
    values = values_for("Hello", {"tools": [TOOL]}) | {"stream_options": {"include_usage": True}}
    *others, last, usage = list(client.chat.completions.create(**values, stream=True))
    assert (last.choices[0].delta.model_dump(exclude_none=True), last.choices[0].finish_reason) == ({}, "stop")
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == len("Hello") + 1
    assert all(chunk.usage is None for chunk in others)


def test_a_failure_in_a_stream_is_an_error_event_and_then_done(client: openai.OpenAI, url: str) -> None:
    with pytest.raises(openai.APIError, match="runner failed"):
        list(client.chat.completions.create(**values_for(f"Hello{FAIL}", {}), stream=True))
    # Long enough for a first chunk to have been sent: what fails before that is answered with its status.
    body = json.dumps({"messages": say(f"{'Hello ' * 200}{FAIL}"), "stream": True}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        events = [line.removeprefix(b"data: ") for line in reply.read().split(b"\n\n") if line]
    assert events[-1] == b"[DONE]"
    assert {"message", "type", "code"} <= json.loads(events[-2])["error"].keys()
    assert all(not json.loads(event).get("error") for event in events[:-2])


def test_choices_first_appear_in_their_order(client: openai.OpenAI) -> None:
    values = values_for("Hello", {"n": 3, "tools": [TOOL]})
    seen = [chunk.choices[0].index for chunk in client.chat.completions.create(**values, stream=True)]
    assert list(dict.fromkeys(seen)) == [0, 1, 2]
    with client.chat.completions.stream(**values) as stream:
        assert [choice.message.content for choice in stream.get_final_completion().choices] == ["Hello"] * 3


# Reasoning

THINKING = {"chat_template_kwargs": {"enable_thinking": True}}


def test_reasoning_is_split_off_and_counted(client: openai.OpenAI) -> None:
    values = values_for("Hm.\n</think>\n\nYes", THINKING)
    answer = client.chat.completions.create(**values)
    message = answer.choices[0].message.model_dump()
    assert (message["reasoning"], message["reasoning_content"], message["content"]) == ("Hm.\n", "Hm.\n", "Yes")
    assert answer.usage is not None
    details = answer.usage.completion_tokens_details
    assert details is not None
    assert details.reasoning_tokens == len("Hm.\n</think>")
    assert answer.usage.completion_tokens == len("Hm.\n</think>\n\nYes") + 1
    reasoning, content = "", ""
    for chunk in client.chat.completions.create(**values, stream=True):
        delta = chunk.choices[0].delta.model_dump()
        reasoning += delta.get("reasoning") or ""
        content += delta.get("content") or ""
    assert (reasoning, content) == ("Hm.\n", "Yes")


@pytest.mark.parametrize("off", [{"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}])
def test_without_thinking_all_is_content(client: openai.OpenAI, off: dict[str, Any]) -> None:
    message = both(client, "Yes.", **off).message
    assert (message.content, message.model_dump()["reasoning"]) == ("Yes.", None)


def test_reasoning_that_is_cut_is_no_content(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(**values_for("Hm. Well", {**THINKING, "max_tokens": 4})).choices[0]
    assert choice.message.content in (None, "")
    assert choice.message.model_dump()["reasoning"] == "Hm. "
    assert choice.finish_reason == "length"
    hidden = values_for("Hm.</think>Yes", {**THINKING, "include_reasoning": False, "logprobs": True})
    choice = client.chat.completions.create(**hidden).choices[0]
    assert "reasoning" not in choice.message.model_dump()
    assert choice.logprobs is not None
    assert "".join(entry.token for entry in choice.logprobs.content or ()).startswith("Yes")


FORM = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}


def test_a_form_binds_after_free_reasoning(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(
        **values_for('Not {"json.</think>\n\n{"city": "Rome"}', {**THINKING, **FORM})
    ).choices[0]
    assert choice.message.content == '{"city": "Rome"}'
    assert choice.message.model_dump()["reasoning"] == 'Not {"json.'
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    choice = client.chat.completions.create(**values_for('{"city": "Rome"}', {**off, **FORM})).choices[0]
    assert (choice.message.content, choice.finish_reason) == ('{"city": "Rome"}', "stop")
    free = client.chat.completions.create(**values_for("No JSON", {**off, **FORM, "max_tokens": 3})).choices[0]
    assert (free.message.content or "").startswith("{")
