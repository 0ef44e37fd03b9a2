"""The ways in which each family with mixtures of experts differs from Llama, read from a model's configuration.

Each function returns keyword arguments of ``DecoderSpec``, as those of ``family_options`` do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hotseat.errors import ModelError, UnsupportedModelError
from hotseat.models import family_options as dense
from hotseat.models.family_options import Fields, Options
from hotseat.models.spec import ExpertsSpec, LayerSpec

__all__: list[str] = []

# What files call it: config.json a name, GGUF a number (1 softmax, 2 sigmoid, 3 softmax of the chosen).
_SCORING = {"softmax": (None, "softmax", 0, 1, 3), "sigmoid": (None, "sigmoid", "noaux_tc", 0, 2)}


def mixtral(fields: Fields, num_layers: int, head_dim: int) -> Options:
    # A GGUF file has no window at all; Mixtral's configs say null.
    window = None if fields.is_gguf else dense.window_of(fields, None)
    layers = dense.sliding_layers(fields, num_layers, window, lambda i: True)
    return _with_experts(layers, _experts(fields, size="intermediate_size", renormalize=True))


def qwen2_moe(fields: Fields, num_layers: int, head_dim: int) -> Options:
    return _qwen_moe(fields, num_layers, dense.qwen2(fields, num_layers, head_dim), has_shared=True)


def qwen3_moe(fields: Fields, num_layers: int, head_dim: int) -> Options:
    return _qwen_moe(fields, num_layers, dense.qwen3(fields, num_layers, head_dim), has_shared=False)


def _qwen_moe(fields: Fields, num_layers: int, options: Options, *, has_shared: bool) -> Options:
    step, dense_layers = max(1, _whole(fields, "decoder_sparse_step", 1)), fields.optional("mlp_only_layers")
    dense_layers = dense_layers if isinstance(dense_layers, list) else []
    shared = fields.count("shared_expert_intermediate_size") if has_shared else 0
    # GGUF has no key: llama.cpp renormalizes in Qwen 3 and not in Qwen 2.
    renormalize = not has_shared if fields.is_gguf else fields.optional("norm_topk_prob") is True
    experts = _experts(fields, renormalize=renormalize, shared_intermediate_size=shared, has_shared_router=bool(shared))
    is_sparse = lambda i: i not in dense_layers and (i + 1) % step == 0  # noqa: E731
    return options | _with_experts(options["layers"], experts, is_sparse)


def olmoe(fields: Fields, num_layers: int, head_dim: int) -> Options:
    renormalize = fields.optional("norm_topk_prob") is True
    experts = _experts(fields, size="intermediate_size", renormalize=renormalize)
    return {"qk_norm": "row"} | _with_experts((LayerSpec(),) * num_layers, experts)


def flex_olmo(fields: Fields, num_layers: int, head_dim: int) -> Options:
    return olmoe(fields, num_layers, head_dim) | {"norm_placement": "post"}


def granite_moe(fields: Fields, num_layers: int, head_dim: int) -> Options:
    # Only the hybrid one says how positions are embedded, and without a word they are not.
    is_hybrid = fields.optional("mamba_n_heads") is not None
    base = dense.granite4 if is_hybrid else dense.granite
    options = base(fields, num_layers, head_dim)
    shared = _whole(fields, "shared_intermediate_size", 0)
    experts = _experts(
        fields,
        size="intermediate_size",
        renormalize=True,
        shared_intermediate_size=shared,
    )
    return options | _with_experts(options["layers"], experts)


def _with_sigmoid(fields: Fields, num_layers: int, options: Options) -> Options:
    """Return what GLM-4.5 and dots.llm1 have in common: sigmoid scores, a first dense part, shared experts."""
    first, shared = _whole(fields, "first_k_dense_replace", 0), _whole(fields, "n_shared_experts", 0)
    experts = _experts(
        fields,
        scoring="sigmoid",
        renormalize=fields.optional("norm_topk_prob") is not False,
        scale=fields.number("routed_scaling_factor", 1.0),
        num_groups=fields.count("n_group", 1),
        groups_per_token=fields.count("topk_group", 1),
        has_selection_bias=True,
    )
    experts = replace(experts, shared_intermediate_size=shared * experts.intermediate_size)
    return options | _with_experts(options["layers"], experts, lambda i: i >= first)


def glm4_moe(fields: Fields, num_layers: int, head_dim: int) -> Options:
    qk_norm = "head" if fields.has("q_norm") else "none"
    return _with_sigmoid(fields, num_layers, {"qk_norm": qk_norm, "layers": (LayerSpec(),) * num_layers})


def dots1(fields: Fields, num_layers: int, head_dim: int) -> Options:
    window = None if fields.is_gguf else dense.window_of(fields, 4096)
    first = _whole(fields, "max_window_layers", 62)
    layers = dense.sliding_layers(fields, num_layers, window, lambda i: i >= first)
    return _with_sigmoid(fields, num_layers, {"qk_norm": "head", "layers": layers})


def ernie_moe(fields: Fields, num_layers: int, head_dim: int) -> Options:
    first = _whole(fields, "moe_layer_start_index", 0 if fields.is_gguf else 1)
    last = fields.optional("moe_layer_end_index")
    end = last + 1 if isinstance(last, int) and last >= 0 else num_layers  # -1: the last
    step = fields.count("moe_layer_interval", 1)
    shared = _whole(fields, "n_shared_experts", 0 if fields.is_gguf else 2)
    experts = _experts(fields, renormalize=True, has_selection_bias=True)
    experts = replace(experts, shared_intermediate_size=shared * experts.intermediate_size)
    layers = (LayerSpec(),) * num_layers
    return _with_experts(layers, experts, lambda i: (i + 1) % step == 0 and first <= i < end)


def hunyuan_moe(fields: Fields, num_layers: int, head_dim: int) -> Options:
    experts = _experts(
        fields,
        size="intermediate_size",
        renormalize=True,
        shared_intermediate_size=fields.count("intermediate_size"),
    )
    options = dense.hunyuan(fields, num_layers, head_dim)
    return options | _with_experts((LayerSpec(),) * num_layers, experts)


def minimax_m2(fields: Fields, num_layers: int, head_dim: int) -> Options:
    experts = _experts(fields, size="intermediate_size", scoring="sigmoid", renormalize=True, has_selection_bias=True)
    return {"qk_norm": "row"} | _with_experts((LayerSpec(),) * num_layers, experts)


def gpt_oss(fields: Fields, num_layers: int, head_dim: int) -> Options:
    experts = _experts(fields, size="intermediate_size", renormalize=True, has_router_bias=True, has_biases=True)
    layers = dense.sliding_layers(fields, num_layers, dense.window_of(fields, 128), lambda i: i % 2 == 0)
    return {"has_sinks": True, "activation": "swiglu_oai"} | _with_experts(layers, experts)


def _experts(fields: Fields, *, size: str = "moe_intermediate_size", **others: Any) -> ExpertsSpec:
    """Return the experts; in GGUF their size has a key of its own in every family, missing in the oldest files."""
    scoring = others.get("scoring", "softmax")
    given = fields.optional("scoring_func")
    if not isinstance(given, str | int | None) or given not in _SCORING[scoring]:
        raise UnsupportedModelError(
            f"experts whose scores are made by {given!r} instead of {scoring} are not supported"
        )
    key = size
    if fields.is_gguf:
        key = "intermediate_size" if fields.optional("moe_intermediate_size") is None else "moe_intermediate_size"
    return ExpertsSpec(
        count=fields.count("num_experts"),
        per_token=fields.count("num_experts_per_tok"),
        intermediate_size=fields.count(key),
        **others,
    )


def _whole(fields: Fields, key: str, default: int) -> int:
    value = fields.number(key, default)
    if not 0 <= value < 2**31 or value != int(value):
        raise ModelError(f"{key} must be a whole number, not {value}")
    return int(value)


def _with_experts(
    layers: tuple[LayerSpec, ...], experts: ExpertsSpec, is_sparse: Callable[[int], bool] = lambda i: True
) -> Options:
    """Return the options of a model whose layers have experts where ``is_sparse`` says so."""
    sparse = tuple(replace(layer, has_experts=is_sparse(i)) for i, layer in enumerate(layers))
    if not any(layer.has_experts for layer in sparse):
        raise ModelError(f"there are {experts.count} experts, but no layer that has them")
    return {"layers": sparse, "experts": experts}
