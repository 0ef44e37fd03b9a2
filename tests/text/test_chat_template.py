from __future__ import annotations

import copy
import resource
from datetime import datetime
from typing import Any

import pytest

from hotseat.errors import InvalidRequestError, ModelError
from hotseat.text import ChatTemplate

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
ECHO = "{{ messages | tojson }}"
HELLO = [{"role": "user", "content": "Hello"}]


def text_parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def test_chat_ends_with_the_opening_of_the_answer() -> None:
    assert ChatTemplate(CHATML).render(HELLO) == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert ChatTemplate(CHATML).render(HELLO, add_generation_prompt=False) == "<|im_start|>user\nHello<|im_end|>\n"


def test_template_sees_special_tokens_tools_documents_and_further_names() -> None:
    template = ChatTemplate(
        "{{ bos_token }}{{ eos_token }}{{ unk_token }}{{ tools | length }}{{ documents[0].title }}{{ thinking }}",
        bos_token="<s>",
        eos_token="</s>",
        special_tokens={"unk_token": "<unk>"},
    )
    rendered = template.render(HELLO, tools=[{"type": "function"}], documents=[{"title": "T"}], thinking=False)
    assert rendered == "<s></s><unk>1TFalse"


def test_template_can_tell_that_there_are_no_tools() -> None:
    assert ChatTemplate("{{ tools is none and documents is none }}").render(HELLO) == "True"


def test_blocks_loop_controls_and_generation_tags_read_as_in_transformers() -> None:
    template = ChatTemplate(
        "{%- for message in messages %}\n"
        "    {%- if loop.index > 2 %}{% break %}{% endif %}\n"
        "    {% generation %}\n"
        "[{{ message.content }}]\n"
        "    {% endgeneration %}\n"
        "{%- endfor %}\n"
    )
    assert template.render(HELLO * 5) == "[Hello]\n[Hello]\n"


def test_json_keeps_letters_and_html_as_they_are() -> None:
    template = ChatTemplate(
        "{{ messages[0].content | tojson }}{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}"
    )
    assert template.render([{"role": "user", "content": "<é&'>"}]) == '"<é&\'>"{\n "a": 2,\n "b": 1\n}'


def test_date_comes_from_the_given_clock() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2031, 2, 3))
    assert template.render(HELLO) == "03 Feb 2031"


# Contents


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("text", "text"),
        ("", ""),
        (None, ""),
        ([], ""),
        (text_parts("one"), "one"),
        (text_parts("one", "two"), "one\ntwo"),
    ],
)
def test_content_may_be_text_nothing_or_text_parts(content: Any, expected: str) -> None:
    assert ChatTemplate("{{ messages[0].content }}").render([{"role": "assistant", "content": content}]) == expected


def test_message_without_content_is_an_empty_turn() -> None:
    messages = [*HELLO, {"role": "assistant"}, {"role": "user", "content": "B"}]
    assert "assistant\n<|im_end|>" in ChatTemplate(CHATML).render(messages)


