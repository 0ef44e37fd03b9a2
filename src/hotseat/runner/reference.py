"""The runner in NumPy: it defines what a step computes, and serves where no native runner was built.

What a decoder computes is said in ``models.spec``; each operation is defined in ``reference_ops``.

The residual stream, norms, rotary, softmax and sampler are float32 in every mode. ``dtype`` says how linear layers
multiply, and nothing else:

    fp32   float32 weights and inputs: the definition
    bf16   weights and inputs rounded to bf16, products and sums float32
    int8   see ``reference_ops.linear_int8``
    gguf   the exact stored weights, or the nearest in groups where they have none; inputs quantised in groups of 32

What chooses experts is float32 in every mode. Embedding rows are the exact stored values. Keys (after rotary) and
values are rounded to ``kv_dtype`` when they are written, and attention reads the rounded ones, also those of its own
step. With bf16 it also rounds what it multiplies them with: queries, and weights before they are divided by their
sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hotseat.core.batch import Batch, StepOutput
from hotseat.models.spec import DecoderSpec, is_matrix, layer_slots
from hotseat.models.weights import Weights
from hotseat.runner.config import RunnerConfig, WeightDtype, kv_tables
from hotseat.runner.determinism import Determinism, reference_determinism
from hotseat.runner.groups import UNGROUPED_KINDS, log_groups
from hotseat.runner.logits_processors import sample_processed
from hotseat.runner.pooling import Pooler
from hotseat.runner.reference_experts import route, sigmoid
from hotseat.runner.reference_groups import nearest_groups, quantize_groups
from hotseat.runner.reference_ops import (
    Array,
    AttentionOptions,
    activate,
    attention,
    attention_bf16,
    bf16_bits,
    bf16_values,
    block_hadamard,
    hadamard_width,
    layer_norm,
    linear,
    linear_int8,
    quantize_rows,
    rms_norm,
    rope,
    rope_table,
    round_to_bf16,
    softcap,
)
from hotseat.runner.results import StepResults
from hotseat.runner.sampling_reference import RowSampling, sample_row, store_logprobs
from hotseat.runner.seats import FlatBatch, Int32Array, SeatTable

__all__ = ["ReferenceRunner"]

Linear: TypeAlias = Callable[[Array], Array]  # [T, K] → [T, N]

_ROWS_AT_ONCE = 64  # bounds the memory of attention scores and of logits


class ReferenceRunner:
    """Compute batches with NumPy alone.

    ``threads`` and ``isa`` of the configuration have no effect: NumPy's BLAS decides.
    """

    def __init__(self, spec: DecoderSpec, weights: Weights, config: RunnerConfig) -> None:
        if config.weight_dtype == "gguf":
            log_groups(spec, weights)
        self._spec = spec
        self._table = SeatTable(config, spec.vocab_size)
        self._results = StepResults.allocate(config)
        self._pooler = Pooler()
        self._cache = _KvCache(spec, config)
        self._attention = attention_bf16 if config.kv_dtype == "bf16" else attention
        self._rope_tables = [
            rope_table(one.for_length(config.max_model_len), config.max_model_len) for one in spec.ropes
        ]
        self._embedding = weights["token_embedding"].dequantize()
        self._positions = _optional(weights, "position_embedding")
        self._output_norm = _norm_of(spec, weights["output_norm"].dequantize(), _optional(weights, "output_norm_bias"))
        self._output_bias = _optional(weights, "output_bias")
        tied = "output" not in weights
        output = weights["token_embedding" if tied else "output"]
        values = self._embedding if tied else output.dequantize()
        self._output = make_linear(values, output.kind, config.weight_dtype)
        self._layers = [_Layer(spec, weights, i, config.weight_dtype) for i in range(spec.num_layers)]

    @property
    def determinism(self) -> Determinism:
        """The promise about the bits of answers."""
        return reference_determinism()

    def execute(self, batch: Batch) -> StepOutput:
        """Compute all chunks of ``batch`` and sample where ``samples`` is set."""
        flat = self._table.prepare(batch)
        hidden = np.zeros((0, self._spec.hidden_size), np.float32)
        if flat.num_tokens:
            # Values that are not finite are reported by request, not warned about.
            with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
                hidden = self._decode(flat)
                self._sample(hidden, flat)
                self._score_prompts(hidden, flat)
        token_ids = self._results.listed_ids(flat.num_samples)
        output = self._results.to_output(self._table, token_ids)
        self._table.commit(self._results.token_ids[: flat.num_samples], self._results.status)
        self._pooler.pool(batch, lambda first, end: self._output_norm(hidden[first:end]), output)
        return output

    def logits(self, batch: Batch) -> Array:  # [T, vocab_size]
        """Compute ``batch`` and return the logits of all its rows, sampling nothing: for measurements."""
        flat = self._table.prepare(batch)
        return self._logits(self._decode(flat), np.arange(flat.num_tokens, dtype=np.int32))

    def close(self) -> None:
        """Do nothing: there is nothing to release; idempotent."""

    def _decode(self, flat: FlatBatch) -> Array:
        """Return the hidden states after the last layer, float32[T, hidden_size]."""
        spec = self._spec
        slots = [self._cache.slots(flat, table) for table in self._cache.tables(self._table.block_tables)]
        hidden = self._embedding[flat.token_ids[: flat.num_tokens]] * np.float32(spec.embedding_scale)
        if self._positions is not None:
            hidden = hidden + self._positions[flat.positions[: flat.num_tokens]]
        for index, layer in enumerate(self._layers):
            attended = self._attention_of(layer, index, hidden, flat, slots[self._cache.table_of[index]])
            if spec.norm_placement == "parallel":
                hidden = hidden + (attended + self._mlp_of(layer, hidden)) * np.float32(spec.residual_scale)
            else:
                hidden = hidden + attended * np.float32(spec.residual_scale)
                hidden = hidden + self._mlp_of(layer, hidden) * np.float32(spec.residual_scale)
        return hidden

    def _attention_of(
        self, layer: _Layer, index: int, hidden: Array, flat: FlatBatch, slots: NDArray[np.int64]
    ) -> Array:
        """Return what the attention of one layer adds to ``hidden``."""
        spec, heads = self._spec, layer.spec
        x = layer.norm("attention_norm", hidden)
        q = self._q_or_k(layer, "q", x, flat).reshape(-1, spec.num_heads, spec.head_dim)
        k = self._q_or_k(layer, "k", x, flat).reshape(-1, spec.num_kv_heads, spec.head_dim)
        v = layer.linear("v", x).reshape(-1, spec.num_kv_heads, spec.head_dim)
        self._cache.write(index, slots, k, v)
        options = AttentionOptions(heads.window, spec.attention_scale, spec.attention_softcap, layer.vector("sinks"))
        attended = self._attend(index, q, flat, options).reshape(len(hidden), -1)
        return layer.norm("attention_post_norm", layer.linear("attention_output", attended))

    def _q_or_k(self, layer: _Layer, slot: str, x: Array, flat: FlatBatch) -> Array:  # [T, heads, D]
        values = layer.linear(slot, x)
        if not self._spec.qk_norm_after_rope:
            values = layer.qk_norm(slot, values)
        values = values.reshape(len(x), -1, self._spec.head_dim)
        if layer.spec.rope is not None:
            positions = flat.positions[: flat.num_tokens]
            cos, sin = self._rope_tables[layer.spec.rope]
            values = rope(values, cos[positions], sin[positions])
        if self._spec.qk_norm_after_rope:
            values = layer.qk_norm(slot, values.reshape(len(x), -1)).reshape(values.shape)
        return values

    def _mlp_of(self, layer: _Layer, hidden: Array) -> Array:
        """Return what the MLP of one layer adds to ``hidden``."""
        spec = self._spec
        x = layer.norm("mlp_norm" if spec.has_mlp_norm else "attention_norm", hidden)
        delta = self._experts_of(layer, x) if layer.spec.has_experts else self._mlp("", layer, x)
        return layer.norm("mlp_post_norm", delta)

    def _mlp(self, prefix: str, layer: _Layer, x: Array) -> Array:
        spec = self._spec
        up = layer.linear(f"{prefix}up", x)
        gate = layer.linear(f"{prefix}gate", x) if spec.gated else None
        inner = activate(spec.activation, up) if gate is None else activate(spec.activation, gate, up)
        return layer.linear(f"{prefix}down", inner)

    def _experts_of(self, layer: _Layer, x: Array) -> Array:
        """Return the sum of what the chosen experts make of each row, and the shared expert."""
        experts, router_bias = self._spec.experts, layer.vector("router_bias")
        assert experts is not None
        logits = linear(x, layer.required_vector("router"))
        weights = route(
            logits if router_bias is None else logits + router_bias, experts, layer.vector("selection_bias")
        )
        total: Array = np.zeros_like(x)
        for expert in range(experts.count):
            rows = np.flatnonzero(~np.isnan(weights[:, expert]))
            if len(rows):
                total[rows] += self._mlp(f"experts.{expert}.", layer, x[rows]) * weights[rows, expert, None]
        if not experts.shared_intermediate_size:
            return total
        shared = self._mlp("shared_", layer, x)
        if experts.has_shared_router:
            shared = shared * sigmoid(linear(x, layer.required_vector("shared_router").reshape(1, -1)))
        return total + shared

    def _attend(self, layer: int, q: Array, flat: FlatBatch, options: AttentionOptions) -> Array:  # both [T, H, D]
        output = np.empty_like(q)
        query_start = flat.query_start.tolist()
        for chunk in range(flat.num_chunks):
            first_row, end_row = query_start[chunk], query_start[chunk + 1]
            context_len = int(flat.context_lens[chunk])
            start = context_len - (end_row - first_row)
            first = 0 if options.window is None else max(0, start - options.window + 1)
            table = self._cache.tables(self._table.block_tables)[self._cache.table_of[layer]]
            k, v = self._cache.read(layer, table[flat.seats[chunk]], first, context_len)
            for begin, end in _pieces(first_row, end_row):
                piece_start = start + begin - first_row
                piece_end = piece_start + end - begin
                output[begin:end] = self._attention(q[begin:end], k[:piece_end], v[:piece_end], piece_start, options)
        return output

    def _logits(self, hidden: Array, rows: Int32Array) -> Array:  # [len(rows), vocab_size]
        logits = self._output(self._output_norm(hidden[rows]))
        if self._output_bias is not None:
            logits = logits + self._output_bias
        if self._spec.logit_scale != 1:
            logits = logits * np.float32(self._spec.logit_scale)
        return softcap(logits, self._spec.logit_softcap) if self._spec.logit_softcap else logits

    def _sample(self, hidden: Array, flat: FlatBatch) -> None:
        table, results = self._table, self._results
        for begin, end in _pieces(0, flat.num_samples):
            logits = self._logits(hidden, flat.sample_rows[begin:end])
            for index, row in zip(range(begin, end), logits, strict=True):
                seat = int(flat.sample_seats[index])
                if seat in table.logits_processors:
                    status, token_id = sample_processed(table, seat, row)
                else:
                    status, token_id = sample_row(row, RowSampling.of_seat(table, seat, int(flat.sample_drafts[index])))
                results.status[index], results.token_ids[index] = status, token_id
                num_logprobs = int(table.sampling["num_logprobs"][seat])
                if num_logprobs >= 0:
                    store_logprobs(results.sampled, index, row, token_id, num_logprobs)

    def _score_prompts(self, hidden: Array, flat: FlatBatch) -> None:
        for begin, end in _pieces(0, flat.num_prompt_rows):
            logits = self._logits(hidden, flat.prompt_rows[begin:end])
            for index, row in zip(range(begin, end), logits, strict=True):
                target, num_logprobs = int(flat.prompt_targets[index]), int(flat.prompt_num_logprobs[index])
                store_logprobs(self._results.prompt, index, row, target, num_logprobs)


class _Layer:
    """The weights of one layer, ready to multiply."""

    def __init__(self, spec: DecoderSpec, weights: Weights, index: int, dtype: WeightDtype) -> None:
        self.spec = spec.layers[index]
        self._model = spec
        self._linear: dict[str, Linear] = {}
        self._vectors: dict[str, Array] = {}
        for slot in layer_slots(spec, index):
            tensor = weights[f"layers.{index}.{slot}"]
            if is_matrix(slot):
                self._linear[slot] = make_linear(tensor.dequantize(), tensor.kind, dtype)
            else:
                self._vectors[slot] = tensor.dequantize()

    def vector(self, slot: str) -> Array | None:
        """Return what is not multiplied in the runner's mode, ``None`` where the layer has no such slot."""
        return self._vectors.get(slot)

    def required_vector(self, slot: str) -> Array:
        """Return it where every layer of this kind has one."""
        return self._vectors[slot]

    def linear(self, slot: str, x: Array) -> Array:
        """Multiply, and add the bias where there is one."""
        product, bias = self._linear[slot](x), self._vectors.get(f"{slot}_bias")
        return product if bias is None else product + bias

    def norm(self, slot: str, x: Array) -> Array:
        """Normalize where the layer has such a norm."""
        weight = self._vectors.get(slot)
        return x if weight is None else _norm_of(self._model, weight, self._vectors.get(f"{slot}_bias"))(x)

    def qk_norm(self, slot: str, x: Array) -> Array:  # both [T, heads * D]
        """Normalize queries or keys where the model does."""
        weight = self._vectors.get(f"{slot}_norm")
        if weight is None:
            return x
        if self._model.qk_norm != "row":
            x = x.reshape(len(x), -1, self._model.head_dim)
        return _norm_of(self._model, weight, None)(x).reshape(len(x), -1)


