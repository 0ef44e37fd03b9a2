from __future__ import annotations

import pytest

from data_files import llama_cpp_models
from hotseat.models.gguf import read_gguf
from hotseat.text import ChatTemplate, Tokenizer, turn_end_ids
from text.test_gguf_vocabulary import byte_level_metadata
from text.tiny_tokenizers import BOS, EOS

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
GLM = "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}<s>[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} </s>{% endif %}{% endfor %}"
)
HARMONY = "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
IN_BLOCKS = (
    "{% for m in messages %}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}<close>{% endif %}"
    "<text>{{ m.content }}<close>{% if m.tool_calls %}<call>{{ m.tool_calls[0].function.name }}<close>{% endif %}"
    "{% endfor %}"
)


def tokenizer(*control: str, kind: int = 3) -> Tokenizer:
    metadata = byte_level_metadata(eos_token_id=1, bos_token_id=0)
    metadata["tokenizer.ggml.tokens"] += control
    metadata["tokenizer.ggml.token_type"] += [kind] * len(control)
    return Tokenizer.from_gguf(metadata)


@pytest.mark.parametrize(
    ("control", "template", "ends"),
    [
        ((), None, [EOS]),
        (("<|im_end|>", "<|endoftext|>"), None, [EOS, "<|im_end|>", "<|endoftext|>"]),
        (("<turn_over>",), "{% for m in messages %}{{ m.content }} <turn_over>{% endfor %}", [EOS, "<turn_over>"]),
        (("<|user|>", "<|assistant|>", "<|observation|>"), GLM, [EOS, "<|user|>", "<|observation|>"]),
        ((), LLAMA2, [EOS]),
        ((), "{% for m in messages %}<s>{{ m.content }}{% endfor %}", [EOS]),  # the next BOS is no end
        (("<|end|>",), HARMONY, [EOS, "<|end|>"]),
        (("<|end|>", "<|return|>", "<|call|>"), HARMONY, [EOS, "<|return|>", "<|call|>"]),
        (("<|im_end|>",), "{{ raise_exception('no') }}", [EOS, "<|im_end|>"]),
        (("<close>",), IN_BLOCKS, [EOS]),  # also closes a thought and a text before a call
    ],
)
def test_turn_ends_where_vocabulary_and_template_say(
    control: tuple[str, ...], template: str | None, ends: list[str]
) -> None:
    made = tokenizer(*control)
    ids = turn_end_ids(made, ChatTemplate(template, BOS, EOS))
    assert {made.token_text(token_id) for token_id in ids} == set(ends)


def test_end_of_a_turn_is_a_control_token_though_the_file_calls_it_text() -> None:
    made = tokenizer("<|im_end|>", kind=1)
    (token_id,) = made.encode("<|im_end|>", add_special_tokens=False)
    assert made.is_special(token_id)
    assert token_id in turn_end_ids(made, ChatTemplate(CHATML))


@pytest.mark.model
@pytest.mark.parametrize(
    ("vocabulary", "template", "ends"),
    [
        ("llama-bpe", "meta-llama-Llama-3.1-8B-Instruct", {"<|end_of_text|>", "<|eot_id|>"}),
        ("qwen2", "Qwen-Qwen3-0.6B", {"<|endoftext|>", "<|im_end|>"}),
        ("phi-3", "microsoft-Phi-3.5-mini-instruct", {"<|endoftext|>", "<|end|>"}),
        ("command-r", "CohereForAI-c4ai-command-r7b-12-2024-tool_use", {"<|END_OF_TURN_TOKEN|>"}),
        ("gemma-4", "google-gemma-4-31B-it", {"<eos>", "<turn|>"}),
    ],
)
def test_real_models_end_their_turns(vocabulary: str, template: str, ends: set[str]) -> None:
    made = Tokenizer.from_gguf(read_gguf(llama_cpp_models() / f"ggml-vocab-{vocabulary}.gguf").metadata)
    source = (llama_cpp_models() / "templates" / f"{template}.jinja").read_text()
    ids = turn_end_ids(made, ChatTemplate(source, special_tokens=made.special_tokens))
    assert {made.token_text(token_id) for token_id in ids} >= ends
