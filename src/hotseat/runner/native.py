"""Compute batches with the C++ kernels: one call a step, the GIL released while it runs."""

from __future__ import annotations

import logging
import os
from dataclasses import asdict
from typing import Any

import numpy as np

from hotseat.core.batch import Batch, StepOutput
from hotseat.errors import ConfigError
from hotseat.machine import usable_cpus
from hotseat.models.spec import DecoderSpec
from hotseat.models.weights import Weights
from hotseat.runner import _native
from hotseat.runner.config import RunnerConfig, kv_tables
from hotseat.runner.determinism import Determinism, native_determinism
from hotseat.runner.groups import check_groups, log_groups
from hotseat.runner.logits_processors import resample
from hotseat.runner.native_weights import load_weights
from hotseat.runner.numa import warn_if_spread
from hotseat.runner.pooling import Pooler
from hotseat.runner.results import StepResults
from hotseat.runner.seats import Float32Array, Ragged, SeatTable

__all__ = ["NativeRunner", "default_threads"]

logger = logging.getLogger(__name__)

_GROUP = 16  # positions of a KV group in the kernels' layout


class NativeRunner:
    """Implement the ``Runner`` protocol with the native decoder.

    Weights are packed once, here; of the stored tensors the embedding alone is read afterwards.

    Raises:
        ConfigError: the instruction set is not on this machine, or block_size does not suit the layout.
    """

    def __init__(self, spec: DecoderSpec, weights: Weights, config: RunnerConfig) -> None:
        if config.block_size % _GROUP:
            raise ConfigError(
                f"block_size must be a multiple of {_GROUP} for the native runner, not {config.block_size}"
            )
        self._config = config
        if config.weight_dtype == "gguf":
            check_groups(spec, weights)
            log_groups(spec, weights)
        self._table = SeatTable(config, spec.vocab_size)
        self._results = StepResults.allocate(config)
        self._pooler = Pooler()
        self._decoder = _native.Decoder(
            _shape(spec, config),
            _limits(config),
            config.weight_dtype,
            resolve_isa(config.isa),
            threads=_threads(config),
        )
        if config.isa == "auto":
            _warn_of_rejected_isas(self._decoder.isa)
        load_weights(self._decoder, spec, weights)
        self._bind()
        self._num_samples = 0  # rows of the last step
        self._list_versions: tuple[int, ...] = ()
        self._bind_lists()
        logger.info(
            "native runner: %s, %s, %d threads, %.0f MB of packed weights",
            config.weight_dtype,
            self._decoder.isa,
            self._decoder.num_threads,
            self._decoder.weight_bytes / 1e6,
        )

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return self._decoder.isa

    @property
    def determinism(self) -> Determinism:
        """The promise about the bits of answers."""
        return native_determinism()

    @property
    def num_threads(self) -> int:
        """Threads that compute a step."""
        return self._decoder.num_threads

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights."""
        return self._decoder.weight_bytes

    def execute(self, batch: Batch) -> StepOutput:
        """Compute all chunks of ``batch`` and sample where ``samples`` is set."""
        self._table.apply(batch)
        self._bind_lists()
        self._table.name_rows(batch.chunks)
        token_ids = self._decoder.step(batch.chunks)
        self._num_samples = len(token_ids)
        if self._table.logits_processors and token_ids:
            rows = self._decoder.logits(len(token_ids))
            resample(self._table, self._results, rows.__getitem__, token_ids)
        output = self._results.to_output(self._table, token_ids)
        self._pooler.pool(batch, self._decoder.hidden, output)
        return output

    @property
    def num_experts_read(self) -> int:
        """Experts that the last step computed, over all layers: the weights of the others were not read."""
        return self._decoder.num_experts_read

    def last_logits(self) -> Float32Array:
        """Return a copy of the logits of the last step's sampling rows, float32[num_samples, vocab_size]."""
        return np.array(self._decoder.logits(self._num_samples))

    def time_steps(self, enabled: bool) -> None:
        """Switch the clock inside the native step on, counting from nothing, or off."""
        self._decoder.time_steps(enabled)

    def step_seconds(self) -> dict[str, float]:
        """Return the seconds of the native steps since ``time_steps(True)``, by kind of work."""
        return self._decoder.step_seconds()

    def close(self) -> None:
        """Release threads and memory; idempotent."""
        self.__dict__.pop("_decoder", None)

    def _bind(self) -> None:
        table, flat, results = self._table, self._table.flat, self._results
        seats = {
            "sampling": table.sampling,
            "tokens": table.tokens,
            "num_tokens": table.num_tokens,
            "num_prompt_tokens": table.num_prompt_tokens,
            "num_drafts": table.num_drafts,
            "first_draft": table.first_draft,
            "capacity": table.capacity,
            "block_tables": table.block_tables,
            "token_masks": table.token_masks,
            "has_mask": table.has_mask,
        }
        batch = {name: value for name in flat.__slots__ if isinstance(value := getattr(flat, name), np.ndarray)}
        self._decoder.bind(
            seats,
            batch,
            {"token_ids": results.token_ids, "status": results.status},
            {name: getattr(results.sampled, name) for name in results.sampled.__slots__},
            {name: getattr(results.prompt, name) for name in results.prompt.__slots__},
        )

    def _bind_lists(self) -> None:
        bias, allowed, banned = self._table.logit_bias, self._table.allowed_ids, self._table.banned_ids
        versions = (bias.version, allowed.version, banned.version)
        if versions != self._list_versions:
            self._decoder.set_sampler_lists(_ragged(bias), _ragged(allowed), _ragged(banned))
            self._list_versions = versions


