"""Requests of the engine's own, run before the first request of a client."""

from __future__ import annotations

from hotseat.core.config import SchedulerConfig
from hotseat.core.request import Request, RequestId, SamplingParams
from hotseat.engine.step_loop import StepLoop

__all__ = ["warm_up"]

PROMPT_LENS = (256, 64, 16)
MAX_TOKENS = 4


def warm_up(loop: StepLoop, config: SchedulerConfig) -> None:
    """Let ``loop`` compute a few prompts and tokens and show the scheduler how long steps take on this machine."""
    room = min(config.max_model_len, config.max_cached_tokens) - MAX_TOKENS
    requests = [
        Request(
            id=RequestId(f"warm-up-{prompt_len}"),
            prompt_token_ids=[index % 2 for index in range(prompt_len)],  # any model has two tokens
            params=SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True),
            arrived_at=loop.clock.now(),
            cache_salt="warm-up",
        )
        for prompt_len in PROMPT_LENS
        if prompt_len <= room
    ]
    for _ in loop.run(requests):
        pass
    while loop.has_work:  # the runner has yet to hear of the last ends
        loop.step()
