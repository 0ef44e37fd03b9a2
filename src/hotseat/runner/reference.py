"""The runner in NumPy: it defines what a step computes, and serves where no native runner was built.

    embedding → per layer: norm → q, k, v → rotary → KV write → attention → output projection → + residual
                           norm → gate, up → SwiGLU → down → + residual
    → norm → logits, only for rows that sample or whose logprobs are wanted → sampler

The residual stream, norms, rotary, softmax and sampler are float32 in every mode. ``dtype`` says how linear layers
multiply, and nothing else:

    fp32   float32 weights and inputs: the definition
    bf16   weights and inputs rounded to bf16, products and sums float32
    int8   see ``reference_ops.linear_int8``
    gguf   the exact stored weights, or the nearest in groups where they have none; inputs quantised in groups of 32

Embedding rows are the exact stored values. Keys (after rotary) and values are rounded to ``kv_dtype`` when they are
written, and attention reads the rounded ones, also those of its own step. With bf16 it also rounds what it multiplies
them with: queries, and weights before they are divided by their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hotseat.core.batch import Batch, StepOutput
from hotseat.models.spec import LAYER_SLOTS, DecoderSpec
from hotseat.models.weights import Weights
from hotseat.runner.config import RunnerConfig, WeightDtype
from hotseat.runner.determinism import Determinism, reference_determinism
from hotseat.runner.groups import UNGROUPED_KINDS, log_groups
from hotseat.runner.reference_ops import (
    Array,
    attention,
    attention_bf16,
    bf16_bits,
    bf16_values,
    block_hadamard,
    hadamard_width,
    linear,
    linear_int8,
    nearest_groups,
    quantize_groups,
    quantize_rows,
    rms_norm,
    rope,
    rope_table,
    round_to_bf16,
    swiglu,
)
from hotseat.runner.results import LogprobRows, StepResults
from hotseat.runner.sampling_reference import RowSampling, log_softmax, rank_of, sample_row, top_logprobs
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
        self._cache = _KvCache(spec, config)
        self._attention = attention_bf16 if config.kv_dtype == "bf16" else attention
        self._cos, self._sin = rope_table(spec.rope, config.max_model_len)
        self._embedding = weights["token_embedding"].dequantize()
        self._output_norm = weights["output_norm"].dequantize()
        tied = "output" not in weights
        output = weights["token_embedding" if tied else "output"]
        values = self._embedding if tied else output.dequantize()
        self._output = make_linear(values, output.kind, config.weight_dtype)
        self._layers = [_Layer(weights, i, config.weight_dtype) for i in range(spec.num_layers)]

    @property
    def determinism(self) -> Determinism:
        """What is promised about the bits of answers."""
        return reference_determinism()

    def execute(self, batch: Batch) -> StepOutput:
        """Compute all chunks of ``batch`` and sample where ``samples`` is set."""
        flat = self._table.prepare(batch)
        if flat.num_tokens:
            # Values that are not finite are reported by request, not warned about.
            with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
                hidden = self._decode(flat)
                self._sample(hidden, flat)
                self._score_prompts(hidden, flat)
        token_ids = self._results.listed_ids(flat.num_samples)
        output = self._results.to_output(self._table, token_ids)
        self._table.commit(self._results.token_ids[: flat.num_samples])
        return output

    def logits(self, batch: Batch) -> Array:  # [T, vocab_size]
        """Compute ``batch`` and return the logits of all its rows, sampling nothing: for measurements."""
        flat = self._table.prepare(batch)
        return self._logits(self._decode(flat), np.arange(flat.num_tokens, dtype=np.int32))

    def close(self) -> None:
        """Do nothing: there is nothing to release; idempotent."""

    def _decode(self, flat: FlatBatch) -> Array:
        """Return the hidden states after the last layer, float32[T, hidden_size]."""
        spec, positions = self._spec, flat.positions[: flat.num_tokens]
        cos, sin = self._cos[positions], self._sin[positions]
        slots = self._cache.slots(flat, self._table.block_tables)
        hidden = self._embedding[flat.token_ids[: flat.num_tokens]]
        for index, layer in enumerate(self._layers):
            normed = rms_norm(hidden, layer.attention_norm, spec.norm_eps)
            q = rope(layer.q(normed).reshape(-1, spec.num_heads, spec.head_dim), cos, sin)
            k = rope(layer.k(normed).reshape(-1, spec.num_kv_heads, spec.head_dim), cos, sin)
            v = layer.v(normed).reshape(-1, spec.num_kv_heads, spec.head_dim)
            self._cache.write(index, slots, k, v)
            hidden = hidden + layer.attention_output(self._attend(index, q, flat).reshape(len(hidden), -1))
            normed = rms_norm(hidden, layer.mlp_norm, spec.norm_eps)
            hidden = hidden + layer.down(swiglu(layer.gate(normed), layer.up(normed)))
        return hidden

    def _attend(self, layer: int, q: Array, flat: FlatBatch) -> Array:  # q and result: [T, H, D]
        output = np.empty_like(q)
        query_start = flat.query_start.tolist()
        for chunk in range(flat.num_chunks):
            first_row, end_row = query_start[chunk], query_start[chunk + 1]
            context_len = int(flat.context_lens[chunk])
            k, v = self._cache.read(layer, self._table.block_tables[flat.seats[chunk]], context_len)
            start = context_len - (end_row - first_row)
            for begin, end in _pieces(first_row, end_row):
                piece_start = start + begin - first_row
                piece_end = piece_start + end - begin
                output[begin:end] = self._attention(q[begin:end], k[:piece_end], v[:piece_end], piece_start)
        return output

    def _logits(self, hidden: Array, rows: Int32Array) -> Array:  # [len(rows), vocab_size]
        return self._output(rms_norm(hidden[rows], self._output_norm, self._spec.norm_eps))

    def _sample(self, hidden: Array, flat: FlatBatch) -> None:
        table, results = self._table, self._results
        for begin, end in _pieces(0, flat.num_samples):
            logits = self._logits(hidden, flat.sample_rows[begin:end])
            for index, row in zip(range(begin, end), logits, strict=True):
                seat = int(flat.sample_seats[index])
                status, token_id = sample_row(row, RowSampling.of_seat(table, seat))
                results.status[index], results.token_ids[index] = status, token_id
                num_logprobs = int(table.sampling.num_logprobs[seat])
                if num_logprobs >= 0:
                    _store_logprobs(results.sampled, index, row, token_id, num_logprobs)

    def _score_prompts(self, hidden: Array, flat: FlatBatch) -> None:
        for begin, end in _pieces(0, flat.num_prompt_rows):
            logits = self._logits(hidden, flat.prompt_rows[begin:end])
            for index, row in zip(range(begin, end), logits, strict=True):
                target, num_logprobs = int(flat.prompt_targets[index]), int(flat.prompt_num_logprobs[index])
                _store_logprobs(self._results.prompt, index, row, target, num_logprobs)


class _Layer:
    """The weights of one layer, ready to multiply."""

    def __init__(self, weights: Weights, index: int, dtype: WeightDtype) -> None:
        tensors = {slot: weights[f"layers.{index}.{slot}"] for slot in LAYER_SLOTS}

        def linear_of(slot: str) -> Linear:
            return make_linear(tensors[slot].dequantize(), tensors[slot].kind, dtype)

        self.attention_norm = tensors["attention_norm"].dequantize()
        self.mlp_norm = tensors["mlp_norm"].dequantize()
        self.q, self.k, self.v = map(linear_of, ("q", "k", "v"))
        self.attention_output = linear_of("attention_output")
        self.gate, self.up, self.down = map(linear_of, ("gate", "up", "down"))


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
        shape = (2, spec.num_layers, config.num_kv_blocks * config.block_size, spec.num_kv_heads, spec.head_dim)
        self._block_size = config.block_size
        self._is_bf16 = config.kv_dtype == "bf16"
        # [keys and values, layers, slots, G, D]; bf16 is kept as its bits.
        self._slots: NDArray[Any] = np.zeros(shape, np.uint16 if self._is_bf16 else np.float32)

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
            self._slots[kind, layer, slots[rows]] = bf16_bits(values[rows]) if self._is_bf16 else values[rows]

    def read(self, layer: int, block_table: Int32Array, context_len: int) -> tuple[Array, Array]:
        """Return keys and values of positions [0, context_len), each [context_len, G, D]."""
        positions = np.arange(context_len)
        slots = block_table[positions // self._block_size] * self._block_size + positions % self._block_size
        return self._values(0, layer, slots), self._values(1, layer, slots)

    def _values(self, kind: int, layer: int, slots: NDArray[np.intp]) -> Array:
        stored = self._slots[kind, layer, slots]
        return bf16_values(stored.view(np.uint16)) if self._is_bf16 else stored.view(np.float32)


def _store_logprobs(rows: LogprobRows, index: int, logits: Array, token_id: int, num_top: int) -> None:
    logprobs = log_softmax(logits)
    rows.logprob[index] = logprobs[token_id]
    rows.rank[index] = rank_of(logits, token_id)
    top_ids = top_logprobs(logprobs, num_top)
    rows.top_ids[index, :num_top] = top_ids
    rows.top_logprobs[index, :num_top] = logprobs[top_ids]


def _pieces(begin: int, end: int) -> Iterator[tuple[int, int]]:
    for piece in range(begin, end, _ROWS_AT_ONCE):
        yield piece, min(piece + _ROWS_AT_ONCE, end)
