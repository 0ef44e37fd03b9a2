"""Tiny random models of every architecture, made by transformers, as the oracle of loading and computing.

Everything that a model learns is random, norms and biases too, so that one that is left out shows. Windows are shorter
than the prompts and no multiple of a block, heads are odd in number or size.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tiny_models import BOS_TOKEN_ID, EOS_TOKEN_ID, tiny_tokenizer_json

__all__ = ["TWINS", "VOCAB_SIZE", "Twin", "as_transformers_4", "greedy", "nest", "prompts", "write_twin"]

VOCAB_SIZE = 384
WINDOW = 13
_SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": BOS_TOKEN_ID,
    "eos_token_id": EOS_TOKEN_ID,
    "pad_token_id": None,
}
_ODD = {"num_attention_heads": 3, "num_key_value_heads": 1}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
_OLMO3_ROPE = {"full_attention": _YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 100.0, "factor": 1.0}
_PARTIAL_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.5, 2.0],
    "long_factor": [1.0, 4.0, 9.0],
}


def _types(pattern: str) -> dict[str, Any]:
    """Return the fields for layers of which ``s`` slide and ``f`` see everything."""
    names = {"s": "sliding_attention", "f": "full_attention"}
    return {
        "num_hidden_layers": len(pattern),
        "sliding_window": WINDOW,
        "layer_types": [names[letter] for letter in pattern],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """One architecture in one shape. ``gguf`` is its name in GGUF, ``None`` where llama.cpp has no converter for it."""

    name: str
    kind: str  # transformers' classes are called by it
    gguf: str | None
    options: dict[str, Any] = field(default_factory=dict)
    min_prompt: int = 1  # shorter prompts compute something else in transformers

    @property
    def config(self) -> dict[str, Any]:
        """What the config's class is called with."""
        return _SHAPE | self.options


def _twin(name: str, kind: str, gguf: str | None, *, min_prompt: int = 1, **options: Any) -> Twin:
    return Twin(name=name, kind=kind, gguf=gguf, options=options, min_prompt=min_prompt)


