"""Tokenizers small enough to be made in a test, of every kind that language models use."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = (
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind: it's 12 o'clock.",
    "Straße, Größe, naïve café; 你好世界 今天天气如何 客单价; こんにちは; مرحبا بالعالم; Привет, мир!",
    "👩‍👩‍👧 🌶️ 🇩🇪 def add(a, b):\n    return a + b\n\n\t# 3.14159",
)

BOS, EOS = "<s>", "</s>"
SYMBOL = "▁"


def byte_level(*, adds_bos: bool = True) -> Tokenizer:
    """GPT-2's kind: every text can be spelled, every token is a string of bytes."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(token, normalized=False) for token in (BOS, EOS, "<|im_start|>")],
    )
    backend.train_from_iterator(CORPUS, trainer)
    # Added tokens are spelled as themselves, also in letters of the byte alphabet, with spaces, or beyond it.
    backend.add_tokens([AddedToken(token, normalized=False) for token in ("<think>", "two  spaces", "é", "好吧")])
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, backend.token_to_id(BOS))]
        )
    return backend


def sentencepiece_vocabulary() -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and types of a SentencePiece BPE vocabulary as a GGUF file lists them."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    words = " ".join(CORPUS).replace(" ", SYMBOL)
    merged = [
        "th",
        "he",
        "the",
        "▁t",
        "▁the",
        "▁▁",
        "▁▁▁",
        "er",
        "ov",
        "over",
        "▁o",
        "do",
        "dog",
        "▁d",
        "▁dog",
        "ß",
        "你好",
    ]
    pieces = list(dict.fromkeys([*merged, *(c for c in sorted(set(words)) if c not in "客🌶ع")]))
    tokens = ["<unk>", BOS, EOS, *byte_tokens, *pieces]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(pieces))]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    return tokens, scores, types


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """A GGUF file's tokenizer keys for the vocabulary above."""
    tokens, scores, types = sentencepiece_vocabulary()
    fields = {
        "model": "llama",
        "tokens": tokens,
        "scores": scores,
        "token_type": types,
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items()}


def sentencepiece(*, leading_spaces: int = 1) -> Tokenizer:
    """Llama 2's kind: "▁" for spaces, byte tokens, a space before the text."""
    backend = _bare_sentencepiece()
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SYMBOL), normalizers.Replace(" ", SYMBOL)])
    steps: list[decoders.Decoder] = [decoders.Replace(SYMBOL, " "), decoders.ByteFallback(), decoders.Fuse()]
    if leading_spaces:
        steps.append(decoders.Strip(" ", leading_spaces, 0))
    backend.decoder = decoders.Sequence(steps)
    return backend


def metaspace() -> Tokenizer:
    """The kind whose "▁" are a matter of pre-tokenization; it has no byte tokens."""
    backend = _bare_sentencepiece()
    backend.pre_tokenizer = pre_tokenizers.Metaspace(SYMBOL, prepend_scheme="always")
    backend.decoder = decoders.Metaspace(SYMBOL, prepend_scheme="always")
    return backend


def _bare_sentencepiece() -> Tokenizer:
    tokens, _, types = sentencepiece_vocabulary()
    backend = Tokenizer(
        models.BPE(
            {token: at for at, token in enumerate(tokens)},
            [("t", "h"), ("▁", "t")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    backend.add_special_tokens([token for token, kind in zip(tokens, types, strict=True) if kind in (2, 3)])
    backend.add_tokens(["<tool>", "▁pad▁"])
    return backend
