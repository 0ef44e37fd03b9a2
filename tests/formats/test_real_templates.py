"""Formats chosen for chat templates of real models: a call that the template writes is parsed back."""

from __future__ import annotations

from typing import Any

import pytest

from data_files import llama_cpp_models
from hotseat.formats import OutputFormat, choose_format
from hotseat.text import ChatTemplate

pytestmark = pytest.mark.model

THINK = "<think>"
EXPECTED = {
    "ByteDance-Seed-OSS": ("seed_oss", "<seed:think>"),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("cohere", "<|START_THINKING|>"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("deepseek_v3", THINK),
    "deepseek-ai-DeepSeek-V3.1": ("deepseek_v31", THINK),
    "deepseek-ai-DeepSeek-V3.2": ("deepseek_v32", THINK),
    "deepseek-ai-DeepSeek-V4": ("deepseek_v4", THINK),
    "GLM-4.6": ("glm45", THINK),
    "GLM-4.7-Flash": ("glm45", THINK),
    "google-gemma-2-2b-it": ("llama3_json", None),
    "google-gemma-4-31B-it": ("gemma4", "<|channel>thought\n"),
    "ibm-granite-granite-3.3-2B-Instruct": ("granite", THINK),
    "ibm-granite-granite-4.0": ("hermes", None),
    "LFM2-8B-A1B": ("lfm2", None),
    "LFM2.5-8B-A1B": ("lfm2", THINK),
    "meetkai-functionary-medium-v3.1": ("functionary", None),
    "meta-llama-Llama-3.2-3B-Instruct": ("llama3_json", None),
    "microsoft-Phi-3.5-mini-instruct": ("llama3_json", None),
    "MiniMax-M2": ("minimax_m2", THINK),
    "Mistral-Small-3.2-24B-Instruct-2506": ("mistral", None),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", "[THINK]"),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral", None),
    "moonshotai-Kimi-K2": ("kimi_k2", None),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("hermes", None),
    "NVIDIA-Nemotron-Nano-v2": ("nemotron_json", THINK),
    "openai-gpt-oss-120b": ("openai", "<|channel|>analysis<|message|>"),
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", None),
    "Qwen-Qwen3-0.6B": ("hermes", THINK),
    "Qwen3-Coder": ("qwen3_coder", None),
    "Qwen3.5-4B": ("qwen3_coder", THINK),
    "upstage-Solar-Open-100B": ("solar_open", None),
}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def chosen(name: str) -> OutputFormat:
    source = (llama_cpp_models() / "templates" / f"{name}.jinja").read_text()
    template = ChatTemplate(source, special_tokens=SPECIAL)

    def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
        return template.render(messages, tools=tools, add_generation_prompt=False)

    return choose_format(source, render)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_format_of_a_family_is_found(name: str) -> None:
    found = chosen(name)
    tools, reasoning = EXPECTED[name]
    assert found.tools.name == tools
    assert (found.reasoning or (None,))[0] == reasoning


def test_a_template_without_tools_gets_objects_and_histories_as_text() -> None:
    found = chosen("google-gemma-2-2b-it")
    assert [found.template_has_tools, found.template_has_calls, found.template_has_results] == [False] * 3
    found = chosen("Qwen3-Coder")
    assert [found.template_has_tools, found.template_has_calls, found.template_has_results] == [True] * 3


def test_both_notations_of_mistral_are_written_as_the_template_writes_them() -> None:
    assert chosen("Mistral-Small-3.2-24B-Instruct-2506").tools.before == ""
    assert chosen("mistralai-Mistral-Nemo-Instruct-2407").tools.before == "["
