"""The word rules written down for GGUF files against those that transformers knows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from hotseat.text.gguf_vocabulary import GgufVocabulary
from text.mixed_text import PARTS, mixed_texts

pytestmark = pytest.mark.oracle

any_text = st.one_of(st.text(), st.text(alphabet=sorted(set("".join(PARTS)))), st.sampled_from(mixed_texts()))


def words(pre: str) -> pre_tokenizers.PreTokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    fields = {"model": "gpt2", "pre": pre, "tokens": [*alphabet, "ab"], "merges": ["a b"]}
    backend = GgufVocabulary({f"tokenizer.ggml.{key}": value for key, value in fields.items()}).build()
    return backend.pre_tokenizer


@pytest.mark.parametrize("pre", ["llama-bpe", "llama-v3", "llama3", "qwen2", "tekken"])
@given(text=any_text)
@settings(max_examples=200, deadline=None)
def test_words_are_those_of_transformers(pre: str, text: str) -> None:
    mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    oracle = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(mapping.GGUF_PRE_TOKENIZER_SPLITS[pre]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    assert words(pre).pre_tokenize_str(text) == oracle.pre_tokenize_str(text)