_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
_LOCAL_EXPERTS = {"num_local_experts": 5, "num_experts_per_tok": 2}
_GRANITE = {
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.0,
}
_SIGMOID = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "head_dim": 16,
}
_GPT2_SHAPE = {"n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 128}
TWINS = {
    twin.name: twin
    for twin in (
        _twin("llama", "Llama", "llama", head_dim=10),
        _twin("llama-biased", "Llama", "llama", attention_bias=True, mlp_bias=True, rope_parameters=_LLAMA3, **_ODD),
        _twin("mistral", "Mistral", "llama", head_dim=16, sliding_window=None),
        _twin("mistral-window", "Mistral", None, head_dim=16, sliding_window=WINDOW),
        _twin("ministral", "Ministral", None, head_dim=16, **_types("ssf")),
        _twin("qwen2", "Qwen2", "qwen2", tie_word_embeddings=True, **_ODD),
        _twin("qwen2-window", "Qwen2", None, use_sliding_window=True, max_window_layers=1, sliding_window=WINDOW),
        _twin("qwen3", "Qwen3", "qwen3", head_dim=16),
        _twin("qwen3-biased", "Qwen3", None, head_dim=10, attention_bias=True, tie_word_embeddings=True),
        _twin("gemma", "Gemma", "gemma", head_dim=16),
        _twin(
            "gemma2",
            "Gemma2",
            "gemma2",
            head_dim=16,
            query_pre_attn_scalar=16,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=3.0,
            **_types("sfs"),
        ),
        _twin("gemma3", "Gemma3Text", "gemma3", head_dim=16, query_pre_attn_scalar=16, **_types("sssssfs")),
        _twin("phi3", "Phi3", "phi3", sliding_window=None, original_max_position_embeddings=256),
        _twin("phi3-window", "Phi3", None, sliding_window=WINDOW, original_max_position_embeddings=256),
        _twin(
            "phi4-mini",
            "Phi3",
            "phi3",
            min_prompt=21,
            sliding_window=None,
            tie_word_embeddings=True,
            original_max_position_embeddings=20,
            rope_parameters=_PARTIAL_LONGROPE | {"original_max_position_embeddings": 20},
        ),
        _twin("olmo2", "Olmo2", "olmo2"),
        _twin("olmo3", "Olmo3", "olmo2", rope_parameters=_OLMO3_ROPE, **_types("sssfs")),
        _twin("smollm3", "SmolLM3", "smollm3", num_hidden_layers=5, no_rope_layers=[1, 1, 1, 0, 1]),
        _twin(
            "granite",
            "Granite",
            "granite",
            attention_multiplier=0.2,
            embedding_multiplier=3.0,
            residual_multiplier=0.4,
            logits_scaling=2.0,
        ),
        _twin(
            "granite4",
            "GraniteMoeHybrid",
            "granite",
            attention_multiplier=0.2,
            embedding_multiplier=3.0,
            residual_multiplier=0.4,
            logits_scaling=2.0,
            num_local_experts=0,
            num_experts_per_tok=0,
            shared_intermediate_size=80,
            mamba_n_heads=4,
            position_embedding_type="rope",
            layer_types=["attention"] * 3,
        ),
        _twin("starcoder2", "Starcoder2", "starcoder2", sliding_window=None, use_bias=True),
        _twin("starcoder2-window", "Starcoder2", None, sliding_window=WINDOW, use_bias=True),
        _twin("command-r", "Cohere", "command-r", logit_scale=0.25),
        _twin("command-r-plus", "Cohere", "command-r", logit_scale=0.25, use_qk_norm=True),
        _twin("command-r7b", "Cohere2", "cohere2", logit_scale=0.25, head_dim=8, **_types("sssfs")),
        _twin("glm4", "Glm4", "glm4", head_dim=16, partial_rotary_factor=0.5, attention_bias=True),
        _twin("glm", "Glm", "chatglm", head_dim=16, partial_rotary_factor=0.5, attention_bias=True),
        _twin("ernie4_5", "Ernie4_5", "ernie4_5", head_dim=16),
        _twin("hunyuan", "HunYuanDenseV1", "hunyuan-dense", head_dim=16),
        _twin("hunyuan-dynamic", "HunYuanDenseV1", "hunyuan-dense", head_dim=16, rope_parameters=_DYNAMIC),
        _twin("exaone4", "Exaone4", "exaone4", head_dim=16, sliding_window=None, layer_types=["full_attention"] * 3),
        _twin("exaone4-window", "Exaone4", None, head_dim=16, **_types("sssfs")),
        _twin("seed-oss", "SeedOss", "seed_oss", head_dim=16, attention_bias=True, attention_out_bias=False),
        _twin("helium", "Helium", None, head_dim=8),
        _twin("arcee", "Arcee", "arcee", head_dim=8),
        _twin("mixtral", "Mixtral", "llama", **_LOCAL_EXPERTS),
        _twin("qwen2-moe", "Qwen2Moe", "qwen2moe", shared_expert_intermediate_size=56, **_EXPERTS),
        _twin("qwen3-moe", "Qwen3Moe", "qwen3moe", head_dim=16, norm_topk_prob=True, **_EXPERTS),
        _twin(
            "qwen3-moe-wide",  # whole groups of quantised weights
            "Qwen3Moe",
            "qwen3moe",
            head_dim=16,
            norm_topk_prob=True,
            **(_EXPERTS | {"hidden_size": 64, "moe_intermediate_size": 96}),
        ),
        _twin("qwen3-moe-mixed", "Qwen3Moe", None, head_dim=16, mlp_only_layers=[1], **_EXPERTS),
        _twin("olmoe", "Olmoe", "olmoe", num_experts=5, num_experts_per_tok=2),
        _twin("flex-olmo", "FlexOlmo", None, num_experts=5, num_experts_per_tok=3),
        _twin("granite-moe", "GraniteMoe", "granitemoe", **_GRANITE, **_LOCAL_EXPERTS),
        _twin(
            "granite-moe-shared",
            "GraniteMoeShared",
            "granitemoe",
            shared_intermediate_size=56,
            **_GRANITE,
            **_LOCAL_EXPERTS,
        ),
        _twin(
            "granite4-moe",
            "GraniteMoeHybrid",
            "granitemoe",
            shared_intermediate_size=56,
            mamba_n_heads=4,
            position_embedding_type="rope",
            layer_types=["attention"] * 3,
            **_GRANITE,
            **_LOCAL_EXPERTS,
        ),
        _twin(
            "glm4-moe", "Glm4Moe", "glm4moe", n_group=1, topk_group=1, use_qk_norm=True, attention_bias=True, **_SIGMOID
        ),
        _twin("dots1", "Dots1", "dots1", n_group=3, topk_group=2, sliding_window=None, **_SIGMOID),
        _twin(
            "ernie4_5-moe",
            "Ernie4_5_Moe",
            "ernie4_5-moe",
            moe_num_experts=5,
            moe_k=2,
            moe_intermediate_size=40,
            moe_num_shared_experts=2,
            moe_layer_start_index=1,
        ),
        _twin("hunyuan-moe", "HunYuanMoEV1", "hunyuan-moe", num_experts=5, moe_topk=2, head_dim=16),
        _twin("minimax-m2", "MiniMaxM2", "minimax-m2", head_dim=16, **_LOCAL_EXPERTS),
        _twin("gpt-oss", "GptOss", "gpt-oss", head_dim=16, rope_parameters=_YARN, **_types("sfs"), **_LOCAL_EXPERTS),
        _twin("gpt2", "GPT2", "gpt2", **_GPT2_SHAPE),
        _twin("pythia", "GPTNeoX", "gptneox"),
        _twin("neox-sequential", "GPTNeoX", "gptneox", use_parallel_residual=False),
    )
}


def write_twin(twin: Twin, directory: Path, *, seed: int = 0, also: Callable[[Any], Any] | None = None) -> Any:
    """Write the twin as a Hugging Face directory; return transformers' logits, float32[tokens, vocab], by prompt.

    With ``also``, what that returns of the model instead.
    """
    import torch
    import transformers

    config = getattr(transformers, f"{twin.kind}Config")(**twin.config)
    config._attn_implementation = "eager"
    stem = twin.kind.removesuffix("Text")
    model_class = getattr(transformers, f"{stem}ForCausalLM", None) or getattr(transformers, f"{stem}LMHeadModel")
    model = model_class(config).eval()
    _randomise(model, seed, is_offset=twin.kind.startswith("Gemma"))
    model.generation_config.pad_token_id = None
    model.save_pretrained(directory)
    (directory / "tokenizer.json").write_text(tiny_tokenizer_json(VOCAB_SIZE), encoding="utf-8")
    if also is not None:
        return also(model)
    with torch.no_grad():
        return [model(torch.tensor([prompt])).logits[0].float().numpy() for prompt in prompts(twin)]


def greedy(model: Any, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """Return the tokens with which transformers continues prompts of one length, greedily and to no end."""
    import torch

    ids = torch.tensor(prompts)
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        whole = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=num_tokens,
            pad_token_id=0,
        )
    continued: list[list[int]] = whole[:, ids.shape[1] :].tolist()
    return continued


def _randomise(model: Any, seed: int, *, is_offset: bool) -> None:
    """Make every parameter random; ``is_offset`` where a norm multiplies by one more than its weight."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        biases = ((name, buffer) for name, buffer in model.named_buffers() if name.endswith("correction_bias"))
        for name, parameter in (*model.named_parameters(), *biases):
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name or "ln_" in name:
                centre = 0 if is_offset or name.endswith("bias") else 1
                parameter.copy_(centre + 0.3 * noise)
            elif parameter.ndim == 1:
                parameter.copy_(0.2 * noise)
            elif "embed" in name or "wte" in name or "wpe" in name:
                parameter.copy_(0.3 * noise)
            else:
                parameter.copy_(noise / min(parameter.shape) ** 0.5)


@cache
def _prompts(min_prompt: int) -> list[list[int]]:
    rng = np.random.default_rng(7)
    lengths = (max(3, min_prompt), max(WINDOW + 4, min_prompt), 3 * WINDOW + 8)
    return [rng.integers(3, VOCAB_SIZE, length).tolist() for length in lengths]


def prompts(twin: Twin) -> list[list[int]]:
    """Return token ids of a short prompt, one beyond the window, and one of more than three windows."""
    return _prompts(twin.min_prompt)


def as_transformers_4(directory: Path) -> None:
    """Rewrite config.json as transformers 4 wrote it, which most files on the hub still are."""
    path = directory / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["torch_dtype"] = config.pop("dtype", "float32")
    rope = config.pop("rope_parameters", None)
    if rope and "full_attention" in rope:
        if config["model_type"].startswith("gemma3"):
            config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    if rope:
        config["rope_theta"] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        config["rope_scaling"] = None if rope["rope_type"] == "default" else {**rope, "type": rope["rope_type"]}
    path.write_text(json.dumps(config), encoding="utf-8")


def nest(directory: Path, *, architecture: str, model_type: str, drop: tuple[str, ...] = ()) -> None:
    """Make the text model of ``directory`` the part of a multimodal checkpoint: ``text_config`` and a prefix.

    ``drop`` are fields that stand at the class's default and that such configs leave out.
    """
    import safetensors.numpy

    path = directory / "config.json"
    text = json.loads(path.read_text(encoding="utf-8"))
    for name in drop:
        text.pop(name)
    outer = {"architectures": [architecture], "model_type": model_type, "text_config": text, "vision_config": {}}
    outer |= {"eos_token_id": text.pop("eos_token_id"), "tie_word_embeddings": text.pop("tie_word_embeddings", True)}
    path.write_text(json.dumps(outer), encoding="utf-8")
    weights = directory / "model.safetensors"
    tensors = {f"language_model.{name}": value for name, value in safetensors.numpy.load_file(weights).items()}
    tensors["vision_tower.vision_model.post_layernorm.weight"] = np.ones(8, np.float32)
    tensors["multi_modal_projector.mm_soft_emb_norm.weight"] = np.ones(8, np.float32)
    safetensors.numpy.save_file(tensors, weights)
