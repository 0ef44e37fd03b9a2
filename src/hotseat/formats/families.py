"""The formats of model families: how they write calls and reasoning. Names are those of vLLM's parsers."""

from __future__ import annotations

from functools import partial
from typing import Any

from hotseat.formats.notation import (
    LIST,
    OBJECT,
    ReasoningFormat,
    ToolFormat,
    begins_json,
    gemma_format,
    json_format,
    named_format,
    python_format,
    tagged_format,
)
from hotseat.formats.pythonic import begins_python
from hotseat.formats.readers import CallReader, JsonReader, NamedReader
from hotseat.formats.tagged import TagNotation
from hotseat.formats.trees import json_call, named_call
from hotseat.formats.values import SPACE

__all__ = ["GENERIC", "HARMONY", "REASONING_ALIASES", "REASONING_FORMATS", "TOOL_ALIASES", "TOOL_FORMATS"]


class _MistralReader:
    """Reads both notations of Mistral: objects in a list, or since version 11 a name and its arguments."""

    def __init__(self) -> None:
        self._inner: CallReader | None = None

    def read(self, text: str) -> Any:
        """Look at ``text``."""
        if self._inner is None and text.strip(SPACE):
            is_list = text.lstrip(SPACE)[0] in "[{"
            self._inner = JsonReader(LIST) if is_list else NamedReader(**_ARGS)
        return NamedReader(**_ARGS).read("") if self._inner is None else self._inner.read(text)

    def finish(self, text: str) -> Any:
        """Return the last news."""
        return None if self._inner is None else self._inner.finish(text)


_ARGS = {"prefix": "", "separator": "[ARGS]", "tail": "", "end": "", "name": r"\s*([^\s\[]+?)\s*(?:\[CALL_ID\].*)?"}


def _mistral(name: str, *marks: str, **values: Any) -> ToolFormat:
    return ToolFormat(name=name, marks=marks, begin="[TOOL_CALLS]", reader=lambda _: _MistralReader(), **values)


_HERMES_JOIN = "\n</tool_call>\n<tool_call>\n"
_FUNCTION = TagNotation(
    call="<function=",
    name_end=">",
    key="<parameter=",
    key_end=">",
    value_end="</parameter>",
    call_end="</function>",
    end="</tool_call>",
    blank="\n",
)
_SEED = TagNotation(
    call="<function=",
    name_end=">",
    key="<parameter=",
    key_end=">",
    value_end="</parameter>",
    call_end="</function>",
    end="</seed:tool_call>",
)
_GLM = TagNotation(
    call="",
    name_end="",
    key="<arg_key>",
    key_end="</arg_key>\n<arg_value>",
    other_key_end="",
    value_end="</arg_value>",
    call_end="",
    end="</tool_call>",
)
_MINIMAX = TagNotation(
    call='<invoke name="',
    name_end='">',
    key='<parameter name="',
    key_end='">',
    value_end="</parameter>",
    call_end="</invoke>",
    end="</minimax:tool_call>",
)


def _dsml(section: str) -> TagNotation:
    return TagNotation(
        call='<｜DSML｜invoke name="',
        name_end='">',
        key='<｜DSML｜parameter name="',
        key_end='" string="true">',
        other_key_end='" string="false">',
        value_end="</｜DSML｜parameter>",
        call_end="</｜DSML｜invoke>",
        end=f"</｜DSML｜{section}>",
    )


_V3_HEAD = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
_V3_END = "<｜tool▁calls▁end｜>"
_CALL_END = "<｜tool▁call▁end｜>"