def _norm_of(spec: DecoderSpec, weight: Array, bias: Array | None) -> Callable[[Array], Array]:
    if spec.norm == "rms":
        return lambda x: rms_norm(x, weight, spec.norm_eps)
    return lambda x: layer_norm(x, weight, bias, spec.norm_eps)


def _optional(weights: Weights, slot: str) -> Array | None:
    return weights[slot].dequantize() if slot in weights else None


def make_linear(weight: Array, kind: str, dtype: WeightDtype) -> Linear:  # [N, K]
    """Return the linear layer with these weights, which were stored as ``kind``, in the given mode."""
    if dtype == "fp32":
        return lambda x: linear(x, weight)
    if dtype == "bf16":
        rounded = round_to_bf16(weight)
        return lambda x: linear(round_to_bf16(x), rounded)
    if dtype == "gguf":
        exact_or_nearest = nearest_groups(weight) if kind in UNGROUPED_KINDS else weight
        return lambda x: linear(quantize_groups(x), exact_or_nearest)
    quantized, scale = quantize_rows(block_hadamard(weight, hadamard_width(weight.shape[1])))
    return lambda x: linear_int8(x, quantized, scale)


class _KvCache:
    """Keys and values of all layers in blocks; slot = block id * block_size + position % block_size."""

    def __init__(self, spec: DecoderSpec, config: RunnerConfig) -> None:
        self.table_of = kv_tables(spec, config.kv_layout)
        self._place_of = [self.table_of[:index].count(table) for index, table in enumerate(self.table_of)]
        num_layers = 1 + max(self._place_of)
        shape = (2, num_layers, config.num_kv_blocks * config.block_size, spec.num_kv_heads, spec.head_dim)
        self._num_seats = config.max_num_seqs
        self._block_size = config.block_size
        self._is_bf16 = config.kv_dtype == "bf16"
        # [keys and values, layers of a block, slots, G, D]; bf16 is kept as its bits.
        self._slots: NDArray[Any] = np.zeros(shape, np.uint16 if self._is_bf16 else np.float32)

    def tables(self, block_tables: Int32Array) -> Int32Array:  # [tables, seats, blocks]
        """Return the block tables of all seats, apart."""
        return block_tables.reshape(-1, self._num_seats, block_tables.shape[1])

    def slots(self, flat: FlatBatch, block_tables: Int32Array) -> NDArray[np.int64]:  # [T]
        """Return where each row's key and value go; -1 for rows that write none."""
        rows_per_chunk = np.diff(flat.query_start[: flat.num_chunks + 1])
        positions = flat.positions[: flat.num_tokens].astype(np.int64)
        seats = np.repeat(flat.seats[: flat.num_chunks], rows_per_chunk)
        writes_kv = np.repeat(flat.writes_kv[: flat.num_chunks], rows_per_chunk)
        slots = block_tables[seats, positions // self._block_size] * self._block_size + positions % self._block_size
        return np.where(writes_kv, slots, -1)

    def write(self, layer: int, slots: NDArray[np.int64], k: Array, v: Array) -> None:  # k, v: [T, G, D]
        """Store keys and values of the rows whose slot is not -1."""
        rows = np.flatnonzero(slots >= 0)
        for kind, values in enumerate((k, v)):
            self._slots[kind, self._place_of[layer], slots[rows]] = (
                bf16_bits(values[rows]) if self._is_bf16 else values[rows]
            )

    def read(self, layer: int, block_table: Int32Array, first: int, context_len: int) -> tuple[Array, Array]:
        """Return keys and values of positions [0, context_len), each [context_len, G, D]; zeros before ``first``.

        What is before ``first`` may have been given back, and another sequence may write there.
        """
        positions = np.arange(context_len)
        slots = block_table[positions // self._block_size] * self._block_size + positions % self._block_size
        keys, values = self._values(0, layer, slots), self._values(1, layer, slots)
        keys[:first] = values[:first] = 0
        return keys, values

    def _values(self, kind: int, layer: int, slots: NDArray[np.intp]) -> Array:
        stored = self._slots[kind, self._place_of[layer], slots]
        return bf16_values(stored.view(np.uint16)) if self._is_bf16 else stored.view(np.float32)


def _pieces(begin: int, end: int) -> Iterator[tuple[int, int]]:
    for piece in range(begin, end, _ROWS_AT_ONCE):
        yield piece, min(piece + _ROWS_AT_ONCE, end)