def test_tool_call_without_content_has_none_and_its_arguments_are_an_object() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": [1, "é"]}'}}
    template = ChatTemplate("{{ messages[0].content is defined }} {{ messages[0].tool_calls[0].function | tojson }}")
    rendered = template.render([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert rendered == 'False {"name": "f", "arguments": {"x": [1, "é"]}}'


def test_reasoning_is_found_under_all_its_names() -> None:
    template = ChatTemplate("{{ messages[0].reasoning_content }}{{ messages[0].thinking }}")
    assert template.render([{"role": "assistant", "content": "", "reasoning": "R"}]) == "RR"


def test_callers_messages_are_not_changed() -> None:
    messages = [
        {"role": "user", "content": text_parts("a", "b"), "name": None},
        {
            "role": "assistant",
            "content": "c",
            "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
        },
    ]
    before = copy.deepcopy(messages)
    ChatTemplate(ECHO).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert messages == before


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("Hello", "messages"),
        ({"role": "user"}, "messages"),
        (None, "messages"),
        (["Hello"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": 3, "content": "x"}], "messages[0].role"),
        ([*HELLO, {"role": "user", "content": 3}], "messages[1].content"),
        ([*HELLO, {"role": "user", "content": {"type": "text"}}], "messages[1].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "messages[0].content[0].text"),
        (
            [*HELLO, *HELLO, {"role": "user", "content": [*text_parts("x"), {"type": "image_url", "image_url": {}}]}],
            "messages[2].content[1]",
        ),
        ([{"role": "user", "content": "\ud800"}], "messages[0].content"),
        ([{"role": "user", "content": text_parts("ok", "\udfff")}], "messages[0].content[1].text"),
        ([{"role": "user\ud800", "content": ""}], "messages[0].role"),
        ([{"role": "user", "content": "", "\ud800": 1}], "messages[0]"),
        ([{"role": "user", "content": "", "name": object()}], "messages[0].name"),
        ([{"role": "user", "content": "", 3: 1}], "messages[0]"),
        ([{"role": "assistant", "tool_calls": "f"}], "messages[0].tool_calls"),
    ],
)
def test_message_that_is_wrong_is_pointed_at(messages: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate(ECHO).render(messages)
    assert caught.value.param == param
    assert "\ud800" not in str(caught.value)


def test_message_nested_beyond_reason_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        ChatTemplate(ECHO).render([{"role": "user", "content": "", "extra": deep}])


@pytest.mark.parametrize("name", ["messages", "self"])
def test_further_names_cannot_replace_the_messages(name: str) -> None:
    if name == "self":
        assert ChatTemplate("{{ messages[0].content }}").render(HELLO, **{name: "x"}) == "Hello"
    else:
        with pytest.raises(InvalidRequestError, match="not a free name") as caught:
            ChatTemplate(ECHO).render(HELLO, **{name: "x"})
        assert caught.value.param == "chat_template_kwargs"


def test_further_values_must_be_plain_data() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate("{{ x }}").render(HELLO, x=[open])
    assert caught.value.param == "chat_template_kwargs.x[0]"


# Going on with the last message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("Sure, ", "Sure, "),
        ("", ""),
        (text_parts("Sure", "then"), "Sure\nthen"),
        ("a CONTINUE_FINAL_MESSAGE_TAG b ", "a CONTINUE_FINAL_MESSAGE_TAG b "),
    ],
)
def test_final_message_is_left_open(content: Any, expected: str) -> None:
    messages = [*HELLO, {"role": "assistant", "content": content}]
    rendered = ChatTemplate(CHATML).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered.endswith("<|im_start|>assistant\n" + expected)


def test_final_message_that_the_template_trims_is_left_open_without_its_space() -> None:
    template = ChatTemplate("{% for message in messages %}[{{ message.content | trim }}]{% endfor %}")
    rendered = template.render(
        [*HELLO, {"role": "assistant", "content": "Sure, "}], add_generation_prompt=False, continue_final_message=True
    )
    assert rendered == "[Hello][Sure,"


def test_opening_an_answer_and_continuing_one_exclude_each_other() -> None:
    with pytest.raises(InvalidRequestError, match="exclude each other"):
        ChatTemplate(CHATML).render(HELLO, continue_final_message=True)


@pytest.mark.parametrize("source", ["{{ messages[0].role }}", "{{ messages[0].content[:2] }}"])
def test_final_message_that_the_template_does_not_write_cannot_be_continued(source: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be continued"):
        ChatTemplate(source).render(HELLO, add_generation_prompt=False, continue_final_message=True)


def test_final_message_without_content_cannot_be_continued() -> None:
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    with pytest.raises(InvalidRequestError, match="no content to continue"):
        ChatTemplate(ECHO).render([message], add_generation_prompt=False, continue_final_message=True)


# What goes wrong in templates


def test_model_without_template_says_so() -> None:
    with pytest.raises(InvalidRequestError, match="no chat template") as caught:
        ChatTemplate(None).render(HELLO)
    assert caught.value.param == "messages"


def test_broken_template_is_the_models_fault_and_names_the_line() -> None:
    with pytest.raises(ModelError, match="broken in line 2"):
        ChatTemplate("fine\n{% if %}")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses the messages: roles must alternate"),
        ("{{ messages[7].content }}", "needs something that the messages lack"),
        ("{{ 'a' + 1 }}", "fails on these messages: TypeError"),
        ("{{ 1 / 0 }}", "fails on these messages: ZeroDivisionError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "fails on these messages: RecursionError"),
        ("{% for i in range(1000000) %}{% endfor %}", "fails on these messages: OverflowError"),
        ("{{ messages.append(1) }}", "not allowed"),
        ("{{ ''.__class__.__mro__ }}", "not allowed"),
        ("{{ namespace(__class__=1) }}", "not allowed"),
        ("{% set n = namespace() %}{% set n._x = 1 %}", "not allowed"),
    ],
)
def test_template_that_fails_is_a_refusal_in_plain_words(source: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        ChatTemplate(source).render(HELLO)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__ }}",
        "{{ messages | attr('__class__') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ dict.__base__ }}{{ dict.fromkeys.__self__ }}",
        "{{ '{0.__class__}'.format(1) }}",
    ],
)
def test_python_internals_do_not_exist_for_a_template(source: str) -> None:
    assert ChatTemplate(source).render(HELLO) == ""


