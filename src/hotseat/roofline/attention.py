"""Time the attention of real steps over a KV cache that is too large for any cache.

The model keeps its heads and loses everything else: its hidden size is a few floats, and it has as many layers as it
takes to outgrow the caches. The native runner does the steps and tells how long their attention took.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hotseat.core.batch import Batch, Chunk, NewRequest
from hotseat.core.request import RequestId, SamplingParams
from hotseat.models.spec import DecoderSpec, slot_shapes, uniform_layers
from hotseat.models.weights import WeightTensor
from hotseat.roofline.limits import Work, cold_bytes
from hotseat.roofline.points import Measure, Point
from hotseat.roofline.shapes import attention_operations, kv_bytes_per_token
from hotseat.runner.config import KvDtype, RunnerConfig
from hotseat.runner.native import NativeRunner

__all__ = ["attention_point"]

_BLOCK = 16  # tokens
_FILL_SEATS = 64  # blocks that are filled in one step
_HIDDEN = 64
_MAX_LAYERS = 256


def attention_point(
    spec: DecoderSpec, kv_dtype: KvDtype, isa: str, context: int, streams: int, queries: int, *, threads: int
) -> tuple[Point, Measure]:
    """Return a measurement: ``streams`` sequences of ``context`` tokens compute their last ``queries`` tokens."""
    queries = min(queries, context)
    is_decode = queries == 1
    small = _attention_only(spec)
    # A decode reads its cache once, so the cache must be cold; a prefill reads it many times.
    cache_bytes = cold_bytes() if is_decode else 0
    num_layers = min(_MAX_LAYERS, 1 + cache_bytes // (streams * context * kv_bytes_per_token(small, kv_dtype)))
    small = replace(small, layers=uniform_layers(num_layers))
    world = _World(small, kv_dtype, isa, context, streams, queries, threads)
    pairs = streams * sum(range(context - queries + 1, context + 1))
    work = Work(
        num_bytes=streams * context * kv_bytes_per_token(small, kv_dtype) // num_layers,
        num_operations=attention_operations(small, pairs) // num_layers,
        dtype=kv_dtype,
    )
    point = Point(
        kind="decode attention" if is_decode else "prefill attention",
        name=f"{streams} sequences" if is_decode else f"{queries} rows",
        size=context,
        dtype=kv_dtype,
        isa=isa,
        work=work,
    )
    return point, world.seconds_per_layer


def _attention_only(spec: DecoderSpec) -> DecoderSpec:
    return replace(
        spec,
        hidden_size=_HIDDEN,
        intermediate_size=_HIDDEN,
        vocab_size=_HIDDEN,
        layers=uniform_layers(1),
        tie_word_embeddings=True,
    )


def _random_weights(spec: DecoderSpec) -> dict[str, WeightTensor]:
    """Return F32 tensors; those of one shape share their memory."""
    rng = np.random.default_rng(0)
    tensors: dict[tuple[int, ...], WeightTensor] = {}
    for shape in slot_shapes(spec).values():
        if shape not in tensors:
            values = rng.standard_normal(shape, np.float32) * np.float32(0.1)
            data = values.reshape(-1, shape[-1]).view(np.uint8)
            tensors[shape] = WeightTensor(kind="F32", shape=shape, data=data)
    return {slot: tensors[shape] for slot, shape in slot_shapes(spec).items()}


class _World:
    """A runner whose KV cache is full, and one batch that it computes again and again."""

    def __init__(
        self, spec: DecoderSpec, kv_dtype: KvDtype, isa: str, context: int, streams: int, queries: int, threads: int
    ) -> None:
        blocks_each = -(-context // _BLOCK)
        num_blocks = streams * blocks_each
        config = RunnerConfig(
            dtype="fp32",
            kv_cache_dtype=kv_dtype,
            isa=isa,
            threads=threads,
            block_size=_BLOCK,
            num_kv_blocks=num_blocks,
            max_num_seqs=max(streams, _FILL_SEATS),
            max_num_batched_tokens=max(streams * queries, _FILL_SEATS * _BLOCK),
            max_model_len=max(context, _BLOCK),
        )
        self._num_layers = spec.num_layers
        self._runner = NativeRunner(spec, _random_weights(spec), config)
        blocks = list(range(num_blocks))
        random.Random(0).shuffle(blocks)  # as they lie after a while of service
        filled: list[RequestId] = []
        for batch in _filling(blocks):
            self._runner.execute(batch)
            filled = [chunk.request_id for chunk in batch.chunks]
        seated = [
            _seating(seat, f"s{seat}", context, blocks[seat * blocks_each : (seat + 1) * blocks_each])
            for seat in range(streams)
        ]
        chunks = [
            Chunk(place.seat, place.request_id, context - queries, context, samples=False, writes_kv=True)
            for place in seated
        ]
        self._batch = Batch(step=0, chunks=chunks, num_tokens=streams * queries)
        self._runner.execute(Batch(step=0, chunks=chunks, new_requests=seated, released_ids=filled))

    def seconds_per_layer(self) -> float:
        """Run one step and return the time of its attention, per layer."""
        self._runner.time_steps(True)
        self._runner.execute(self._batch)
        return self._runner.step_seconds()["attention"] / self._num_layers


def _filling(blocks: list[int]) -> Iterator[Batch]:
    """Yield batches that write every block: each is a sequence of its own, which costs least."""
    released: list[RequestId] = []
    for start in range(0, len(blocks), _FILL_SEATS):
        part = blocks[start : start + _FILL_SEATS]
        seated = [_seating(seat, f"b{block}", _BLOCK, [block]) for seat, block in enumerate(part)]
        chunks = [Chunk(place.seat, place.request_id, 0, _BLOCK, samples=False) for place in seated]
        yield Batch(step=0, chunks=chunks, new_requests=seated, released_ids=released)
        released = [place.request_id for place in seated]


def _seating(seat: int, name: str, num_tokens: int, block_ids: list[int]) -> NewRequest:
    token_ids = [index % _HIDDEN for index in range(num_tokens)]
    return NewRequest(
        seat,
        RequestId(name),
        token_ids,
        num_prompt_tokens=num_tokens,
        block_ids=block_ids,
        params=SamplingParams(temperature=0.0),
        seed=0,
        eos_token_ids=frozenset(),
    )
