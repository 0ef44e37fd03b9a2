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
HERMES = "{% for tool in tools or [] %}<tool_call>{{ tool.function.name }} {% endfor %}" + TEMPLATE
THINKING = "{# </think> #}" + HERMES + "<think>\n"
ARGUMENTS = '{"city": "</tool_call> } \\" ü 😀 \\n"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'


@pytest.fixture
def answering(start: Callable[..., FakeServer]) -> Callable[..., FakeServer]:
    def make(reply: str, template: str = HERMES) -> FakeServer:
        services = {"chat_template": ChatTemplate(template)}
        return start(runner=FakeRunner(reply=reply, ends=True), services=services, max_model_len=2048)

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


def test_hidden_reasoning_is_not_spelled_by_tokens_either(answering: Callable[..., FakeServer]) -> None:
    server = answering("It rains.</think>Yes", THINKING)
    assert both(server, include_reasoning=False)["reasoning"] == ""
    body = chat(include_reasoning=False, logprobs=True, return_token_ids=True, max_tokens=40)
    reply = server.post("/v1/chat/completions", body).json()
    choice = reply["choices"][0]
    assert bytes(choice["token_ids"][:3]) == b"Yes"
    assert [entry["token"] for entry in choice["logprobs"]["content"]][:3] == ["Y", "e", "s"]
    assert reply["usage"]["completion_tokens"] == len("It rains.</think>Yes") + 1
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == len("It rains.</think>")
    streamed = server.post("/v1/chat/completions", body | {"stream": True}).events()
    told = [token_id for event in streamed for token_id in event["choices"][0].get("token_ids", ())]
    assert bytes(told[:3]) == b"Yes"


@pytest.mark.parametrize("form", [{"choice": ["Yes", "No"]}, {"json": {"enum": ["Yes", "No"]}}, {"regex": "Yes|No"}])
def test_a_form_holds_after_the_reasoning_that_the_prompt_opened(
    answering: Callable[..., FakeServer], form: dict[str, Any]
) -> None:
    answer = '"Yes"' if "json" in form else "Yes"
    found = both(answering(f"Hm {{[</think>\n\n{answer}", THINKING), structured_outputs=form)
    assert (found["reasoning"], found["content"], found["finish_reason"]) == ("Hm {[", answer, "stop")
    found = both(answering("Hm</think>Maybe", THINKING), structured_outputs=form)
    assert found["content"] in (None, answer, answer.replace("Yes", "No"))


def test_a_form_holds_with_reasoning_that_the_model_opens_or_leaves_out(answering: Callable[..., FakeServer]) -> None:
    form = {"structured_outputs": {"choice": ["Yes", "No"]}}
    found = both(answering("<think>hm</think>Yes", "{# </think> #}" + TEMPLATE), **form)
    assert (found["reasoning"], found["content"]) == ("hm", "Yes")
    assert both(answering("Yes", "{# </think> #}" + TEMPLATE), **form)["content"] == "Yes"
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert both(answering("<think>hm", "{# </think> #}" + TEMPLATE), **form, **off)["content"] in ("Yes", "No")


STRICT = {"type": "function", "function": {**TOOL["function"], "strict": True}}


def test_a_strict_call_holds_to_its_schema_of_the_models_own_accord(answering: Callable[..., FakeServer]) -> None:
    wrong = CALL.replace(ARGUMENTS, '{"city": "Bern"}')
    found = both(answering(f"So: {wrong}"), tools=[STRICT])
    assert found["content"] == "So:"
    assert json.loads(found["tool_calls"][0][1])["city"] in ("Oslo", "Rome")
    assert both(answering("No call."), tools=[STRICT])["content"] == "No call."
    assert both(answering(f"So: {wrong}"), tools=[TOOL])["tool_calls"] == [["weather", '{"city": "Bern"}']]
    broken = {"type": "function", "function": {**UNSUPPORTED["function"], "strict": True}}
    reply = answering("x").post("/v1/chat/completions", chat(tools=[broken]))
    assert (reply.status, reply.error["param"]) == (400, "tools")