def test_messages_are_never_run() -> None:
    hostile = "{{ 7 * 7 }}{% for x in range(10) %}"
    assert ChatTemplate("{{ messages[0].content }}").render([{"role": "user", "content": hostile}]) == hostile


def test_output_is_bounded() -> None:
    endless = "{% for i in range(1000) %}{% for j in range(1000) %}{{ messages[0].content }}{% endfor %}{% endfor %}"
    with pytest.raises(InvalidRequestError, match="longer than 1000 characters"):
        ChatTemplate(endless, max_chars=1000).render(HELLO)
    assert ChatTemplate("{{ messages[0].content }}", max_chars=5).render(HELLO) == "Hello"


FOR_EVER = (
    "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "{% set l = range(90000) | list %}{% for a in l %}{% for b in l %}{% endfor %}{% endfor %}",
    "{% set l = range(90000) | list %}{% for a in l %}{% set s = l | sort | list %}{% endfor %}",
    "{% for a in [1, 2, 3] recursive %}{% if loop.depth < 40 %}{{ loop([1, 2, 3]) }}{% endif %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% set ns = namespace(s='x') %}{% for a in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for a in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set ns = namespace(s=[1]) %}{% for a in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set x = 'x' * 10 ** 10 %}",
    "{% set x = 10 ** (10 ** 8) %}",
    "{% set x = [1] * 10 ** 10 %}",
    "{% set x = 'x'.center(10 ** 10) %}",
    "{% set x = 'x' | center(10 ** 10) %}",
    "{% set x = 'x\n' | indent(10 ** 10) %}",
    "{% set x = '{:>9999999999}'.format(1) %}",
    "{% set x = '%9999999999d' % 1 %}",
    "{% set x = '%*d' % (10 ** 9, 1) %}",
    "{% set x = '%9999999999d' | format(1) %}",
    "{% set x = ('x' * 100000).replace('x', 'x' * 100000) %}",
    "{% set x = ('x' * 100000) | replace('x', 'x' * 100000) %}",
    "{% set x = range(100000) | join('x' * 100000) %}",
    "{% set x = ('x' * 100000).join(range(100000) | map('string') | list) %}",
    "{% set x = ('x' * 100000).translate({120: 'x' * 100000}) %}",
    "{% set x = {'a': {'b': 1}} | tojson(indent=10 ** 10) %}",
    "{% set x = ('{0}' * 100000).format('x' * 100000) %}",
    "{% set x = lipsum(n=10 ** 9) %}",
)


@pytest.mark.parametrize("source", FOR_EVER)
def test_template_that_would_run_for_ever_or_fill_the_memory_is_stopped(source: str) -> None:
    template = ChatTemplate(source, max_steps=200_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidRequestError, match=r"stopped|lipsum|RecursionError|TypeError"):
        template.render(HELLO)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB


def test_chat_of_many_messages_is_within_the_limits() -> None:
    messages = [{"role": "user", "content": "x" * 30}] * 100_000
    assert len(ChatTemplate(CHATML).render(messages)) > 3_000_000


def test_arguments_that_are_no_json_stay_the_text_they_are() -> None:
    call = {"function": {"name": "f", "arguments": '{"x": "He sa'}}
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments }}")
    assert template.render([{"role": "assistant", "tool_calls": [call]}]) == '{"x": "He sa'


def test_contents_in_parts_are_joined_unless_the_template_reads_parts() -> None:
    reads = ChatTemplate(
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}"
    )
    assert reads.render([{"role": "user", "content": text_parts("a", "b")}]) == "<a><b>"
    plain = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert plain.render([{"role": "user", "content": text_parts("a", "b")}]) == "a\nb"


def test_developer_is_the_system_unless_the_template_knows_the_role() -> None:
    messages = [{"role": "developer", "content": "Be brief."}]
    assert (
        ChatTemplate(CHATML).render(messages, add_generation_prompt=False)
        == "<|im_start|>system\nBe brief.<|im_end|>\n"
    )
    knows = "{% for m in messages if m.role in ['user', 'developer'] %}{{ m.role }}: {{ m.content }}{% endfor %}"
    assert ChatTemplate(knows).render(messages) == "developer: Be brief."
