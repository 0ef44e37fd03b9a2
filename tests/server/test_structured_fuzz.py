"""Any schema, regex, grammar, list of tools and history gets 2xx or 4xx, and takes no memory for good.

HOTSEAT_FUZZ_EXAMPLES is the number of requests of each kind (``make fuzz-forms`` takes 2,000).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grammar.schemas import UNSUPPORTED, schema
from hotseat.text import ChatTemplate
from server.fakes import TEMPLATE, FakeRunner, FakeServer, chat

NUM_EXAMPLES = int(os.environ.get("HOTSEAT_FUZZ_EXAMPLES", "60"))
MAX_GROWTH_MIB = 48
PIECES = [
    *("(", ")", "[", "]", "{", "}", "*", "+", "?", "|", "^", "$", ".", "\\d", "\\b", "(?=a)", "{2,900}", "{0}", "a-z"),
    *("[^\\s\\S]", "\\1", "(?i)", "a", "é", "\n", "\\p{L}", "(?P<n>a)", "/", '"'),
]
RULES = [
    *(
        "root ::= ",
        "start: ",
        "a ::= ",
        "x: ",
        '"y"',
        "[a-z]",
        "root",
        "start",
        "(",
        ")",
        "*",
        "|",
        "\n",
        "%json ",
        "{}",
    ),
    *("/a+/", "%ignore ", "<[1]>", "<eos>", "@x", "[lazy]", "[max_tokens=3]", "~3..5", "&", "#c", "{2,}", "\\", '"'),
]
KEYWORDS = [
    *(
        "type",
        "properties",
        "items",
        "required",
        "$ref",
        "anyOf",
        "oneOf",
        "allOf",
        "enum",
        "const",
        "pattern",
        "format",
    ),
    *("minimum", "maximum", "minItems", "maxItems", "minLength", "additionalProperties", "prefixItems", "multipleOf"),
    *("$defs", "x-guidance", "maxProperties", "patternProperties", "not", "if", "$schema", "$id"),
]
VALUES: list[Any] = [
    *(
        "string",
        "object",
        "array",
        "#",
        "#/$defs/a",
        "http://x/y",
        "date",
        "(",
        "",
        None,
        True,
        False,
        0,
        -1,
        1.5,
        10**30,
    ),
    *(
        [],
        ["a"],
        ["a", "a"],
        {},
        {"type": "string"},
        {"a": {"type": "integer"}},
        [{"type": "null"}],
        {"a": 1},
        "\ud800",
    ),
]


def broken_schema(draw: random.Random, depth: int = 3) -> Any:
    made: dict[str, Any] = {}
    for _ in range(draw.randint(0, 4)):
        deeper = depth and draw.random() < 0.3
        made[draw.choice(KEYWORDS)] = broken_schema(draw, depth - 1) if deeper else draw.choice(VALUES)
    return made


def schema_fields(draw: random.Random) -> dict[str, Any]:
    kinds = (lambda: schema(draw.randrange(10**6)), lambda: draw.choice(list(UNSUPPORTED.values())))
    value = draw.choice((*kinds, lambda: broken_schema(draw)))()
    return draw.choice(
        [
            {"structured_outputs": {"json": value}},
            {"guided_json": value},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}},
            {"structured_outputs": {"json": value, "whitespace_pattern": draw.choice([r"\s*", "(", "a", " ?"])}},
        ]
    )


def regex_fields(draw: random.Random) -> dict[str, Any]:
    return {"structured_outputs": {"regex": "".join(draw.choices(PIECES, k=draw.randint(1, 9)))}}


def grammar_fields(draw: random.Random) -> dict[str, Any]:
    text = "".join(draw.choices(RULES, k=draw.randint(1, 12)))
    if draw.random() < 0.2:
        text = '"y" [a-z]* | "z"'
    return {"grammar": draw.choice(["", "root ::= ", "start: "]) + text}


def tag_fields(draw: random.Random) -> dict[str, Any]:
    node: Any = draw.choice(
        [{"type": "any_text"}, {"type": "regex", "pattern": "a(b"}, {"type": "tag", "begin": "<"}, 1]
    )
    for _ in range(draw.randint(0, 4)):
        node = draw.choice(
            [
                {"type": "sequence", "elements": [node, {"type": "const_string", "value": "x"}]},
                {"type": "or", "elements": [node]},
                {"type": "triggered_tags", "triggers": ["<"], "tags": [{"begin": "<a", "content": node, "end": ">"}]},
                {"type": "repeat", "element": node, "max": draw.choice([0, 3, -1, "x", None])},
                {"type": "text_until", "text": draw.choice(["", "<eos>", "a", 1])},
            ]
        )
    return {"structured_outputs": {"structural_tag": {"format": node}}}


def tool_fields(draw: random.Random) -> dict[str, Any]:
    tools = []
    for number in range(draw.randint(0, 5)):
        function: Any = {"name": draw.choice([f"f{number}", f"f{number}", "f0", "a b", "", 1])}
        function["parameters"] = draw.choice([schema(draw.randrange(10**6)), broken_schema(draw), None, {}])
        function["strict"] = draw.choice([True, False, None, None, 1])
        tools.append({"type": "function", "function": function})
    named = {"type": "function", "function": {"name": "f0"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    choice = draw.choice(["auto", "required", "none", named, allowed, {"type": "x"}, {}])
    return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": draw.choice([True, False, None])}


def history_fields(draw: random.Random) -> dict[str, Any]:
    messages: list[Any] = []
    for _ in range(draw.randint(1, 6)):
        arguments = draw.choice(['{"a": 1}', "{", "", {"a": 1}, None, 3, [], "null"])
        made = {
            "id": draw.choice(["c", 1, None]),
            "function": {"name": draw.choice(["f", None, 1]), "arguments": arguments},
        }
        messages.append(
            draw.choice(
                [
                    {"role": "user", "content": draw.choice(["x", [{"type": "text", "text": "y"}], None, []])},
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": draw.choice([[made], [], [1], "x", {}, [made, made]]),
                    },
                    {"role": "assistant", "content": "z", "reasoning_content": draw.choice(["hm", None, 1])},
                    {
                        "role": "tool",
                        "content": draw.choice(["r", None, [{"type": "text", "text": "y"}], ["q"]]),
                        "tool_call_id": "c",
                    },
                    {"role": "system", "content": "s"},
                ]
            )
        )
    return {"messages": messages, "tools": [{"type": "function", "function": {"name": "f"}}]}


MAKERS: tuple[Callable[[random.Random], dict[str, Any]], ...] = (
    schema_fields,
    regex_fields,
    grammar_fields,
    tag_fields,
    tool_fields,
    history_fields,
)


@pytest.fixture(scope="module", params=["hermes", "without tools"])
def one_server(request: pytest.FixtureRequest) -> Iterator[FakeServer]:
    shown = "{# </think> #}{% for tool in tools or [] %}<tool_call>{{ tool.function.name }} {% endfor %}"
    template = shown + TEMPLATE if request.param == "hermes" else TEMPLATE
    server = FakeServer(
        runner=FakeRunner(reply='<tool_call>{"name": "f0", "arguments": {"a": 1}}</tool_call>', ends=True),
        services={"chat_template": ChatTemplate(template)},
        max_model_len=8192,
        num_kv_blocks=1024,
    )
    yield server
    server.close()


@pytest.mark.parametrize("make", MAKERS)
def test_whatever_is_asked_for_gets_an_answer_or_a_refusal(
    one_server: FakeServer, make: Callable[[random.Random], dict[str, Any]]
) -> None:
    num_served = 0
    for number in range(NUM_EXAMPLES):
        fields = make(random.Random(f"{make.__name__} {number}"))
        reply = one_server.post("/v1/chat/completions", chat(**fields))
        assert reply.status in (200, 400), (reply.status, reply.body[:500], fields)
        assert reply.status == 200 or reply.error["message"]
        num_served += reply.status == 200
    assert num_served or make is tag_fields


def resident_mib() -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def test_forms_take_no_memory_for_good(one_server: FakeServer) -> None:
    def ask(first: int, count: int) -> None:
        for number in range(first, first + count):
            form = {"json": schema(number), "whitespace_pattern": " ?"}
            one_server.post("/v1/chat/completions", chat(structured_outputs=form, max_tokens=2))

    count = max(50, NUM_EXAMPLES)
    ask(0, 2 * count)  # in ``make fuzz-forms`` more than the cache keeps
    before = resident_mib()
    ask(2 * count, count)
    assert resident_mib() - before < MAX_GROWTH_MIB
