"""Tools and reasoning in chats: scripted answers through everything but the model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hotseat.text import ChatTemplate
from server.fakes import TEMPLATE, FakeRunner, FakeServer, chat

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
UNSUPPORTED = {"type": "function", "function": {"name": "f", "parameters": {"uniqueItems": True}}}
HERMES = "{% if tools %}<tool_call>{% endif %}" + TEMPLATE
THINKING = "{# </think> #}" + HERMES + "<think>\n"
ARGUMENTS = '{"city": "</tool_call> } \\" ü 😀 \\n"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'


@pytest.fixture
def answering(start: Callable[..., FakeServer]) -> Callable[..., FakeServer]:
    def make(reply: str, template: str = HERMES) -> FakeServer:
        return start(runner=FakeRunner(reply=reply, ends=True), services={"chat_template": ChatTemplate(template)})

    return make


def gathered(events: list[Any]) -> dict[str, Any]:
    """Add up the chunks of a stream as OpenAI's client does."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": [], "finish_reason": None}
    for event in events:
        choice = event["choices"][0]
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning"] += delta.get("reasoning") or ""
        assert delta.get("reasoning") == delta.get("reasoning_content")
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(message["tool_calls"])
                assert call["type"] == "function"
                message["tool_calls"].append([call["function"]["name"], ""])
            message["tool_calls"][call["index"]][1] += call["function"]["arguments"]
        message["finish_reason"] = choice["finish_reason"] or message["finish_reason"]
    return message


def both(server: FakeServer, **fields: Any) -> dict[str, Any]:
    """Return the answer, which must be the same streamed and not."""
    body = chat(**({"max_tokens": 125} | fields))
    reply = server.post("/v1/chat/completions", body)
    assert reply.status == 200, reply.body
    choice = reply.json()["choices"][0]
    message = choice["message"]
    calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls", ())]
    streamed = gathered(server.post("/v1/chat/completions", body | {"stream": True}).events())
    assert streamed["content"] == (message["content"] or "")
    assert streamed["reasoning"] == (message.get("reasoning") or "")
    assert streamed["tool_calls"] == calls
    assert streamed["finish_reason"] == choice["finish_reason"]
    return streamed | {"content": message["content"]}


def test_a_call_is_found_and_its_arguments_are_untouched(answering: Callable[..., FakeServer]) -> None:
    found = both(answering(f"Let me see.\n{CALL}"), tools=[TOOL])
    assert found["content"] == "Let me see."
    assert found["tool_calls"] == [["weather", ARGUMENTS]]
    assert found["finish_reason"] == "tool_calls"


def test_two_calls_have_nothing_between_them(answering: Callable[..., FakeServer]) -> None:
    found = both(answering(f"{CALL}\n{CALL}"), tools=[TOOL], max_tokens=300)
    assert found["content"] is None
    assert [name for name, _ in found["tool_calls"]] == ["weather", "weather"]


@pytest.mark.parametrize("reply", ["Hello", "1 < 2 <tool", CALL])
def test_text_is_content_when_no_call_is_wanted_or_made(answering: Callable[..., FakeServer], reply: str) -> None:
    found = both(answering(reply), tools=[TOOL], tool_choice="none" if reply == CALL else "auto")
    assert (found["content"], found["tool_calls"], found["finish_reason"]) == (reply, [], "stop")


def test_a_call_that_is_cut_is_delivered_in_part(answering: Callable[..., FakeServer]) -> None:
    found = both(answering(CALL), tools=[TOOL], max_tokens=len(CALL.encode()) - 40)
    assert found["finish_reason"] == "length"
    assert ARGUMENTS.startswith(found["tool_calls"][0][1])


@pytest.mark.parametrize("template", [HERMES, TEMPLATE])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_forced_call_holds_to_its_schema_whatever_the_model_wants(
    answering: Callable[..., FakeServer], template: str, choice: Any
) -> None:
    found = both(answering("No, I will not.", template), tools=[TOOL], tool_choice=choice)
    assert found["content"] is None
    ((name, arguments),) = found["tool_calls"]
    assert name == "weather"
    assert json.loads(arguments)["city"] in ("Oslo", "Rome")
    assert found["finish_reason"] == ("tool_calls" if choice == "required" else "stop")


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("tools", {"tools": []}),
        ("tools", {"tools": [TOOL, TOOL]}),
        ("tools", {"tools": [{"type": "custom"}]}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}}),
        ("tools", {"tools": [UNSUPPORTED], "tool_choice": "required"}),
    ],
)
def test_wrong_tools_are_refused(answering: Callable[..., FakeServer], param: str, fields: dict[str, Any]) -> None:
    reply = answering("x").post("/v1/chat/completions", chat(**fields))
    assert reply.status == 400
    assert reply.error["param"] == param


def test_a_history_with_calls_and_results_is_taken(answering: Callable[..., FakeServer]) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    assert both(answering("It rains."), tools=[TOOL], messages=messages)["content"] == "It rains."


def test_reasoning_is_split_and_counted(answering: Callable[..., FakeServer]) -> None:
    server = answering("It rains.</think>\n\nTake a coat.", THINKING)
    found = both(server)
    assert (found["reasoning"], found["content"]) == ("It rains.", "Take a coat.")
    usage = server.post("/v1/chat/completions", chat(max_tokens=400)).json()["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len("It rains.</think>")


def test_reasoning_that_is_cut_is_no_content(answering: Callable[..., FakeServer]) -> None:
    found = both(answering("It rains.</think>Yes", THINKING), max_tokens=5)
    assert (found["reasoning"], found["content"], found["finish_reason"]) == ("It ra", None, "length")


def test_reasoning_can_be_hidden(answering: Callable[..., FakeServer]) -> None:
    server = answering("It rains.</think>Yes", THINKING)
    assert both(server, include_reasoning=False)["reasoning"] == ""
    reply = server.post("/v1/chat/completions", chat(include_reasoning=False, logprobs=True))
    assert reply.error["param"] == "include_reasoning"


def test_a_form_is_content_although_the_prompt_opened_the_reasoning(answering: Callable[..., FakeServer]) -> None:
    found = both(answering("Yes", THINKING), structured_outputs={"choice": ["Yes", "No"]})
    assert (found["reasoning"], found["content"]) == ("", "Yes")
