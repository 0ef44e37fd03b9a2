"""The architectures with mixtures of experts: their names of tensors and their differences from Llama, as data."""

from __future__ import annotations

from hotseat.models import expert_options as options
from hotseat.models.family import Family

__all__ = ["MOE_FAMILIES", "POST_NORMS"]

POST_NORMS: dict[str, str | None] = {
    "attention_norm": None,
    "attention_post_norm": "model.layers.{i}.post_attention_layernorm.weight",
    "mlp_norm": None,
    "mlp_post_norm": "model.layers.{i}.post_feedforward_layernorm.weight",
}

_MIXTRAL: dict[str, str | None] = {
    "router": "model.layers.{i}.block_sparse_moe.gate.weight",
    "selection_bias": "model.layers.{i}.block_sparse_moe.e_score_correction_bias",
    "experts.gate": "model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight",
    "experts.up": "model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight",
    "experts.down": "model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight",
}
_GRANITE: dict[str, str | None] = {
    "router": "model.layers.{i}.block_sparse_moe.router.layer.weight",
    "experts.down": "model.layers.{i}.block_sparse_moe.output_linear.weight",
    "shared_down": "model.layers.{i}.shared_mlp.output_linear.weight",
}
_GRANITE_FUSED: dict[str, tuple[str, ...]] = {
    "model.layers.{i}.block_sparse_moe.input_linear": ("experts.gate", "experts.up"),
    "model.layers.{i}.shared_mlp.input_linear": ("shared_gate", "shared_up"),
}
_QWEN_SHARED: dict[str, str | None] = {
    "shared_gate": "model.layers.{i}.mlp.shared_expert.gate_proj.weight",
    "shared_up": "model.layers.{i}.mlp.shared_expert.up_proj.weight",
    "shared_down": "model.layers.{i}.mlp.shared_expert.down_proj.weight",
    "shared_router": "model.layers.{i}.mlp.shared_expert_gate.weight",
}
_HUNYUAN: dict[str, str | None] = {
    "q_norm": "model.layers.{i}.self_attn.query_layernorm.weight",
    "k_norm": "model.layers.{i}.self_attn.key_layernorm.weight",
    "router": "model.layers.{i}.mlp.gate.wg.weight",
    "shared_gate": "model.layers.{i}.mlp.shared_mlp.gate_proj.weight",
    "shared_up": "model.layers.{i}.mlp.shared_mlp.up_proj.weight",
    "shared_down": "model.layers.{i}.mlp.shared_mlp.down_proj.weight",
}
_GPT_OSS: dict[str, str | None] = {
    "router": "model.layers.{i}.mlp.router.weight",
    "experts.gate": "model.layers.{i}.mlp.experts.gate_up_proj",
    "experts.up": "model.layers.{i}.mlp.experts.gate_up_proj",
    "experts.down": "model.layers.{i}.mlp.experts.down_proj",
}

MOE_FAMILIES = (
    Family(
        hf={"MixtralForCausalLM": "mixtral"},
        gguf="llama",
        has_experts=True,
        hf_names=_MIXTRAL,
        gguf_rope="interleaved",
        kv_heads=8,
        context=131072,
        eps=1e-5,
        theta=1e6,
        options=options.mixtral,
    ),
    Family(
        hf={"Qwen2MoeForCausalLM": "qwen2_moe"},
        gguf="qwen2moe",
        has_experts=True,
        hf_names=_QWEN_SHARED,
        kv_heads=16,
        context=32768,
        options=options.qwen2_moe,
    ),
    Family(
        hf={"Qwen3MoeForCausalLM": "qwen3_moe"},
        gguf="qwen3moe",
        has_experts=True,
        kv_heads=4,
        context=32768,
        options=options.qwen3_moe,
    ),
    Family(
        hf={"OlmoeForCausalLM": "olmoe"},
        gguf="olmoe",
        has_experts=True,
        context=4096,
        eps=1e-5,
        options=options.olmoe,
    ),
    Family(
        hf={"FlexOlmoForCausalLM": "flex_olmo"},
        has_experts=True,
        hf_names=POST_NORMS,
        context=4096,
        theta=5e5,
        options=options.flex_olmo,
    ),
    Family(
        hf={
            "GraniteMoeForCausalLM": "granitemoe",
            "GraniteMoeSharedForCausalLM": "granitemoeshared",
            "GraniteMoeHybridForCausalLM": "granitemoehybrid",
        },
        gguf="granitemoe",
        has_experts=True,
        hf_names=_GRANITE,
        hf_fused=_GRANITE_FUSED,
        gguf_rope="interleaved",
        context=2048,
        options=options.granite_moe,
    ),
    Family(
        hf={"Glm4MoeForCausalLM": "glm4_moe"},
        gguf="glm4moe",
        has_experts=True,
        gguf_names={"mlp_norm": "blk.{i}.post_attention_norm.weight"},
        kv_heads=8,
        head_dim=128,
        context=131072,
        eps=1e-5,
        partial=0.5,
        options=options.glm4_moe,
    ),
    Family(
        hf={"Dots1ForCausalLM": "dots1"},
        gguf="dots1",
        has_experts=True,
        kv_heads=32,
        context=2048,
        options=options.dots1,
    ),
    Family(
        hf={"Ernie4_5_MoeForCausalLM": "ernie4_5_moe"},
        gguf="ernie4_5-moe",
        has_experts=True,
        hf_names={"selection_bias": "model.layers.{i}.mlp.moe_statics.e_score_correction_bias"},
        hf_rope="interleaved",
        gguf_rope="interleaved",
        kv_heads=4,
        context=131072,
        eps=1e-5,
        theta=5e5,
        ties=True,
        options=options.ernie_moe,
    ),
    Family(
        hf={"HunYuanMoEV1ForCausalLM": "hunyuan_v1_moe"},
        gguf="hunyuan-moe",
        has_experts=True,
        hf_names=_HUNYUAN,
        context=2048,
        eps=1e-5,
        options=options.hunyuan_moe,
    ),
    Family(
        hf={"MiniMaxM2ForCausalLM": "minimax_m2"},
        gguf="minimax-m2",
        has_experts=True,
        hf_names=_MIXTRAL,
        kv_heads=8,
        head_dim=128,
        context=196608,
        theta=5e6,
        options=options.minimax_m2,
    ),
    Family(
        hf={"GptOssForCausalLM": "gpt_oss"},
        gguf="gpt-oss",
        has_experts=True,
        hf_names=_GPT_OSS,
        hf_expert_columns=True,
        gguf_names={"mlp_norm": "blk.{i}.post_attention_norm.weight"},
        kv_heads=8,
        head_dim=64,
        context=131072,
        eps=1e-5,
        theta=1.5e5,
        options=options.gpt_oss,
    ),
)
