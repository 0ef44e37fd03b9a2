"""How many tokens a step may compute."""

from __future__ import annotations

from collections.abc import Iterable

from hotseat.core.batch import Batch, Chunk
from hotseat.core.config import SchedulerConfig
from hotseat.core.running import RunningSet
from hotseat.core.step_time import StepLoad, StepTimePredictor

__all__ = ["Budget"]

MAX_MARGIN = 0.1  # part of the target that is kept for the error of the prediction


class Budget:
    """A fixed number of tokens, or with ``target_itl_ms`` as many as are predicted to be computed in that time.

    Decodes are never dropped for the target, and prefill gets a few tokens in any case.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._limit = config.max_num_batched_tokens
        self._target_s = None if config.target_itl_ms is None else config.target_itl_ms / 1000
        self.predictor = None if self._target_s is None else StepTimePredictor()

    def tokens(self, running: RunningSet) -> int:
        """Return the budget of the next step."""
        if self._target_s is None or self.predictor is None:
            return self._limit
        num_decodes = len(running.decoding)
        num_attended = sum(request.num_computed_tokens + 1 for request in running.decoding.values())
        start = min((request.num_computed_tokens for request in running.prefilling.values()), default=0)
        target_s = self._target_s * (1 - min(MAX_MARGIN, self.predictor.error / 2))
        limit = self._limit - num_decodes
        return num_decodes + self.predictor.prefill_budget(num_decodes, num_attended, start, target_s, limit)

    def learn(self, batch: Batch, duration_s: float) -> None:
        """Compare a step that was run with what was expected of it."""
        if self.predictor is not None and batch.chunks:
            num_prefill_tokens = batch.num_tokens - batch.num_decodes
            load = StepLoad(batch.num_decodes, num_prefill_tokens, _num_attended(batch.chunks))
            self.predictor.observe(load, duration_s)


def _num_attended(chunks: Iterable[Chunk]) -> int:
    """Return the positions that all rows read: a row reads all before it, and itself."""
    return sum((chunk.end - chunk.start) * (chunk.start + chunk.end + 1) // 2 for chunk in chunks)