# In this order the marks are looked for: a format stands before those whose marks it has too.
_ALL = (
    _mistral("mistral", "[TOOL_CALLS]", "[ARGS]", join="[TOOL_CALLS]", call=partial(named_call, "{name}[ARGS]", "")),
    _mistral("mistral", "[TOOL_CALLS]", before="[", join=", ", after="]", call=partial(json_call, OBJECT, "}")),
    tagged_format(
        "seed_oss",
        "<seed:tool_call>",
        tags=_SEED,
        begin="<seed:tool_call>",
        before="\n",
        join="\n</seed:tool_call>\n<seed:tool_call>\n",
        after="\n</seed:tool_call>",
    ),
    tagged_format(
        "minimax_m2",
        "<minimax:tool_call>",
        tags=_MINIMAX,
        begin="<minimax:tool_call>",
        before="\n",
        join="\n",
        after="\n</minimax:tool_call>",
    ),
    tagged_format(
        "qwen3_coder",
        "<tool_call>",
        "<function=",
        "<parameter=",
        tags=_FUNCTION,
        begin="<tool_call>",
        before="\n",
        join=_HERMES_JOIN,
        after="\n</tool_call>",
    ),
    tagged_format(
        "glm45", "<tool_call>", "<arg_key>", tags=_GLM, begin="<tool_call>", join="</tool_call>\n<tool_call>"
    ),
    tagged_format(
        "deepseek_v32",
        "｜DSML｜",
        "function_calls>",
        tags=_dsml("function_calls"),
        begin="<｜DSML｜function_calls>",
        before="\n",
        join="\n",
        after="\n</｜DSML｜function_calls>",
    ),
    tagged_format(
        "deepseek_v4",
        "｜DSML｜",
        "tool_calls>",
        tags=_dsml("tool_calls"),
        begin="<｜DSML｜tool_calls>",
        before="\n",
        join="\n",
        after="\n</｜DSML｜tool_calls>",
    ),
    named_format(
        "deepseek_v3",
        "<｜tool▁calls▁begin｜>",
        "```json",
        begin="<｜tool▁calls▁begin｜>",
        join="\n",
        after=_V3_END,
        head=_V3_HEAD + "{name}\n```json\n",
        tail="\n```" + _CALL_END,
        reader={"prefix": _V3_HEAD, "separator": "\n```json\n", "end": _V3_END},
    ),
    named_format(
        "deepseek_v31",
        "<｜tool▁calls▁begin｜>",
        begin="<｜tool▁calls▁begin｜>",
        after=_V3_END,
        head="<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
        tail=_CALL_END,
        reader={"prefix": "<｜tool▁call▁begin｜>", "separator": "<｜tool▁sep｜>", "end": _V3_END},
    ),
    named_format(
        "functionary",
        "<function=",
        "</function>",
        begin="<function=",
        join="<function=",
        head="{name}>",
        tail="</function>",
        reader={"separator": ">"},
    ),
    named_format(
        "solar_open",
        "<|tool_calls|>",
        "<|tool_call:begin|>",
        begin="<|tool_calls|>",
        after="<|calls|>",
        head="<|tool_call:begin|>call00001<|tool_call:name|>{name}<|tool_call:args|>",
        tail="<|tool_call:end|>",
        reader={
            "prefix": "<|tool_call:begin|>",
            "separator": "<|tool_call:args|>",
            "end": "<|calls|>",
            "name": r".*<\|tool_call:name\|>\s*(.+?)\s*",
        },
    ),
    named_format(
        "kimi_k2",
        "<|tool_calls_section_begin|>",
        begin="<|tool_calls_section_begin|>",
        after="<|tool_calls_section_end|>",
        head="<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>",
        tail="<|tool_call_end|>",
        reader={
            "prefix": "<|tool_call_begin|>",
            "separator": "<|tool_call_argument_begin|>",
            "end": "<|tool_calls_section_end|>",
            "name": r"\s*(?:functions\.)?(.+?)(?::\d+)?\s*",
        },
    ),
    gemma_format("gemma4", "<|tool_call>", '<|"|>', "<tool_call|>"),
    gemma_format("functiongemma", "<start_function_call>", "<escape>", "<end_function_call>"),
    python_format("gemma", "```tool_code", begin="```tool_code", before="\n", join="\n", after="\n```", end="```"),
    python_format("lfm2", "<|tool_call_start|>", begin="<|tool_call_start|>", end="<|tool_call_end|>"),
    python_format("lfm2", "<|tool_list_start|>", begin="<|tool_call_start|>", end="<|tool_call_end|>"),
    python_format(
        "olmo3",
        "<function_calls>",
        begin="<function_calls>",
        before="\n",
        join="\n",
        after="\n</function_calls>",
        end="</function_calls>",
    ),
    python_format(
        "llama4_pythonic", "<|python_start|>", begin="<|python_start|>", begins=begins_python, end="<|python_end|>"
    ),
    json_format("phi4_mini_json", "<|tool_call|>", "<|/tool_call|>", begin="<|tool_call|>", end="<|/tool_call|>"),
    json_format(
        "granite-20b-fc",
        "<function_call>",
        begin="<function_call>",
        separators=SPACE,
        before="",
        after="",
        join="<function_call>",
    ),
    json_format("functools", "functools[", begin="functools"),
    json_format("granite", "<|tool_call|>", begin="<|tool_call|>"),
    json_format(
        "cohere",
        "<|START_ACTION|>",
        begin="<|START_ACTION|>",
        end="<|END_ACTION|>",
        head='{"tool_call_id": "0", "tool_name": {name}, "parameters": ',
    ),
    json_format("apriel", "<tool_calls>", "Here are my reasoning steps", begin="<tool_calls>", end="</tool_calls>"),
    json_format(
        "minimax",
        "<tool_calls>",
        separators=LIST,
        begin="<tool_calls>",
        before="\n",
        join="\n",
        after="\n</tool_calls>",
        end="</tool_calls>",
    ),
    json_format("nemotron_json", "<TOOLCALL>", begin="<TOOLCALL>", end="</TOOLCALL>"),
    json_format(
        "gigachat3",
        "<|function_call|>",
        separators=SPACE,
        begin="<|function_call|>",
        before="",
        after="",
        join="<|function_call|>",
    ),
    # Granite 3 writes a list after the marker and no end; both are read.
    json_format(
        "hermes",
        "<tool_call>",
        separators=LIST,
        begin="<tool_call>",
        end="</tool_call>",
        before="\n",
        join=_HERMES_JOIN,
        after="\n</tool_call>",
    ),
    json_format(
        "llama3_json",
        '"parameters":',
        separators=SPACE + ";",
        begins=begins_json,
        before="",
        join="; ",
        after="",
        head='{"name": {name}, "parameters": ',
    ),
    python_format("pythonic", begins=begins_python),
)
GENERIC = next(one for one in _ALL if one.name == "llama3_json")
HARMONY = named_format(
    "openai",
    "<|channel|>",
    "<|start|>",
    begin="<|channel|>",
    head="commentary to=functions.{name} <|constrain|>json<|message|>",
    reader={"separator": "<|message|>"},
)
TOOL_FORMATS = (HARMONY, *_ALL)
# Further names of vLLM for the same formats.
TOOL_ALIASES = {
    "granite4": "hermes",
    "smollm3": "hermes",
    "qwen3_xml": "qwen3_coder",
    "step3p5": "qwen3_coder",
    "glm47": "glm45",
    "llama4_json": "llama3_json",
}

_THINK = ("<think>", "</think>")
# In this order they are looked for; the last one needs no more than its end in the template.
REASONING_FORMATS = (
    ReasoningFormat("openai_gptoss", "<|channel|>analysis<|message|>", "<|end|><|start|>assistant", "<|channel|>"),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
    ReasoningFormat("seed_oss", "<seed:think>", "</seed:think>"),
    ReasoningFormat("gemma4", "<|channel>thought\n", "<channel|>", "<|channel>"),
    ReasoningFormat("cohere", "<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningFormat("hunyuan", "<think:opensource>", "</think:opensource>"),
    ReasoningFormat("apriel", "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ReasoningFormat("granite", "Here is my thought process:", "Here is my response:"),
    ReasoningFormat("deepseek_r1", *_THINK),
)
REASONING_ALIASES = dict.fromkeys(
    ("qwen3", "deepseek_v3", "glm45", "kimi_k2", "minimax_m2", "nemotron_v3", "olmo3", "smollm3", "step3"),
    "deepseek_r1",
)
