"""The architectures: for each family its names of tensors and its differences from Llama, as data.

One description serves both formats: ``family_options`` asks by the names of Hugging Face's config.json, and those of
GGUF are translated. Whether a bias exists is read from the tensors themselves.
"""

from __future__ import annotations

from hotseat.models import family_options as options
from hotseat.models.family import Family
from hotseat.models.moe_families import MOE_FAMILIES, POST_NORMS

__all__ = ["FAMILIES", "family_of"]

_SANDWICH = POST_NORMS | {
    "attention_norm": "model.layers.{i}.input_layernorm.weight",
    "mlp_norm": "model.layers.{i}.pre_feedforward_layernorm.weight",
}
_GGUF_POST = {
    "attention_post_norm": "blk.{i}.post_attention_norm.weight",
    "mlp_post_norm": "blk.{i}.post_ffw_norm.weight",
}
_GATE_UP: dict[str, tuple[str, ...]] = {"model.layers.{i}.mlp.gate_up_proj": ("gate", "up")}
_GGUF_GATE_UP: dict[str, tuple[str, ...]] = {"blk.{i}.ffn_up": ("gate", "up")}
_C_FC: dict[str, str | None] = {
    "up": "model.layers.{i}.mlp.c_fc.weight",
    "down": "model.layers.{i}.mlp.c_proj.weight",
}
_NEOX: dict[str, str | None] = {
    "token_embedding": "gpt_neox.embed_in.weight",
    "output_norm": "gpt_neox.final_layer_norm.weight",
    "output": "embed_out.weight",
    "attention_norm": "gpt_neox.layers.{i}.input_layernorm.weight",
    "mlp_norm": "gpt_neox.layers.{i}.post_attention_layernorm.weight",
    "attention_output": "gpt_neox.layers.{i}.attention.dense.weight",
    "up": "gpt_neox.layers.{i}.mlp.dense_h_to_4h.weight",
    "down": "gpt_neox.layers.{i}.mlp.dense_4h_to_h.weight",
}
_GPT2: dict[str, str | None] = {
    "token_embedding": "transformer.wte.weight",
    "position_embedding": "transformer.wpe.weight",
    "output_norm": "transformer.ln_f.weight",
    "attention_norm": "transformer.h.{i}.ln_1.weight",
    "attention_output": "transformer.h.{i}.attn.c_proj.weight",
    "mlp_norm": "transformer.h.{i}.ln_2.weight",
    "up": "transformer.h.{i}.mlp.c_fc.weight",
    "down": "transformer.h.{i}.mlp.c_proj.weight",
}

