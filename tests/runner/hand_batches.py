"""Models in memory, and batches built by hand: the scheduler's side of the contract, without a scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from hotseat.core.batch import Batch, BlockAppend, Chunk, NewRequest, Runner, StepOutput
from hotseat.core.request import RequestId, SamplingParams
from hotseat.models.spec import DecoderSpec, RopeSpec, uniform_layers
from hotseat.models.weights import WeightTensor
from hotseat.runner.config import RunnerConfig
from tiny_models import TinyLlama, tiny_weights

GREEDY = SamplingParams(temperature=0.0)

_HF_NAMES = {
    "attention_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "attention_output": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def tiny_spec(model: TinyLlama, rope: RopeSpec | None = None) -> DecoderSpec:
    """Return the spec of ``model``, with plain rotary embeddings unless ``rope`` is given."""
    if rope is None:
        exponents = np.arange(0, model.true_head_dim, 2) / model.true_head_dim
        rope = RopeSpec(inverse_frequencies=tuple((model.rope_theta**-exponents).tolist()))
    return DecoderSpec(
        architecture="llama",
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        layers=uniform_layers(model.num_layers),
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.true_head_dim,
        norm_eps=model.norm_eps,
        ropes=(rope,),
        max_position_embeddings=model.max_position_embeddings,
        tie_word_embeddings=model.tie_word_embeddings,
    )


def f32_tensor(values: np.ndarray) -> WeightTensor:
    """Return ``values`` as a stored F32 tensor."""
    values = np.ascontiguousarray(values, np.float32)
    rows = values if values.ndim == 2 else values[None]
    return WeightTensor(kind="F32", shape=values.shape, data=rows.view(np.uint8))


def memory_weights(model: TinyLlama) -> dict[str, WeightTensor]:
    """Return the weights of ``model`` by slot, as F32 tensors."""
    arrays = tiny_weights(model)
    tensors = {
        "token_embedding": f32_tensor(arrays["model.embed_tokens.weight"]),
        "output_norm": f32_tensor(arrays["model.norm.weight"]),
    }
    if not model.tie_word_embeddings:
        tensors["output"] = f32_tensor(arrays["lm_head.weight"])
    for i in range(model.num_layers):
        for slot, name in _HF_NAMES.items():
            tensors[f"layers.{i}.{slot}"] = f32_tensor(arrays[f"model.layers.{i}.{name}.weight"])
    return tensors


def small_config(**options: object) -> RunnerConfig:
    """Return a small runner configuration in fp32; ``options`` replace fields."""
    values: dict[str, object] = {
        "dtype": "fp32",
        "block_size": 4,
        "num_kv_blocks": 64,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 128,
        "max_model_len": 160,
    }
    return RunnerConfig(**{**values, **options})


class HandScheduler:
    """Seat requests and cut their tokens into chunks as a test says.

    Blocks are handed out in a scrambled order, so that a runner that ignores block tables is found out.
    """

    def __init__(self, runner: Runner, config: RunnerConfig) -> None:
        self.runner = runner
        self.sequences: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.block_ids: dict[str, list[int]] = {}
        self._block_size = config.block_size
        self._seats: dict[str, int] = {}
        self._free_seats = list(range(config.max_num_seqs))
        scrambled = np.random.default_rng(5).permutation(config.num_kv_blocks)
        self._free_blocks: list[int] = scrambled.tolist()
        self._batch = Batch(step=0, chunks=[])

    def seat(
        self,
        request_id: str,
        token_ids: Iterable[int],
        *,
        params: SamplingParams = GREEDY,
        seed: int = 0,
        num_prompt_tokens: int | None = None,
        shared_block_ids: Iterable[int] = (),
        num_computed: int | None = None,
        eos_token_ids: Iterable[int] = (),
        seat: int | None = None,
    ) -> None:
        """Seat a request in the next step; ``shared_block_ids`` hold its first tokens already."""
        tokens = list(token_ids)
        blocks = list(shared_block_ids)
        cached = len(blocks) * self._block_size
        while len(blocks) * self._block_size < len(tokens):
            blocks.append(self._free_blocks.pop())
        chosen = self._free_seats.pop(0 if seat is None else self._free_seats.index(seat))
        self._seats[request_id] = chosen
        self.sequences[request_id] = tokens
        self.computed[request_id] = cached if num_computed is None else num_computed
        self.block_ids[request_id] = blocks
        self._batch.new_requests.append(
            NewRequest(
                seat=chosen,
                request_id=RequestId(request_id),
                token_ids=list(tokens),
                num_prompt_tokens=len(tokens) if num_prompt_tokens is None else num_prompt_tokens,
                block_ids=list(blocks),
                params=params,
                seed=seed,
                eos_token_ids=frozenset(eos_token_ids),
            )
        )

    def release(self, request_id: str, *, keep_blocks: bool = False) -> None:
        """Take a request from its seat in the next step; its blocks are used again unless kept or shared."""
        self._free_seats.insert(0, self._seats.pop(request_id))
        if not keep_blocks:
            blocks = self.block_ids.pop(request_id)
            held = {block for others in self.block_ids.values() for block in others}
            self._free_blocks.extend(block for block in blocks if block not in held)
        self._batch.released_ids.append(RequestId(request_id))

    def batch(self, counts: Mapping[str, int], *, writes_kv: bool = True) -> Batch:
        """Return the next batch: ``counts[id]`` tokens of each request, in that order."""
        batch, self._batch = self._batch, Batch(step=self._batch.step + 1, chunks=[])
        newly_seated = {seating.request_id for seating in batch.new_requests}
        for request_id, count in counts.items():
            start = self.computed[request_id]
            end = start + count
            blocks, grown = self.block_ids[request_id], []
            while len(blocks) * self._block_size < end:
                grown.append(self._free_blocks.pop())
                blocks.append(grown[-1])
            if grown:
                assert request_id not in newly_seated, "a seated request has blocks for all that it knows"
                batch.block_appends.append(BlockAppend(self._seats[request_id], grown))
            samples = end == len(self.sequences[request_id])
            batch.chunks.append(Chunk(self._seats[request_id], RequestId(request_id), start, end, samples, writes_kv))
            batch.num_tokens += count
            self.computed[request_id] = end
        return batch

    def step(self, counts: Mapping[str, int], *, writes_kv: bool = True) -> StepOutput:
        """Execute the next batch and append what it sampled."""
        output = self.runner.execute(self.batch(counts, writes_kv=writes_kv))
        for sampled in output.sampled:
            self.sequences[sampled.request_id] += sampled.token_ids
        return output

    def decode(self, *request_ids: str, steps: int) -> None:
        """Let requests that have one token to compute decode together."""
        for _ in range(steps):
            self.step(dict.fromkeys(request_ids, 1))
