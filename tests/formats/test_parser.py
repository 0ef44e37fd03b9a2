"""Answers are split into the same reasoning, content and calls however they are cut into pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotseat.formats import OutputFormat, choose_format, make_parser

HERMES = choose_format("{% for tool in tools %}<tool_call>{% endfor %} </think>")
MISTRAL = choose_format("[TOOL_CALLS]")
PHI = choose_format("<|tool_call|> <|/tool_call|>")
GENERIC = choose_format("{{ messages }}")

TOOLS = [{"type": "function", "function": {"name": name}} for name in "fg"]

Split = tuple[str, str, list[tuple[str, str]]]  # reasoning, content, calls


def split(
    output_format: OutputFormat,
    pieces: list[str],
    *,
    tools: list[dict[str, Any]] = TOOLS,
    in_reasoning: bool = False,
    max_calls: int | None = None,
) -> Split:
    parser = make_parser(output_format, tools=tools, in_reasoning=in_reasoning, max_calls=max_calls)
    reasoning, content = "", ""
    calls: list[tuple[str, str]] = []
    for parsed in [*map(parser.feed, pieces), parser.finish()]:
        reasoning += parsed.reasoning
        content += parsed.content
        for call in parsed.calls:
            if call.name is not None:
                assert call.number == len(calls), "a name comes once, and indices count up"
                calls.append((call.name, ""))
            assert call.number == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + call.arguments)
    return reasoning, content, calls


HARD = '{"a": "</tool_call> } \\" \\\\ ü 😀 \\n {[", "b": [1, {"c": null}]}'
CASES: list[tuple[OutputFormat, str, Split]] = [
    (HERMES, "Hello", ("", "Hello", [])),
    (HERMES, "1 < 2 <tool", ("", "1 < 2 <tool", [])),
    (HERMES, " a \n", ("", " a \n", [])),
    (HERMES, f'<tool_call>\n{{"name": "f", "arguments": {HARD}}}\n</tool_call>', ("", "", [("f", HARD)])),
    (
        HERMES,
        'So:\n\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\n'
        '<tool_call>{"name":"g","arguments":{"x":1}}</tool_call>\n',
        ("", "So:", [("f", "{}"), ("g", '{"x":1}')]),
    ),
    (HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call> done', ("", " done", [("f", '{"a": 1}')])),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', ("", "", [("f", '{"a": 1}')])),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": "b', ("", "", [("f", '{"a": "b')])),
    (HERMES, "<tool_call> nothing", ("", "<tool_call> nothing", [])),
    (HERMES, '<tool_call>{"x": 1}', ("", '<tool_call>{"x": 1}', [])),
    (HERMES, "<think>\nhm\n</think>\n\nYes", ("hm\n", "Yes", [])),
    (HERMES, "\n<think>hm", ("hm", "", [])),
    (HERMES, "<thin", ("", "<thin", [])),
    (HERMES, '<think>a</think><tool_call>{"name":"f","arguments":{}}</tool_call>', ("a", "", [("f", "{}")])),
    (
        MISTRAL,
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "]"}}, {"name": "g", "arguments": {}}]',
        ("", "", [("f", '{"a": "]"}'), ("g", "{}")]),
    ),
    (PHI, '<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]<|/tool_call|>', ("", "", [("f", '{"a": 1}')])),
    (GENERIC, '{"name": "f", "parameters": {"a": 1}}', ("", "", [("f", '{"a": 1}')])),
    (
        GENERIC,
        ' {"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
        ("", "", [("f", "{}"), ("g", "{}")]),
    ),
    (GENERIC, '{"type": "function", "name": "f", "parameters": {}}', ("", "", [("f", "{}")])),
    (GENERIC, '{"answer": 1}', ("", '{"answer": 1}', [])),
    (GENERIC, '{"na', ("", '{"na', [])),
    (GENERIC, "plain {", ("", "plain {", [])),
]


@pytest.mark.parametrize(("output_format", "text", "expected"), CASES)
def test_every_cut_gives_the_same_parts(output_format: OutputFormat, text: str, expected: Split) -> None:
    assert split(output_format, [text]) == expected
    for size in (1, 2, 3, 7):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert split(output_format, pieces) == expected, size


ALPHABET = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "f", "arguments": ', "[TOOL_CALLS]"),
        *("{", "}", '"', "\\", "a", " ", "\n", "[", "]", ",", "<", "1"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    parts=st.lists(ALPHABET, max_size=14),
    size=st.integers(1, 9),
    output_format=st.sampled_from([HERMES, MISTRAL, PHI, GENERIC]),
    in_reasoning=st.booleans(),
)
def test_any_text_in_any_pieces_gives_the_same_parts(
    parts: list[str], size: int, output_format: OutputFormat, in_reasoning: bool
) -> None:
    text = "".join(parts)
    in_reasoning = in_reasoning and output_format.reasoning is not None
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert split(output_format, pieces, in_reasoning=in_reasoning) == split(
        output_format, [text], in_reasoning=in_reasoning
    )


def test_without_tools_markers_are_content() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert split(HERMES, [text], tools=[]) == ("", text, [])


def test_reasoning_that_the_prompt_opened_ends_at_its_marker() -> None:
    assert split(HERMES, ["\nhm</think>\n", "\nYes"], in_reasoning=True) == ("hm", "Yes", [])
    assert split(HERMES, ["hm"], in_reasoning=True) == ("hm", "", [])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(value=VALUES)
@settings(max_examples=200, deadline=None)
def test_arguments_come_byte_for_byte(value: object) -> None:
    arguments = json.dumps({"value": value}, ensure_ascii=False)
    text = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
    assert split(HERMES, list(text)) == ("", "", [("f", arguments)])


def test_what_follows_the_last_wanted_call_is_left_out() -> None:
    text = " and ".join(f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>' for name in "fg")
    for size in (1, 5, len(text)):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert split(HERMES, pieces, max_calls=1) == ("", "", [("f", "{}")])