FAMILIES = (
    Family(
        hf={"LlamaForCausalLM": "llama"},
        gguf="llama",
        gguf_rope="interleaved",
        context=2048,
    ),
    Family(
        hf={
            "MistralForCausalLM": "mistral",
            "MinistralForCausalLM": "ministral",
            "Mistral3ForConditionalGeneration": "mistral3",
        },
        kv_heads=8,
        context=131072,
        options=options.mistral,
    ),
    Family(hf={"Qwen2ForCausalLM": "qwen2"}, gguf="qwen2", kv_heads=32, context=32768, options=options.qwen2),
    Family(
        hf={"Qwen3ForCausalLM": "qwen3"}, gguf="qwen3", head_dim=128, kv_heads=32, context=32768, options=options.qwen3
    ),
    Family(
        hf={"GemmaForCausalLM": "gemma"},
        gguf="gemma",
        hf_adds_one=True,
        head_dim=256,
        kv_heads=16,
        context=8192,
        ties=True,
        options=options.gemma,
    ),
    Family(
        hf={"Gemma2ForCausalLM": "gemma2"},
        gguf="gemma2",
        hf_names=_SANDWICH,
        gguf_names=_GGUF_POST,
        hf_adds_one=True,
        head_dim=256,
        kv_heads=4,
        context=8192,
        ties=True,
        options=options.gemma2,
    ),
    Family(
        hf={"Gemma3ForCausalLM": "gemma3_text", "Gemma3ForConditionalGeneration": "gemma3"},
        gguf="gemma3",
        hf_names=_SANDWICH,
        gguf_names=_GGUF_POST,
        hf_adds_one=True,
        head_dim=256,
        kv_heads=4,
        context=131072,
        theta=1e6,
        ties=True,
        options=options.gemma3,
    ),
    Family(
        hf={"Phi3ForCausalLM": "phi3"},
        gguf="phi3",
        hf_fused={"model.layers.{i}.self_attn.qkv_proj": ("q", "k", "v")} | _GATE_UP,
        gguf_fused=_GGUF_GATE_UP,
        context=4096,
        eps=1e-5,
        options=options.phi3,
    ),
    Family(
        hf={"Olmo2ForCausalLM": "olmo2", "Olmo3ForCausalLM": "olmo3"},
        gguf="olmo2",
        hf_names=POST_NORMS,
        gguf_names=_GGUF_POST | {"attention_norm": None, "mlp_norm": None},
        context=2048,
        eps=1e-5,
        theta=5e5,
        options=options.olmo2,
    ),
    Family(
        hf={"SmolLM3ForCausalLM": "smollm3"},
        gguf="smollm3",
        gguf_rope="interleaved",
        kv_heads=4,
        context=32768,
        theta=2e6,
        ties=True,
        options=options.smollm3,
    ),
    Family(
        hf={"GraniteForCausalLM": "granite"},
        gguf="granite",
        gguf_rope="interleaved",
        context=2048,
        options=options.granite,
    ),
    Family(
        hf={"GraniteMoeHybridForCausalLM": "granitemoehybrid"},  # without recurrent layers, which are refused
        hf_names={"down": "model.layers.{i}.shared_mlp.output_linear.weight"},
        hf_fused={"model.layers.{i}.shared_mlp.input_linear": ("gate", "up")},
        context=2048,
        options=options.granite4,
    ),
    Family(
        hf={"CohereForCausalLM": "cohere"},
        gguf="command-r",
        hf_names={"mlp_norm": None},
        gguf_names={"mlp_norm": None},
        hf_rope="interleaved",
        gguf_rope="interleaved",
        context=8192,
        eps=1e-5,
        theta=5e5,
        ties=True,
        options=options.cohere,
    ),
    Family(
        hf={"Cohere2ForCausalLM": "cohere2"},
        gguf="cohere2",
        hf_names={"mlp_norm": None},
        gguf_names={"mlp_norm": None},
        hf_rope="interleaved",
        gguf_rope="interleaved",
        context=8192,
        eps=1e-5,
        theta=5e5,
        ties=True,
        options=options.cohere2,
    ),
    Family(
        hf={"GlmForCausalLM": "glm"},
        gguf="chatglm",
        hf_fused=_GATE_UP,
        gguf_fused=_GGUF_GATE_UP,
        hf_rope="interleaved",
        gguf_rope="interleaved",
        head_dim=128,
        kv_heads=2,
        context=131072,
        eps=1.5625e-7,
        partial=0.5,
    ),
    Family(
        hf={"Glm4ForCausalLM": "glm4"},
        gguf="glm4",
        hf_names={
            "attention_post_norm": "model.layers.{i}.post_self_attn_layernorm.weight",
            "mlp_post_norm": "model.layers.{i}.post_mlp_layernorm.weight",
        },
        gguf_names=_GGUF_POST,
        hf_fused=_GATE_UP,
        gguf_fused=_GGUF_GATE_UP,
        hf_rope="interleaved",
        gguf_rope="interleaved",
        head_dim=128,
        kv_heads=2,
        context=131072,
        eps=1.5625e-7,
        partial=0.5,
        options=lambda fields, num_layers, head_dim: {"norm_placement": "sandwich"},
    ),
    Family(
        hf={"Starcoder2ForCausalLM": "starcoder2"},
        gguf="starcoder2",
        hf_names=_C_FC,
        kv_heads=2,
        context=4096,
        eps=1e-5,
        ties=True,
        options=options.starcoder2,
    ),
    Family(
        hf={"Exaone4ForCausalLM": "exaone4"},
        gguf="exaone4",
        hf_names=POST_NORMS,
        gguf_names=_GGUF_POST | {"attention_norm": None, "mlp_norm": None},
        kv_heads=32,
        context=2048,
        eps=1e-5,
        options=options.exaone4,
    ),
    Family(
        hf={"SeedOssForCausalLM": "seed_oss"},
        gguf="seed_oss",
        gguf_names={"mlp_norm": "blk.{i}.post_attention_norm.weight"},
        head_dim=128,
        kv_heads=8,
        context=524288,
    ),
    Family(
        hf={"Ernie4_5ForCausalLM": "ernie4_5"},
        gguf="ernie4_5",
        hf_rope="interleaved",
        gguf_rope="interleaved",
        head_dim=128,
        kv_heads=2,
        context=131072,
        eps=1e-5,
        theta=5e5,
        ties=True,
    ),
    Family(
        hf={"HunYuanDenseV1ForCausalLM": "hunyuan_v1_dense"},
        gguf="hunyuan-dense",
        hf_names={
            "q_norm": "model.layers.{i}.self_attn.query_layernorm.weight",
            "k_norm": "model.layers.{i}.self_attn.key_layernorm.weight",
        },
        context=2048,
        eps=1e-5,
        options=options.hunyuan,
    ),
    Family(
        hf={"ArceeForCausalLM": "arcee"},
        gguf="arcee",
        gguf_rope="interleaved",
        context=4096,
        eps=1e-5,
        options=options.arcee,
    ),
    Family(hf={"HeliumForCausalLM": "helium"}, hf_rope="interleaved", head_dim=128, context=4096, eps=1e-8, theta=1e5),
    Family(
        hf={"GPTNeoXForCausalLM": "gpt_neox"},
        gguf="gptneox",
        hf_names=_NEOX,
        hf_fused={"gpt_neox.layers.{i}.attention.query_key_value": ("q", "k", "v")},
        gguf_fused={"blk.{i}.attn_qkv": ("q", "k", "v")},
        context=2048,
        eps=1e-5,
        partial=0.25,
        options=options.neox,
    ),
    Family(
        hf={"GPT2LMHeadModel": "gpt2"},
        gguf="gpt2",
        hf_names=_GPT2,
        hf_fused={"transformer.h.{i}.attn.c_attn": ("q", "k", "v")},
        hf_transposed=True,
        context=1024,
        eps=1e-5,
        ties=True,
        options=options.gpt2,
    ),
    *MOE_FAMILIES,
)


def family_of(name: str, *, is_gguf: bool, has_experts: bool) -> Family | None:
    """Return the family of a Hugging Face class or model_type, or of a GGUF architecture.

    Some names stand for models with and without experts; where only one kind is known, it is returned for both.
    """
    found = [family for family in FAMILIES if name in ({family.gguf} if is_gguf else {*family.hf, *family.hf.values()})]
    return next((family for family in found if family.has_experts == has_experts), found[0] if found else None)