def resolve_isa(name: str) -> str:
    """Return the kernels' name of an instruction set; ``auto`` is the best that this machine has.

    Raises:
        ConfigError: this machine does not have it.
    """
    supported = _native.supported_isas()
    if name == "auto":
        return supported[-1]
    if name in _native.rejected_isas():
        raise ConfigError(f"isa {name} is on this machine, but its bf16 products are not to the bit as defined")
    if name not in supported:
        raise ConfigError(f"isa {name} is not on this machine, which has {', '.join(supported)}")
    return name


def _warn_of_rejected_isas(isa: str) -> None:
    for name in _native.rejected_isas():
        logger.warning(
            "%s is not used: its bf16 products are not to the bit those of other machines; "
            "%s computes them exactly so, more slowly",
            name,
            isa,
        )


def default_threads() -> int:
    """Return the number of physical cores that this process may use: affinity mask and cgroup quota honoured."""
    return usable_cpus().num_threads


def _threads(config: RunnerConfig) -> int:
    cpus = usable_cpus()
    threads = cpus.num_threads if config.threads is None else config.threads
    logger.info("threads: %d (%s)", threads, cpus)
    if threads > cpus.num_at_once:
        logger.warning(
            "threads is %d, but only %d CPUs may be used: threads that wait for each other's turn make steps slow",
            threads,
            cpus.num_at_once,
        )
    warn_if_spread(os.sched_getaffinity(0), threads)
    return threads


def _shape(spec: DecoderSpec, config: RunnerConfig) -> dict[str, Any]:
    same = (
        *("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim"),
        *("norm_eps", "norm_placement", "has_mlp_norm", "qk_norm", "qk_norm_after_rope", "gated", "activation"),
        *("logit_scale", "embedding_scale", "residual_scale"),
    )
    return {name: getattr(spec, name) for name in same} | {
        "norm_is_layer": spec.norm == "layer",
        # 0 stands for None.
        **{name: getattr(spec, name) or 0.0 for name in ("attention_scale", "attention_softcap", "logit_softcap")},
        "ropes": [
            (list(rope.inverse_frequencies), rope.attention_factor)
            for rope in (one.for_length(config.max_model_len) for one in spec.ropes)
        ],
        "layer_ropes": [-1 if layer.rope is None else layer.rope for layer in spec.layers],
        "experts": None if spec.experts is None else asdict(spec.experts),
        "layer_windows": [layer.window or 0 for layer in spec.layers],
        "layer_tables": kv_tables(spec, config.kv_layout),
    }


def _limits(config: RunnerConfig) -> dict[str, Any]:
    names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_kv_blocks", "block_size", "max_num_drafts")
    return {name: getattr(config, name) for name in names} | {"kv_is_fp32": config.kv_dtype == "fp32"}


def _ragged(ragged: Ragged) -> dict[str, Any]:
    return {"offsets": ragged.offsets, "ids": ragged.ids, "values": ragged.values}
