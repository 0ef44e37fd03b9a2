"""About seventy chat templates of real models, rendered as transformers renders them."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest

from data_files import llama_cpp_models
from hotseat.errors import InvalidRequestError
from hotseat.text import ChatTemplate
from text.chat_templates import CALL

pytestmark = [pytest.mark.model, pytest.mark.oracle]

Chat = list[dict[str, Any]]

NUM_TEMPLATES = 70

SYSTEM = {"role": "system", "content": "Be brief.\n"}
ASKED = {"role": "user", "content": "  What's the weather in <Köln>? {{ 1 }} "}
CALLED = {"role": "assistant", "content": "", "tool_calls": [{**CALL, "id": "abcdef123"}]}
RESULT = {"role": "tool", "tool_call_id": "abcdef123", "name": "wetter", "content": '{"grad": 21}'}


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


CHATS: dict[str, Chat] = {
    "one turn": [ASKED],
    "system": [SYSTEM, ASKED],
    "three turns": [SYSTEM, ASKED, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nB "}, ASKED],
    "reasoning": [ASKED, {"role": "assistant", "content": "Sunny.", "reasoning_content": "Look."}, ASKED],
    "tool call": [SYSTEM, ASKED, CALLED],
    "tool result": [SYSTEM, ASKED, CALLED, RESULT],
    "after a tool": [SYSTEM, ASKED, CALLED, RESULT, {"role": "assistant", "content": "21 degrees."}, ASKED],
    "wrong order": [{"role": "assistant", "content": "A"}, ASKED, SYSTEM],
    "unknown role": [ASKED, {"role": "critic", "content": "Bad."}, ASKED],
}
IN_PARTS: dict[str, Chat] = {
    "user": [{"role": "user", "content": parts("One.", "Two. ")}],
    "system": [{"role": "system", "content": parts("Be", "brief.")}, ASKED],
    "assistant": [ASKED, {"role": "assistant", "content": parts("Yes.", "No.")}, ASKED],
    "tool": [ASKED, CALLED, {**RESULT, "content": parts("21 degrees", "22 degrees")}],
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "wetter",
            "description": 'Returns the weather at <place> & time – "short"',
            "parameters": {
                "type": "object",
                "properties": {
                    "ort": {"type": "string", "description": "Where"},
                    "tage": {"type": "number", "description": "For how many days", "enum": [1, 2.5]},
                },
                "required": ["ort"],
            },
        },
    }
]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "opening": {"add_generation_prompt": True},
    "tools": {"tools": TOOLS, "add_generation_prompt": True},
    "no thinking": {"enable_thinking": False, "add_generation_prompt": True},
    "further names": {"functions": "[]", "datetime": "1 May", "reasoning_effort": "low", "documents": []},
}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


@pytest.fixture(scope="module", params=range(NUM_TEMPLATES))
def source(request: pytest.FixtureRequest) -> str:
    paths = sorted((llama_cpp_models() / "templates").glob("*.jinja"))
    assert len(paths) == NUM_TEMPLATES
    return paths[request.param].read_text()


def oracle(source: str, chat: Chat, options: dict[str, Any]) -> str:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    normalized = utils._normalize_chat_messages(chat)
    rendered, _ = utils.render_jinja_template([normalized], chat_template=source, **{**SPECIAL, **options})
    return str(rendered[0])


@functools.lru_cache(maxsize=1)
def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source, special_tokens=SPECIAL)


def outcome(source: str, chat: Chat, **options: Any) -> tuple[str | None, str]:
    """The prompt, or None and the reason of the refusal."""
    try:
        return compiled(source).render(chat, **{"add_generation_prompt": False, **options}), ""
    except InvalidRequestError as error:
        return None, str(error)


def alike(source: str, chat: Chat, options: dict[str, Any]) -> bool:
    """Compare the two renderings, or the two reasons of a refusal; return whether there was a rendering."""
    rendered, reason = outcome(source, chat, **options)
    expected, error = None, ""
    try:
        expected = oracle(source, chat, options)
    except Exception as raised:
        error = str(raised)
    assert rendered == expected
    assert error in reason
    return rendered is not None


def test_template_renders_or_refuses_as_in_transformers(source: str) -> None:
    pairs = itertools.product(CHATS.values(), OPTIONS.values())
    rendered = [alike(source, chat, options) for chat, options in pairs]
    assert any(rendered)


def test_contents_in_parts_are_given_to_templates_that_read_them_and_joined_for_others(source: str) -> None:
    for chat in IN_PARTS.values():
        if reads_parts(source, chat):
            assert alike(source, chat, {})
        else:
            joined = [{**message, "content": text_of(message["content"])} for message in chat]
            assert outcome(source, chat) == outcome(source, joined)


def test_tool_call_without_content_reads_like_one_with_an_empty_content(source: str) -> None:
    chat = CHATS["after a tool"]
    null = [{**message, "content": None} if "tool_calls" in message else message for message in chat]
    if outcome(source, chat, tools=TOOLS)[0] is not None:
        assert outcome(source, null, tools=TOOLS)[0]


@pytest.mark.parametrize("arguments", ['{"ort": "Kö', "[1]", "null", "7", ""])
def test_broken_arguments_of_a_past_call_do_not_end_the_chat(source: str, arguments: str) -> None:
    function = {"name": "wetter", "arguments": arguments}
    call = {**CALLED, "tool_calls": [{"id": "abcdef123", "type": "function", "function": function}]}
    if outcome(source, [SYSTEM, ASKED, CALLED, RESULT, ASKED], tools=TOOLS)[0] is not None:
        assert outcome(source, [SYSTEM, ASKED, call, RESULT, ASKED], tools=TOOLS)[0]


def test_instructions_of_the_developer_reach_the_prompt_where_those_of_the_system_do(source: str) -> None:
    system, _ = outcome(source, [SYSTEM, ASKED])
    developer, _ = outcome(source, [{**SYSTEM, "role": "developer"}, ASKED])
    assert ("Be brief." in (system or "")) <= ("Be brief." in (developer or ""))


def text_of(content: Any) -> Any:
    return "\n".join(part["text"] for part in content) if isinstance(content, list) else content


def reads_parts(source: str, chat: Chat) -> bool:
    """Whether transformers' rendering has all texts and none of the marks around them."""
    texts = [
        part["text"].strip() for message in chat if isinstance(message["content"], list) for part in message["content"]
    ]
    marked = [
        {**message, "content": [{**part, "mark": "Wq3"} for part in message["content"]]}
        if isinstance(message["content"], list)
        else message
        for message in chat
    ]
    try:
        rendered = oracle(source, marked, {})
    except Exception:
        return False
    return all(text in rendered for text in texts) and "Wq3" not in rendered
