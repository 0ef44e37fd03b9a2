"""Greedy tokens of every architecture: those of transformers, alone and in a crowd that is preempted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("hotseat.runner._native")

from hotseat import LLM, SamplingParams
from hotseat.models import load
from hotseat.runner.config import kv_bytes_per_block
from twins import TWINS, VOCAB_SIZE, greedy, write_twin

pytestmark = pytest.mark.oracle

NUM_PROMPTS, PROMPT_LENGTH, NUM_TOKENS = 8, 21, 32
# One of each kind of arithmetic; the logits of all are compared in test_architectures.
NAMES = ("llama-biased", "qwen3", "gemma2", "gemma3", "phi3", "olmo3", "granite", "command-r7b", "gpt2", "pythia")
WITH_EXPERTS = ("qwen2-moe", "dots1", "ernie4_5-moe", "gpt-oss")


@pytest.mark.parametrize("name", NAMES + WITH_EXPERTS)
def test_greedy_tokens_are_those_of_transformers_alone_and_together(name: str, tmp_path: Path) -> None:
    prompts = np.random.default_rng(5).integers(3, VOCAB_SIZE, (NUM_PROMPTS, PROMPT_LENGTH)).tolist()
    expected = write_twin(TWINS[name], tmp_path, also=lambda model: greedy(model, prompts, NUM_TOKENS))
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    # An answer needs four blocks in the end, six seats share twelve: the crowd is preempted again and again.
    memory = 12 * kv_bytes_per_block(load(str(tmp_path)).spec, "fp32", 16)
    llm = LLM(
        str(tmp_path),
        dtype="fp32",
        max_model_len=64,
        kv_cache_memory_bytes=memory,
        max_num_seqs=6,
        enable_prefix_caching=False,
        threads=1,
    )
    try:
        together = [answer.outputs[0].token_ids for answer in llm.generate(prompts, params)]
        alone = llm.generate([prompts[0]], params)[0].outputs[0].token_ids
    finally:
        llm.close()
    assert together == expected
    assert alone == expected[0]
