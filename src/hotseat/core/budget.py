"""How much a step may compute."""

from __future__ import annotations

import math

from hotseat.core.batch import Batch
from hotseat.core.config import SchedulerConfig
from hotseat.core.running import RunningSet
from hotseat.core.step_time import StepLoad, StepTimePredictor

__all__ = ["Budget", "PrefillTime"]

MIN_PREFILL = 16  # tokens that a step takes in any case, so that nobody starves
FIRST_PREFILL = 64  # tokens that a step dares to take when nothing is known
GROWTH = 2  # times the largest prefill seen that a step dares to take


class PrefillTime:
    """The seconds that one step has for prefill, after its decodes.

    A token costs the more, the further back it looks, so the same seconds hold few tokens of a prompt that is far
    advanced and many of a fresh one.
    """

    def __init__(self, seconds: float, per_token_s: float, per_pair_s: float) -> None:
        self._left_s = seconds
        self._per_token_s = per_token_s
        self._per_pair_s = per_pair_s
        self._num_owed = MIN_PREFILL

    def fit(self, start: int, limit: int) -> int:
        """Return how many tokens from position ``start`` on fit, at most ``limit``: at least what is owed anyway."""
        linear, square = self._per_token_s + self._per_pair_s * (start + 0.5), self._per_pair_s / 2
        left_s = max(0.0, self._left_s)
        if limit * (linear + square * limit) <= left_s:
            return limit
        # The positive root of square · n² + linear · n = left, in the form that stays exact for a small square.
        size = int(2 * left_s / (linear + math.sqrt(linear * linear + 4 * square * left_s)))
        return min(limit, max(size, self._num_owed))

    def take(self, start: int, limit: int) -> int:
        """Take the time of as many tokens as ``fit``; return how many."""
        size = self.fit(start, limit)
        self._left_s -= size * (self._per_token_s + self._per_pair_s * (start + (size + 1) / 2))
        self._num_owed = max(0, self._num_owed - size)
        return size


class Budget:
    """A fixed number of tokens, or with ``target_itl_ms`` as many as are predicted to be computed in that time.

    Decodes are never dropped for the target, and prefill gets a few tokens in any case.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._limit = config.max_num_batched_tokens
        self._target_s = None if config.target_itl_ms is None else config.target_itl_ms / 1000
        self.predictor = None if self._target_s is None else StepTimePredictor()

    def next(self, running: RunningSet) -> tuple[int, PrefillTime | None]:
        """Return the tokens of the next step, and with a target the time for those of prefills.

        The tokens are what the time holds of a prompt that begins.
        """
        if self._target_s is None or self.predictor is None:
            return self._limit, None
        num_decodes, predictor = len(running.decoding), self.predictor
        limit = self._limit - num_decodes
        if not predictor.is_ready:
            return num_decodes + min(limit, FIRST_PREFILL), None
        num_positions = sum(request.num_computed_tokens + 1 for request in running.decoding.values())
        decode_s = predictor.predict(StepLoad(num_decodes, 0, num_positions, 0))
        time = PrefillTime(self._target_s / predictor.margin - decode_s, *predictor.prefill_rates())
        limit = min(limit, max(FIRST_PREFILL, GROWTH * predictor.largest_prefill))
        return num_decodes + time.fit(0, limit), time

    def learn(self, batch: Batch, duration_s: float) -> None:
        """Compare a step that was run with what was expected of it."""
        if self.predictor is None or not batch.chunks:
            return
        decodes, prefills = batch.chunks[: batch.num_decodes], batch.chunks[batch.num_decodes :]
        load = StepLoad(
            num_decodes=batch.num_decodes,
            num_prefill_tokens=batch.num_tokens - batch.num_decodes,
            num_positions=sum(chunk.end for chunk in decodes),
            num_pairs=sum((chunk.end - chunk.start) * (chunk.start + chunk.end + 1) // 2 for chunk in prefills),
        )
        self.predictor.observe(load, duration_s)
