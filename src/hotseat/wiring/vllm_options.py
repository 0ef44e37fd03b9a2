# ruff: noqa: RUF009  # the calls in its fields make fields
"""vLLM's engine options that are not options here, in one table: what is taken without effect, and what is refused.

An option whose value cannot change an answer is taken with a warning that says what does its work here. One that asks
for another answer, or for something that is not there, is refused with the word to use.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, fields
from typing import Any

from hotseat.errors import ConfigError

__all__ = ["VllmOptions"]

logger = logging.getLogger(__name__)


def _ignored(why: str) -> Any:
    """A field without effect, whatever its value; ``why`` says what does its work."""
    return field(default=None, metadata={"hidden": True, "help": why, "takes": None})


def _only(why: str, *takes: object) -> Any:
    """A field that takes these values alone, which ask for what is there anyway."""
    return field(default=None, metadata={"hidden": True, "help": why, "takes": takes})


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """vLLM's options that have no effect, or whose effect is not there.

    Raises:
        ConfigError: a value asks for what is not there; the message names what to use.
    """

    # Memory and speed: no answer depends on them.
    gpu_memory_utilization: float | None = _ignored("kv_cache_memory_bytes is the size of the KV cache")
    swap_space: float | None = _ignored("preempted requests are computed again, nothing is swapped")
    cpu_offload_gb: float | None = _ignored("the model is in this machine's memory")
    num_gpu_blocks_override: int | None = _only("num_kv_blocks is the number of blocks")
    enforce_eager: bool | None = _ignored("no graphs are captured")
    max_seq_len_to_capture: int | None = _ignored("no graphs are captured")
    compilation_config: dict[str, Any] | int | None = _ignored("kernels are compiled when Hotseat is built")
    enable_chunked_prefill: bool | None = _ignored("prompts are always computed in chunks (max_num_batched_tokens)")
    preemption_mode: str | None = _ignored("preempted requests are computed again")
    async_scheduling: bool | None = _ignored("a step is planned when the one before has ended")
    disable_custom_all_reduce: bool | None = _ignored("one process computes")
    disable_async_output_proc: bool | None = _ignored("a step's tokens leave at its end")
    disable_cascade_attn: bool | None = _ignored("each sequence attends to its own blocks")
    num_scheduler_steps: int | None = _ignored("every step is scheduled")
    use_v2_block_manager: bool | None = _ignored("there is one block manager")
    disable_log_stats: bool | None = _ignored("LLM logs no statistics")
    trust_remote_code: bool | None = _ignored("code that comes with a model is never run")
    guided_decoding_backend: str | None = _ignored("llguidance holds answers to their form")
    distributed_executor_backend: str | None = _ignored("one process computes")
    max_parallel_loading_workers: int | None = _ignored("files are mapped, not loaded")
    # One machine's CPUs.
    tensor_parallel_size: int | None = _only("one process computes, with `threads` threads", 1)
    pipeline_parallel_size: int | None = _only("one process computes, with `threads` threads", 1)
    data_parallel_size: int | None = _only("start several servers behind a balancer", 1)
    enable_expert_parallel: bool | None = _only("one process computes", False)
    device: str | None = _only("models run on CPUs", "auto", "cpu")
    # What would change the answer.
    tokenizer: str | None = _only("a model is read with its own tokenizer")
    tokenizer_mode: str | None = _only("there is one kind of tokenizer", "auto", "hf")
    tokenizer_revision: str | None = _only("revision names model and tokenizer")
    skip_tokenizer_init: bool | None = _only("SamplingParams(detokenize=False) leaves texts out", False)
    quantization: str | None = _only("dtype says it: int8, bf16, fp32, or gguf for the bits of a GGUF file", "gguf")
    config_format: str | None = _only("the file's own format is recognised", "auto", "hf")
    hf_overrides: dict[str, Any] | None = _only("a model is run as its files describe it; edit its config.json")
    rope_scaling: dict[str, Any] | None = _only("a model is run as its files describe it; edit its config.json")
    rope_theta: float | None = _only("a model is run as its files describe it; edit its config.json")
    override_generation_config: dict[str, Any] | None = _only("pass SamplingParams, or generation_config=vllm")
    disable_sliding_window: bool | None = _only("a model is run as its files describe it", False)
    task: str | None = _only("a model that writes text is loaded", "auto", "generate")
    enable_lora: bool | None = _only("merge the adapter into the model first", False)
    max_loras: int | None = _only("merge the adapter into the model first")
    max_lora_rank: int | None = _only("merge the adapter into the model first")
    max_logprobs: int | None = _only("at most 20 log-probabilities are given for a token", *range(21))
    limit_mm_per_prompt: dict[str, Any] | None = _ignored("prompts are text")
    logits_processors: str | None = _only("say SamplingParams(logits_processors=[...])")

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None:
                _take(one.name, value, one.metadata["takes"], one.metadata["help"])


# What vLLM's users write without a thought, and what is an option of the server besides: not worth a line.
_UNSAID = {("tensor_parallel_size", 1), ("pipeline_parallel_size", 1), ("disable_log_stats", True)}
_UNSAID |= {("disable_log_stats", False), ("enable_chunked_prefill", True)}


def _take(name: str, value: Any, takes: tuple[object, ...] | None, why: str) -> None:
    if takes is not None and value not in takes:
        raise ConfigError(f"{name} = {value!r} is not supported: {why}")
    if (name, value) not in _UNSAID:
        logger.warning("%s = %r has no effect: %s", name, value, why)