def test_at_most_one_call_is_made_where_no_more_are_wanted(answering: Callable[..., FakeServer]) -> None:
    server = answering(f"{CALL}\n{CALL}")
    for choice in ("auto", "required"):
        for tools in ([TOOL], [STRICT]):
            found = both(server, tools=tools, tool_choice=choice, parallel_tool_calls=False, max_tokens=300)
            assert len(found["tool_calls"]) == 1
            assert found["content"] is None
            assert found["finish_reason"] == "tool_calls"


def test_required_calls_may_be_several(answering: Callable[..., FakeServer]) -> None:
    call = CALL.replace(ARGUMENTS, '{"city": "Rome"}')
    found = both(answering(f"{call}\n{call}"), tools=[TOOL], tool_choice="required", max_tokens=300)
    assert found["tool_calls"] == [["weather", '{"city": "Rome"}']] * 2


OTHER = {"type": "function", "function": {"name": "time"}}


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_the_allowed_tools_are_called(answering: Callable[..., FakeServer], mode: str) -> None:
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "time"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    found = both(answering(CALL), tools=[TOOL, OTHER], tool_choice=choice, max_tokens=200)
    assert [name for name, _ in found["tool_calls"]] == ["time"] * len(found["tool_calls"])
    assert found["tool_calls"]
    unknown = {**choice, "allowed_tools": {"mode": mode, "tools": [{"type": "function", "function": {"name": "x"}}]}}
    reply = answering("x").post("/v1/chat/completions", chat(tools=[TOOL], tool_choice=unknown))
    assert (reply.status, reply.error["param"]) == (400, "tool_choice")


def test_a_stop_string_ends_text_and_never_a_call(answering: Callable[..., FakeServer]) -> None:
    server = answering(f"Let me see, then.\n{CALL}")
    found = both(server, tools=[TOOL], stop=["tool_call", "Rome", "city", "{"])
    assert found["tool_calls"] == [["weather", ARGUMENTS]]
    found = both(server, tools=[TOOL], stop=[","])
    assert (found["content"], found["tool_calls"], found["finish_reason"]) == ("Let me see", [], "stop")
    assert both(answering("a, b</think>c, d", THINKING), stop=["b<"])["content"] == "c, d"
    assert both(answering("a, b</think>c, d", THINKING), stop=[", d"])["content"] == "c"
    assert both(answering("a, b</think>c, d", THINKING), stop=[", b"])["reasoning"] == "a"


def test_a_form_and_calls_are_alternatives(answering: Callable[..., FakeServer]) -> None:
    form = {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["Yes", "No"]}}}}
    assert both(answering('"Yes"'), tools=[TOOL], **form)["content"] == '"Yes"'
    call = CALL.replace(ARGUMENTS, '{"city": "Rome"}')
    found = both(answering(call), tools=[TOOL], **form)
    assert (found["content"], found["tool_calls"]) == (None, [["weather", '{"city": "Rome"}']])


@pytest.mark.parametrize("arguments", ['{"city": "Oslo"}', {"city": "Oslo"}, '{"city": "Os', "", "null", "[1]"])
@pytest.mark.parametrize("template", [HERMES, TEMPLATE])
def test_histories_reach_prompts_of_every_template(
    answering: Callable[..., FakeServer], template: str, arguments: Any
) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call, {**call, "id": "call_2"}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "sun"}]},
        {"role": "user", "content": "Well?"},
    ]
    server = answering("It rains.", template)
    assert both(server, messages=messages)["content"] == "It rains."
    found = server.post("/v1/chat/completions", chat(messages=messages, return_token_ids=True)).json()
    prompt = bytes(token for token in found["prompt_token_ids"] if token < 256).decode()
    for word in ("weather", "rain", "sun", "Well?"):
        assert word in prompt
