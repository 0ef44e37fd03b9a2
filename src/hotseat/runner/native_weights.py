"""Hand the weights of a model to the native decoder, which packs them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hotseat.models.spec import DecoderSpec, is_matrix, layer_slots
from hotseat.models.weights import Weights
from hotseat.runner import _native

__all__ = ["load_weights"]

_ROUTERS = ("router", "shared_router")


def load_weights(decoder: _native.Decoder, spec: DecoderSpec, weights: Weights) -> None:
    """Set everything that ``spec`` names: vectors before the matrices, which are packed one by one."""
    loader = _Loader(decoder, weights, "gate" if spec.gated else "up")
    decoder.set_embedding(*loader.stored("token_embedding"))
    if spec.learned_positions:
        decoder.set_position_embedding(loader.vector("position_embedding"))
    for slot in ("output_norm", "output_norm_bias", "output_bias"):
        if slot in weights:
            decoder.set_vector(-1, slot, loader.vector(slot))
    decoder.set_output(*loader.stored("token_embedding" if spec.tie_word_embeddings else "output"))
    for i in range(spec.num_layers):
        for slot in layer_slots(spec, i):
            if not is_matrix(slot) and slot not in _ROUTERS:
                loader.set_vector(i, slot)
    for i, layer in enumerate(spec.layers):
        loader.set_attention(i)
        if layer.has_experts:
            loader.set_experts(i, spec)
        else:
            loader.set_mlp(i)


class _Loader:
    def __init__(self, decoder: _native.Decoder, weights: Weights, gate: str) -> None:
        self._decoder = decoder
        self._weights = weights
        self._gate = gate  # what stands for the gate of an MLP without one

    def stored(self, slot: str) -> tuple[str, NDArray[np.uint8]]:
        return self._weights[slot].kind, self._weights[slot].data

    def vector(self, slot: str) -> NDArray[np.float32]:
        return np.ascontiguousarray(self._weights[slot].dequantize(), np.float32).reshape(-1)

    def set_vector(self, layer: int, slot: str) -> None:
        values = self.vector(f"layers.{layer}.{slot}")
        if slot.startswith("experts."):
            _, expert, bias = slot.split(".")
            self._decoder.set_expert_bias(layer, int(expert), bias, values)
        else:
            self._decoder.set_vector(layer, slot, values)

    def set_attention(self, layer: int) -> None:
        start = f"layers.{layer}."
        self._decoder.set_qkv(layer, *self.stored(start + "q"), *self.stored(start + "k"), *self.stored(start + "v"))
        self._decoder.set_attention_output(layer, *self.stored(start + "attention_output"))

    def set_mlp(self, layer: int) -> None:
        start = f"layers.{layer}."
        self._decoder.set_gate_up(layer, *self.stored(start + self._gate), *self.stored(start + "up"))
        self._decoder.set_down(layer, *self.stored(start + "down"))

    def set_experts(self, layer: int, spec: DecoderSpec) -> None:
        start, experts = f"layers.{layer}.", spec.experts
        assert experts is not None
        routers = [self._weights[start + slot].dequantize() for slot in _ROUTERS if start + slot in self._weights]
        rows = np.concatenate([router.reshape(-1, spec.hidden_size) for router in routers])
        self._decoder.set_router(layer, np.ascontiguousarray(rows, np.float32).view(np.uint8))
        for expert in range(experts.count):
            self._decoder.set_expert(layer, expert, *self._mlp(f"{start}experts.{expert}."))
        if experts.shared_intermediate_size:
            self._decoder.set_shared_expert(layer, *self._mlp(f"{start}shared_"))

    def _mlp(self, start: str) -> tuple[str, NDArray[np.uint8], str, NDArray[np.uint8], str, NDArray[np.uint8]]:
        return (*self.stored(start + self._gate), *self.stored(start + "up"), *self.stored(start + "down"))
