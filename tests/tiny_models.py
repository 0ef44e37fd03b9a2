"""Tiny random Llama models, written on the spot for the tests of every room.

One ``TinyLlama`` describes the model; the same description gives the same weights and the same tokenizer as a
Hugging Face directory (``write_tiny_hf_model``) and as a GGUF file (``write_tiny_gguf_model``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

BOS_TOKEN = "<|im_start|>"
EOS_TOKEN = "<|im_end|>"
PAD_TOKEN = "<|endoftext|>"
SPECIAL_TOKENS = (PAD_TOKEN, BOS_TOKEN, EOS_TOKEN)  # ids 0, 1, 2
BOS_TOKEN_ID = 1
EOS_TOKEN_ID = 2

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_TRAINING_TEXT = (
    "A hot seat is never cold: the moment one guest stands up, the next one sits down. The kitchen keeps cooking, "
    "the waiter keeps walking, and nobody waits for the slowest eater of the table. Once upon a time there was a "
    "little engine that could; it could read, it could write, and it could count: one, two, three, four, five.",
    "Der Zug nach Köln fährt um acht Uhr ab. Où est la bibliothèque? Déjà vu, naïve café, señor, smörgåsbord.",
    "def schedule(now): return [request for request in waiting if request.arrived_at <= now]\n  # 12345 + 678 = 13023",
    "Привет, мир! 你好，世界。 今日はいい天気ですね。 🙂🎉",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyLlama:
    """Describe a tiny model; equal descriptions give equal weights."""

    seed: int = 0
    num_layers: int = 2
    hidden_size: int = 64
    intermediate_size: int = 128
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int | None = None  # hidden_size / num_heads when None
    vocab_size: int = 384  # at least 259: bytes and special tokens
    max_position_embeddings: int = 512
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    tie_word_embeddings: bool = True
    eos_token_ids: tuple[int, ...] = field(default=(EOS_TOKEN_ID,))

    @property
    def true_head_dim(self) -> int:
        """Return the size of one head."""
        return self.head_dim if self.head_dim is not None else self.hidden_size // self.num_heads


def tiny_weights(model: TinyLlama) -> dict[str, np.ndarray]:
    """Return random float32 weights under their Hugging Face names, q and k rows in rotate-half order."""
    rng = np.random.default_rng(model.seed)
    q_size = model.num_heads * model.true_head_dim
    kv_size = model.num_kv_heads * model.true_head_dim

    def matrix(out_features: int, in_features: int) -> np.ndarray:
        return (rng.standard_normal((out_features, in_features)) / in_features**0.5).astype(np.float32)

    def norm() -> np.ndarray:
        return (1 + 0.1 * rng.standard_normal(model.hidden_size)).astype(np.float32)

    embedding = 0.25 * rng.standard_normal((model.vocab_size, model.hidden_size))  # logits stay lively when tied
    weights = {"model.embed_tokens.weight": embedding.astype(np.float32)}
    for i in range(model.num_layers):
        prefix = f"model.layers.{i}."
        weights[prefix + "input_layernorm.weight"] = norm()
        weights[prefix + "self_attn.q_proj.weight"] = matrix(q_size, model.hidden_size)
        weights[prefix + "self_attn.k_proj.weight"] = matrix(kv_size, model.hidden_size)
        weights[prefix + "self_attn.v_proj.weight"] = matrix(kv_size, model.hidden_size)
        weights[prefix + "self_attn.o_proj.weight"] = matrix(model.hidden_size, q_size)
        weights[prefix + "post_attention_layernorm.weight"] = norm()
        weights[prefix + "mlp.gate_proj.weight"] = matrix(model.intermediate_size, model.hidden_size)
        weights[prefix + "mlp.up_proj.weight"] = matrix(model.intermediate_size, model.hidden_size)
        weights[prefix + "mlp.down_proj.weight"] = matrix(model.hidden_size, model.intermediate_size)
    weights["model.norm.weight"] = norm()
    if not model.tie_word_embeddings:
        weights["lm_head.weight"] = matrix(model.vocab_size, model.hidden_size)
    return weights


@cache
def tiny_tokenizer_json(vocab_size: int = 384) -> str:
    """Return a tokenizer.json: byte-level BPE (GPT-2's splitting) trained on a few sentences, padded to the size."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TRAINING_TEXT, trainer)
    assert tokenizer.get_vocab_size() <= vocab_size, "the vocabulary must hold every byte"
    return tokenizer.to_str()


def tiny_config(model: TinyLlama, *, dtype: str = "float32") -> dict[str, Any]:
    """Return the model's config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.true_head_dim,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_position_embeddings,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "rope_scaling": model.rope_scaling,
        "tie_word_embeddings": model.tie_word_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": BOS_TOKEN_ID,
        "eos_token_id": EOS_TOKEN_ID,
        "torch_dtype": dtype,
    }


def write_tiny_hf_model(directory: Path, *, kind: str = "F32", shards: int = 1, **description: Any) -> Path:
    """Write a Hugging Face directory and return it; ``description`` are fields of ``TinyLlama``.

    ``kind`` (F32, F16, BF16) is how matrices and norms are stored; ``shards`` > 1 writes a sharded index.
    """
    model = TinyLlama(**description)
    directory.mkdir(parents=True, exist_ok=True)
    dtype = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[kind]
    eos = list(model.eos_token_ids)
    _write_json(directory / "config.json", tiny_config(model, dtype=dtype))
    _write_json(
        directory / "generation_config.json",
        {"bos_token_id": BOS_TOKEN_ID, "eos_token_id": eos[0] if len(eos) == 1 else eos},
    )
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS_TOKEN,
            "eos_token": EOS_TOKEN,
            "pad_token": PAD_TOKEN,
            "chat_template": CHAT_TEMPLATE,
            "model_max_length": model.max_position_embeddings,
            "clean_up_tokenization_spaces": False,
        },
    )
    (directory / "tokenizer.json").write_text(tiny_tokenizer_json(model.vocab_size), encoding="utf-8")
    _write_weights(directory, tiny_weights(model), kind, shards)
    return directory


def write_safetensors(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    """Write name → (dtype as safetensors names it, shape, raw little-endian bytes)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"".join(data for _, _, data in tensors.values()))


