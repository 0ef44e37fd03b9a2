"""Rendered chats against transformers' ``apply_chat_template``."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from hotseat.errors import InvalidRequestError
from hotseat.text import ChatTemplate
from text.chat_templates import CALL, CHATS, TEMPLATES, TOOLS
from text.tiny_tokenizers import BOS, EOS, byte_level

pytestmark = pytest.mark.oracle

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "opening": {"add_generation_prompt": True},
    "continued": {"continue_final_message": True},
    "tools": {"tools": TOOLS, "add_generation_prompt": True},
    "further names": {"enable_thinking": False, "date_string": "1 Jan", "add_generation_prompt": True},
    "documents": {"documents": [{"title": "<T>", "text": "é\n"}]},
}


@pytest.fixture(scope="module")
def oracle() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=byte_level(), bos_token=BOS, eos_token=EOS)


def renders_alike(oracle: Any, source: str, chat: list[dict[str, Any]], options: dict[str, Any]) -> bool:
    """Compare the two renderings, or that both refuse; return whether there was a rendering."""
    ours = ChatTemplate(source, bos_token=BOS, eos_token=EOS)
    try:
        expected = oracle.apply_chat_template(chat, chat_template=source, tokenize=False, **options)
    except Exception:
        with pytest.raises(InvalidRequestError):
            ours.render(chat, **{"add_generation_prompt": False, **options})
        return False
    assert ours.render(chat, **{"add_generation_prompt": False, **options}) == expected
    return True


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("option", OPTIONS)
def test_chats_are_rendered_as_transformers_renders_them(oracle: Any, template: str, option: str) -> None:
    rendered = [renders_alike(oracle, TEMPLATES[template], chat, OPTIONS[option]) for chat in CHATS.values()]
    assert any(rendered)


def test_arguments_as_openai_sends_them_read_like_the_objects_that_transformers_wants(oracle: Any) -> None:
    chat = CHATS["tool call"]
    function = CALL["function"]
    text = {**function, "arguments": json.dumps(function["arguments"])}
    sent = [chat[0], {**chat[1], "tool_calls": [{**CALL, "function": text}]}, chat[2]]
    for source in (TEMPLATES["qwen"], TEMPLATES["llama3"]):
        expected = oracle.apply_chat_template(chat, chat_template=source, tokenize=False, tools=TOOLS)
        assert ChatTemplate(source, BOS, EOS).render(sent, tools=TOOLS, add_generation_prompt=False) == expected


@pytest.mark.model
def test_default_models_own_template_is_rendered_as_transformers_renders_it(
    oracle: Any, smollm_metadata: dict[str, Any]
) -> None:
    source = smollm_metadata["tokenizer.chat_template"]
    pairs = itertools.product((chat for name, chat in CHATS.items() if name != "tool call"), OPTIONS.values())
    for chat, options in pairs:
        assert renders_alike(oracle, source, chat, options)
