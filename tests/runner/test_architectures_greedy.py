"""Greedy tokens of every architecture: those of transformers, alone and in a crowd that is preempted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("hotseat.runner._native")

from hotseat import LLM, SamplingParams
from twins import TWINS, VOCAB_SIZE, greedy, write_twin

pytestmark = pytest.mark.oracle

NUM_PROMPTS, PROMPT_LENGTH, NUM_TOKENS = 8, 21, 32


@pytest.mark.parametrize("name", list(TWINS))
def test_greedy_tokens_are_those_of_transformers_alone_and_together(name: str, tmp_path: Path) -> None:
    prompts = np.random.default_rng(5).integers(3, VOCAB_SIZE, (NUM_PROMPTS, PROMPT_LENGTH)).tolist()
    expected = write_twin(TWINS[name], tmp_path, also=lambda model: greedy(model, prompts, NUM_TOKENS))
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    # An answer needs four blocks in the end, six seats share twelve: the crowd is preempted again and again.
    llm = LLM(
        str(tmp_path), dtype="fp32", max_model_len=64, num_kv_blocks=12, max_num_seqs=6, enable_prefix_caching=False
    )
    try:
        together = [answer.outputs[0].token_ids for answer in llm.generate(prompts, params)]
        alone = [llm.generate([prompt], params)[0].outputs[0].token_ids for prompt in prompts[:2]]
    finally:
        llm.close()
    assert alone == together[:2]
    assert together == expected
