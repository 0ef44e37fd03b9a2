"""The experts of a twin as llama.cpp's converter lays them out: one tensor for all of a layer, and their keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["add_experts", "with_experts"]

Config = dict[str, Any]
Tensors = dict[str, np.ndarray]

_EXPERT = re.compile(r"model\.layers\.(\d+)\..*\.experts\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.weight")
_PARTS = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}
_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def with_experts(tensors: Tensors) -> Iterator[tuple[str, np.ndarray]]:
    """Yield all tensors, those of experts under their names in GGUF."""
    stacks: dict[tuple[str, str], dict[int, np.ndarray]] = {}
    for name, values in tensors.items():
        if found := _EXPERT.fullmatch(name):
            stacks.setdefault((found[1], _PARTS[found[3]]), {})[int(found[2])] = values
        elif name.endswith(".sinks"):
            yield f"{name}.weight", values
        elif (
            ".block_sparse_moe." in name
            or ".mlp.experts." in name
            or "shared_" in name
            or name.endswith("correction_bias")
        ):
            yield from _renamed(name, values)
        else:
            yield name, values
    for (layer, part), experts in stacks.items():
        yield f"blk.{layer}.ffn_{part}_exps.weight", np.stack([experts[i] for i in range(len(experts))])


def _renamed(name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    layer, last = name.split(".")[2], ".".join(name.split(".")[3:])
    blk = f"blk.{layer}.ffn"
    match last.removesuffix(".weight"):
        case "block_sparse_moe.input_linear":
            gate, up = np.split(values, 2, axis=1)
            yield f"{blk}_gate_exps.weight", gate
            yield f"{blk}_up_exps.weight", up
        case "block_sparse_moe.output_linear":
            yield f"{blk}_down_exps.weight", values
        case "shared_mlp.input_linear":
            gate, up = np.split(values, 2)
            yield f"{blk}_gate_shexp.weight", gate
            yield f"{blk}_up_shexp.weight", up
        case "shared_mlp.output_linear":
            yield f"{blk}_down_shexp.weight", values
        case "mlp.experts.gate_up_proj" | "mlp.experts.gate_up_proj_bias" as part:
            suffix = "bias" if part.endswith("bias") else "weight"
            by_rows = values if suffix == "bias" else values.swapaxes(1, 2)
            yield f"{blk}_gate_exps.{suffix}", by_rows[:, 0::2]
            yield f"{blk}_up_exps.{suffix}", by_rows[:, 1::2]
        case "mlp.experts.down_proj":
            yield f"{blk}_down_exps.weight", values.swapaxes(1, 2)
        case "mlp.experts.down_proj_bias":
            yield f"{blk}_down_exps.bias", values
        case "block_sparse_moe.gate" | "block_sparse_moe.router.layer":
            yield f"{blk}_gate_inp.weight", values
        case "mlp.shared_expert_gate":
            yield f"{blk}_gate_inp_shexp.weight", values.reshape(-1)
        case bias if bias.endswith("e_score_correction_bias"):
            yield f"blk.{layer}.exp_probs_b.bias", values.reshape(-1)
        case other:
            yield f"{blk}_{other.split('.')[-1].removesuffix('_proj')}_shexp.weight", values


def add_experts(writer: Any, config: Config) -> None:
    """Write the keys of a mixture of experts."""
    import gguf

    count = next((config[name] for name in _COUNTS if config.get(name)), 0)
    if not count:
        return
    writer.add_expert_count(count)
    writer.add_expert_used_count(next(config[n] for n in ("num_experts_per_tok", "moe_k", "moe_topk") if n in config))
    writer.add_expert_feed_forward_length(config.get("moe_intermediate_size") or config["intermediate_size"])
    for name in ("shared_expert_intermediate_size", "shared_intermediate_size"):
        if config.get(name):
            writer.add_expert_shared_feed_forward_length(config[name])
    if shared := config.get("n_shared_experts") or config.get("moe_num_shared_experts"):
        writer.add_expert_shared_count(shared)
    if first := config.get("first_k_dense_replace") or config.get("moe_layer_start_index"):
        writer.add_leading_dense_block_count(first)
    if "routed_scaling_factor" in config:
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
    if "routed_scaling_factor" in config or config["model_type"] == "minimax_m2":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