def write_tiny_gguf_model(path: Path, *, kind: str = "F32", tensors_per_part: int = 0, **description: Any) -> Path:
    """Write a GGUF file as llama.cpp's converter would and return its path; needs gguf-py.

    ``kind`` is how matrices are stored: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0 or Q5_1; norms stay F32. With
    ``tensors_per_part`` the model is split into several files, whose first is returned.
    """
    import gguf

    model = TinyLlama(**description)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=tensors_per_part)
    writer.add_name("tiny")
    writer.add_vocab_size(model.vocab_size)
    writer.add_context_length(model.max_position_embeddings)
    writer.add_embedding_length(model.hidden_size)
    writer.add_block_count(model.num_layers)
    writer.add_feed_forward_length(model.intermediate_size)
    writer.add_head_count(model.num_heads)
    writer.add_head_count_kv(model.num_kv_heads)
    writer.add_key_length(model.true_head_dim)
    writer.add_value_length(model.true_head_dim)
    writer.add_rope_dimension_count(model.true_head_dim)
    writer.add_rope_freq_base(model.rope_theta)
    writer.add_layer_norm_rms_eps(model.norm_eps)
    assert model.rope_scaling is None, "write the scaling's metadata in the test that needs it"
    _add_gguf_tokenizer(writer, model)
    for name, values in tiny_weights(model).items():
        _add_gguf_tensor(writer, name, values, kind, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return next(iter(sorted(path.parent.glob(f"{path.stem}-00001-of-*.gguf")))) if tensors_per_part else path


_GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(hf_name: str) -> str:
    """Return the GGUF name of a tensor with this Hugging Face name."""
    if hf_name in _GGUF_NAMES:
        return _GGUF_NAMES[hf_name]
    layer, part = hf_name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{layer}.{_GGUF_NAMES[part]}.weight"


def interleave_rope_rows(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Order q or k rows for interleaved rope, as llama.cpp's converter does."""
    rows, columns = values.shape
    halves = values.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


def _add_gguf_tensor(writer: Any, name: str, values: np.ndarray, kind: str, model: TinyLlama) -> None:
    import gguf

    if name.endswith("q_proj.weight"):
        values = interleave_rope_rows(values, model.num_heads)
    elif name.endswith("k_proj.weight"):
        values = interleave_rope_rows(values, model.num_kv_heads)
    if values.ndim == 1 or kind == "F32":
        writer.add_tensor(gguf_name(name), values)
        return
    if kind == "F16":
        writer.add_tensor(gguf_name(name), values.astype(np.float16))
        return
    quantization = gguf.GGMLQuantizationType[kind]
    writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, quantization), raw_dtype=quantization)


def _add_gguf_tokenizer(writer: Any, model: TinyLlama) -> None:
    import gguf

    bpe = json.loads(tiny_tokenizer_json(model.vocab_size))["model"]
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].__getitem__)
    tokens += [f"[PAD{i}]" for i in range(len(tokens), model.vocab_size)]
    control = dict.fromkeys(SPECIAL_TOKENS, gguf.TokenType.CONTROL)
    unused = dict.fromkeys(tokens[len(bpe["vocab"]) :], gguf.TokenType.UNUSED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([(control | unused).get(token, gguf.TokenType.NORMAL) for token in tokens])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]])
    writer.add_bos_token_id(BOS_TOKEN_ID)
    writer.add_eos_token_id(EOS_TOKEN_ID)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _write_weights(directory: Path, weights: dict[str, np.ndarray], kind: str, shards: int) -> None:
    tensors = {name: (kind, values.shape, encode(values, kind)) for name, values in weights.items()}
    if shards == 1:
        write_safetensors(directory / "model.safetensors", tensors)
        return
    names = list(tensors)
    weight_map = {}
    for shard in range(shards):
        file_name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        mine = names[shard::shards]
        write_safetensors(directory / file_name, {name: tensors[name] for name in mine})
        weight_map |= dict.fromkeys(mine, file_name)
    _write_json(directory / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def encode(values: np.ndarray, kind: str) -> bytes:
    """Return float32 values as F32, F16 or BF16 (rounded to nearest even) bytes."""
    if kind == "F32":
        return values.astype("<f4").tobytes()
    if kind == "F16":
        return values.astype("<f2").tobytes()
    bits = values.astype("<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")
