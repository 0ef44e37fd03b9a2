"""Each family's notation of calls is read the same at every cut, and read back from what a grammar lets through."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from hotseat.core.structured_outputs import StructuredOutputsParams
from hotseat.errors import ConfigError
from hotseat.formats import (
    OutputFormat,
    calls_after_text,
    choose_format,
    forced_calls,
    make_parser,
    reasoning_parser_names,
    tool_parser_names,
)
from hotseat.grammar import GrammarCompiler
from server.fakes import EOS, VOCAB_SIZE, byte_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "place": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"]},
    },
    "required": ["place", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {}}}},
]
PLACE = 'Kö "l"\n</tool_call> } 😀'
ALL: dict[str, Any] = {"place": PLACE, "days": 2, "exact": True, "tags": ["a", "b, c"], "more": {"k": "v"}}
JSON_ALL = json.dumps(ALL, ensure_ascii=False)


def parameters(before: str, after: str, blank: str = "") -> str:
    values = {**ALL, "exact": "True", "tags": '["a", "b, c"]', "more": '{"k": "v"}'}
    return "\n".join(f"{before.replace('KEY', key)}{blank}{value}{blank}{after}" for key, value in values.items())


MINIMAX = parameters('<parameter name="KEY">', "</parameter>")
GLM = "\n".join(
    f"<arg_key>{key}</arg_key>\n<arg_value>{value if isinstance(value, str) else json.dumps(value)}</arg_value>"
    for key, value in ALL.items()
)
DSML = "\n".join(
    f'<｜DSML｜parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
    f"{value if isinstance(value, str) else json.dumps(value)}</｜DSML｜parameter>"
    for key, value in ALL.items()
)
PYTHON = f"f(place={PLACE!r}, days=2, exact=True, tags=['a', 'b, c'], more={{'k': 'v'}})"
GEMMA = "f{place:Q" + PLACE + "Q,days:2,exact:true,tags:[QaQ,Qb, cQ],more:{k:QvQ}}"
ESCAPED = "<start_function_call>call:{}<end_function_call><start_function_call>call:g{{}}<end_function_call>"
V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
V31 = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
KIMI = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
OBJECTS = f'{{"name": "f", "arguments": {JSON_ALL}}}', '{"name": "g", "arguments": {}}'

# Two calls, of f with all arguments and of g with none, as each family's model writes them.
CALLS = {
    "hermes": "<tool_call>\n{}\n</tool_call>\n<tool_call>\n{}\n</tool_call>".format(*OBJECTS),
    "mistral": f"[TOOL_CALLS]f[ARGS]{JSON_ALL}[TOOL_CALLS]g[CALL_ID]abcdef123[ARGS]{{}}",
    "phi4_mini_json": "<|tool_call|>[{}, {}]<|/tool_call|>".format(*OBJECTS),
    "granite": "<|tool_call|>[{}, {}]".format(*OBJECTS),
    "granite4": "<tool_call>\n{}\n</tool_call>\n<tool_call>\n{}\n</tool_call>".format(*OBJECTS),
    "smollm3": "<tool_call>\n{}\n</tool_call>\n<tool_call>{}</tool_call>".format(*OBJECTS),
    "llama3_json": "{}; {}".format(*(one.replace("arguments", "parameters") for one in OBJECTS)),
    "pythonic": f"[{PYTHON}, g()]",
    "llama4_pythonic": f"<|python_start|>[{PYTHON}, g()]<|python_end|>",
    "gemma": f"```tool_code\n{PYTHON}\ng()\n```",
    "lfm2": f"<|tool_call_start|>[{PYTHON}, g()]<|tool_call_end|>",
    "qwen3_coder": f"<tool_call>\n<function=f>\n{parameters('<parameter=KEY>', '</parameter>', chr(10))}\n</function>\n"
    "</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
    "seed_oss": f"<seed:tool_call>\n<function=f>\n{parameters('<parameter=KEY>', '</parameter>')}\n</function>\n"
    "</seed:tool_call>\n<seed:tool_call>\n<function=g>\n</function>\n</seed:tool_call>",
    "minimax_m2": f'<minimax:tool_call>\n<invoke name="f">\n{MINIMAX}\n</invoke>\n<invoke name="g">\n</invoke>\n'
    "</minimax:tool_call>",
    "glm45": f"<tool_call>f\n{GLM}\n</tool_call>\n<tool_call>g</tool_call>",
    "deepseek_v32": f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n{DSML}\n</｜DSML｜invoke>\n'
    '<｜DSML｜invoke name="g">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
    "deepseek_v3": f"<｜tool▁calls▁begin｜>{V3.format('f', JSON_ALL)}\n{V3.format('g', '{}')}<｜tool▁calls▁end｜>",
    "deepseek_v31": f"<｜tool▁calls▁begin｜>{V31.format('f', JSON_ALL)}{V31.format('g', '{}')}<｜tool▁calls▁end｜>",
    "kimi_k2": f"<|tool_calls_section_begin|>{KIMI.format('f', 0, JSON_ALL)}{KIMI.format('g', 1, '{}')}"
    "<|tool_calls_section_end|>",
    "functionary": f"<function=f>{JSON_ALL}</function><function=g>{{}}</function>",
    "gemma4": "<|tool_call>call:{}<tool_call|><|tool_call>call:g{{}}<tool_call|>".format(GEMMA.replace("Q", '<|"|>')),
    "functiongemma": ESCAPED.format(GEMMA.replace("Q", "<escape>")),
    "cohere": f'<|START_ACTION|>[{{"tool_call_id": "0", "tool_name": "f", "parameters": {JSON_ALL}}}, '
    '{"tool_call_id": "1", "tool_name": "g", "parameters": {}}]<|END_ACTION|>',
    "openai": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f "
    f"<|constrain|>json<|message|>{JSON_ALL}<|call|><|start|>assistant to=functions.g<|channel|>commentary json"
    "<|message|>{}<|call|>",
}


def named(name: str) -> OutputFormat:
    return choose_format("[TOOL_CALLS][ARGS]" if name == "mistral" else "", tool_parser=name)


def parse(output_format: OutputFormat, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    parser = make_parser(output_format, tools=TOOLS)
    content, calls = "", []
    for part in [*map(parser.feed, pieces), parser.finish()]:
        content += part.content
        for call in part.calls:
            if call.name is not None:
                assert call.number == len(calls), "a name comes once, and numbers count up"
                calls.append((call.name, ""))
            calls[-1] = (calls[-1][0], calls[-1][1] + call.arguments)
    return content, calls


def cuts(text: str) -> Iterator[list[str]]:
    for size in (len(text), 1, 2, 3, 5, 11):
        yield [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_read_the_same_at_every_cut(name: str) -> None:
    text = CALLS[name]
    before = "" if name in ("llama3_json", "pythonic", "openai") else "Let me see."
    for pieces in cuts(before + text):
        content, calls = parse(named(name), pieces)
        assert content == before
        assert [call for call, _ in calls] == ["f", "g"]
        assert [json.loads(arguments) for _, arguments in calls] == [ALL, {}]


@pytest.mark.parametrize("name", CALLS)
def test_a_cut_call_and_any_other_text_lose_nothing_that_was_told(name: str) -> None:
    text = CALLS[name]
    whole = parse(named(name), [text])[1][0][1]
    for end in range(1, len(text), 7):
        results = [parse(named(name), pieces) for pieces in cuts(text[:end])]
        assert all(result == results[0] for result in results)
        calls = results[0][1]
        if calls and calls[0][1]:
            assert whole.startswith(calls[0][1][:1])


@pytest.mark.parametrize("name", [*CALLS, "granite", "nemotron_json", "solar_open", "apriel", "minimax", "olmo3"])
def test_arbitrary_pieces_of_a_notation_are_read_the_same_at_every_cut(name: str) -> None:
    source = CALLS.get(name, CALLS["hermes"])
    output_format = named(name)
    draw = random.Random(name)
    for _ in range(30):
        parts = [source[at : at + draw.randint(1, 25)] for at in (draw.randrange(len(source)) for _ in range(5))]
        text = output_format.tools.begin + "".join(parts)
        results = [parse(output_format, pieces) for pieces in cuts(text)]
        assert all(result == results[0] for result in results), text


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    tokenizer = byte_tokenizer()
    return GrammarCompiler(tokenizer.to_json, vocab_size=VOCAB_SIZE, eos_token_ids={EOS})


CLOSERS = ('"', '<|"|>', "<escape>", "</parameter>", "\n</parameter>\n", "</arg_value>", "</｜DSML｜parameter>", "}")


def walk(compiler: GrammarCompiler, node: dict[str, Any], draw: random.Random, limit: int = 3000) -> str | None:
    """Return what a model with no preference writes in a form; ``None`` when it does not come to an end."""
    params = StructuredOutputsParams.from_values({"structural_tag": {"format": node}})
    constraint = compiler.compile(params).constraint()
    written: list[int] = []
    while len(written) < limit:
        mask = int.from_bytes(constraint.mask(), "little")
        allowed = [token for token in range(VOCAB_SIZE) if mask >> token & 1]
        if EOS in allowed and (len(allowed) == 1 or draw.random() < 0.3):
            return bytes(written).decode()
        allowed = [token for token in allowed if token != EOS]
        closer = list(draw.choice(CLOSERS).encode())
        if draw.random() < 0.3 and constraint.num_valid(closer) == len(closer):
            for token in closer:
                constraint.accept(token)
            written += closer
            continue
        likely = [token for token in allowed if chr(token) in '"}])>/\n' or len(allowed) < 4]
        token = draw.choice(likely if likely and draw.random() < 0.6 else allowed)
        constraint.accept(token)
        written.append(token)
    return None


@pytest.mark.parametrize("name", CALLS)
def test_what_a_forced_form_lets_through_is_read_back(compiler: GrammarCompiler, name: str) -> None:
    output_format = named(name)
    num_read = 0
    for seed in range(6):
        text = walk(compiler, forced_calls(output_format, TOOLS, several=seed % 2 == 0), random.Random(seed))
        if text is None:
            continue
        content, calls = parse(output_format, [text])
        assert not content.strip()
        assert calls, text
        for call, arguments in calls:
            value = json.loads(arguments)
            assert call in "fg"
            if call == "f":
                assert isinstance(value["place"], str)
                assert isinstance(value["days"], int)
        num_read += 1
    assert num_read > 0


@pytest.mark.parametrize("name", [one for one in CALLS if one != "openai"])
def test_a_strict_tool_is_held_to_its_schema_once_a_call_begins(compiler: GrammarCompiler, name: str) -> None:
    output_format = named(name)
    strict = [{"function": {**tool["function"], "strict": True}} for tool in TOOLS]
    node = calls_after_text(output_format, strict, several=True)
    params = StructuredOutputsParams.from_values({"structural_tag": {"format": node}})
    grammar = compiler.compile(params)
    assert grammar.constraint().num_valid(list(b"No call at all.")) == 15
    begin = output_format.tools.begin + output_format.tools.before
    wrong = begin + "unknown" * 20
    if output_format.tools.begin:
        assert grammar.constraint().num_valid(list(wrong.encode())) < len(wrong.encode())


def test_names_choose_a_format_and_unknown_ones_are_told_all() -> None:
    for name in tool_parser_names():
        assert choose_format("", tool_parser=name).tools.reader({}) is not None
    for name in reasoning_parser_names():
        assert choose_format("", reasoning_parser=name).reasoning
    with pytest.raises(ConfigError, match=r"hermes.*qwen3_coder"):
        choose_format("", tool_parser="x")
    with pytest.raises(ConfigError, match=r"deepseek_r1.*qwen3"):
        choose_format("", reasoning_parser="x")
