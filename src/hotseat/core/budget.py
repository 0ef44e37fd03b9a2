"""The token budget of a step: a fixed number, or with a latency target as many as its time will hold.

How long a step takes is learned from those that were run:

    seconds = base + decode · decodes + prefill · tokens + read · positions + attend · pairs

A decode reads the positions before it from memory, a prefill multiplies each of its tokens with all positions before:
both grow with the context, at different rates. The coefficients are those with the least squared relative error over
the past steps, none of them negative; older steps count less. Steps with and without prefill are forgotten apart, so
that an hour of decodes does not wipe out what a prefill costs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hotseat.core.batch import Batch
from hotseat.core.config import SchedulerConfig
from hotseat.core.running import RunningSet

__all__ = ["Budget", "PrefillTime", "StepBudget", "StepLoad", "StepTimePredictor"]

MIN_PREFILL = 16  # tokens that a step takes in any case, so that no prompt starves
FIRST_PREFILL = 64  # tokens that a step dares to take when nothing is known
GROWTH = 2  # times the largest prefill seen that a step dares to take
FORGETTING = 0.98  # weight of the past after each step of the same kind
RIDGE = 1e-6  # keeps the equations solvable while some feature was never seen
MIN_STEPS = 4  # before these, the fit says nothing
NUM_SETTLED = 50  # steps after which surprises are doubted
MAX_SURPRISE = 2.0  # a step that took that many times what was predicted, or one part of it, counts as if that was all
TAIL = 0.05  # part of the steps with prefill that may take longer than predicted · margin
TAIL_RATE = 0.02  # how fast the margin follows them
MAX_MARGIN = 1.5
SCALES = (1.0, 64.0, 512.0, 65536.0, 65536.0)  # bring the features to the same size
NUM_FEATURES = len(SCALES)


class StepBudget(NamedTuple):
    """The bounds of one step."""

    tokens: int
    short_share: int  # of these, for short prompts beside a long one
    time: PrefillTime | None = None  # with a latency target: the time for prefills


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

    @property
    def left_s(self) -> float:
        """Seconds that nothing has taken; negative when what is owed took more."""
        return self._left_s

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
        self._share = config.short_prefill_share
        self._short_share = config.short_prefill_tokens // 2
        self._target_s = None if config.target_itl_ms is None else config.target_itl_ms / 1000
        self.predictor = None if self._target_s is None else StepTimePredictor()

    def next(self, running: RunningSet) -> StepBudget:
        """Return the bounds of the next step; with a target its tokens are what the time holds of a fresh prompt."""
        if self._target_s is None or self.predictor is None:
            return StepBudget(self._limit, self._short_share)
        num_decodes, predictor = len(running.decoding), self.predictor
        limit = self._limit - num_decodes
        if not predictor.is_ready:
            return self._bounds(num_decodes, min(limit, FIRST_PREFILL), None)
        num_positions = sum(request.num_computed_tokens + 1 for request in running.decoding.values())
        decode_s = predictor.predict(StepLoad(num_decodes, 0, num_positions, 0))
        time = PrefillTime(self._target_s / predictor.margin - decode_s, *predictor.prefill_rates())
        limit = min(limit, max(FIRST_PREFILL, GROWTH * predictor.largest_prefill))
        return self._bounds(num_decodes, time.fit(0, limit), time)

    def _bounds(self, num_decodes: int, num_prefill: int, time: PrefillTime | None) -> StepBudget:
        share = min(self._short_share, int(num_prefill * self._share))
        return StepBudget(num_decodes + num_prefill, share, time)

    def learn(self, batch: Batch, duration_s: float) -> None:
        """Compare a step that was run with what was expected of it."""
        if self.predictor is None or not batch.chunks:
            return
        decodes, prefills = batch.chunks[: batch.num_decodes], batch.chunks[batch.num_decodes :]
        load = StepLoad(
            num_decodes=batch.num_decodes,
            num_prefill_tokens=batch.num_tokens - batch.num_decodes,
            num_positions=sum(chunk.end for chunk in decodes),
            num_pairs=sum(chunk.num_pairs for chunk in prefills),
        )
        self.predictor.observe(load, duration_s)


class StepLoad(NamedTuple):
    """The work of a step."""

    num_decodes: int
    num_prefill_tokens: int
    num_positions: int  # read by the decodes together
    num_pairs: int  # of a prefill token with a position up to its own

    def features(self) -> list[float]:
        """Return the regression's row."""
        return [value / scale for value, scale in zip((1, *self), SCALES, strict=True)]


class _Moments:
    """Weighted sums over steps: the normal equations of their fit."""

    def __init__(self) -> None:
        self.squares = [[0.0] * NUM_FEATURES for _ in SCALES]
        self.products = [0.0] * NUM_FEATURES

    def add(self, x: list[float], y: float, scale: float) -> None:
        """Take in a step; its weight makes errors relative to ``scale``."""
        weight = 1 / (scale * scale)
        for i, row in enumerate(self.squares):
            weighted = weight * x[i]
            self.squares[i] = [FORGETTING * old + weighted * value for old, value in zip(row, x, strict=True)]
            self.products[i] = FORGETTING * self.products[i] + weighted * y


class StepTimePredictor:
    """Predicts step times, and knows by how much they are exceeded."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.error = 0.0  # running mean of |predicted - taken| / taken
        self.margin = 1.0  # taken / predicted, which all but a few steps stay below
        self.largest_prefill = 0  # tokens
        self._coefficients = [0.0] * NUM_FEATURES
        self._decodes, self._prefills = _Moments(), _Moments()

    @property
    def is_ready(self) -> bool:
        """Tell whether enough steps were seen."""
        return self.num_steps >= MIN_STEPS

    def predict(self, load: StepLoad) -> float:
        """Return the expected seconds of a step."""
        return sum(c * x for c, x in zip(self._coefficients, load.features(), strict=True))

    def prefill_rates(self) -> tuple[float, float]:
        """Return the seconds of one prefill token, and of one pair."""
        return self._coefficients[2] / SCALES[2], self._coefficients[4] / SCALES[4]

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn from a step that took ``seconds``."""
        if seconds <= 0:
            return
        predicted = self.predict(load)
        if self.is_ready and predicted > 0:
            self.error += 0.05 * (abs(predicted - seconds) / seconds - self.error)
            if load.num_prefill_tokens:
                self._follow_tail(seconds / predicted)
        if self.num_steps >= NUM_SETTLED and predicted > 0:
            seconds = min(max(seconds, predicted / MAX_SURPRISE), predicted * MAX_SURPRISE)
        moments = self._prefills if load.num_prefill_tokens else self._decodes
        moments.add(load.features(), seconds, max(seconds, predicted))
        self._fit()
        self.largest_prefill = max(self.largest_prefill, load.num_prefill_tokens)
        self.num_steps += 1

    def _follow_tail(self, ratio: float) -> None:
        self.margin += TAIL_RATE * (1 - TAIL if ratio > self.margin else -TAIL)
        self.margin = min(MAX_MARGIN, max(1.0, self.margin))

    def _fit(self) -> None:
        """Solve for the coefficients; while one is negative, leave out the most negative one."""
        every = range(NUM_FEATURES)
        squares = [[self._decodes.squares[i][j] + self._prefills.squares[i][j] for j in every] for i in every]
        products = [self._decodes.products[i] + self._prefills.products[i] for i in every]
        ridge = RIDGE * max(squares[i][i] for i in every)
        used, solution = list(every), [0.0]
        while used:
            rows = [[squares[i][j] + ridge * (i == j) for j in used] + [products[i]] for i in used]
            solution = _solved(rows)
            lowest = min(range(len(used)), key=solution.__getitem__)
            if solution[lowest] >= 0:
                break
            del used[lowest]
        self._coefficients = [0.0] * NUM_FEATURES
        for i, value in zip(used, solution if used else [], strict=True):
            self._coefficients[i] = value


def _solved(rows: list[list[float]]) -> list[float]:
    """Solve positive definite equations, each a row of coefficients and the right-hand side; ``rows`` is used up."""
    size = len(rows)
    for k, pivot in enumerate(rows):
        for row in rows[k + 1 :]:
            factor = row[k] / pivot[k]
            row[k:] = [value - factor * other for value, other in zip(row[k:], pivot[k:], strict=True)]
    solution = [0.0] * size
    for k in reversed(range(size)):
        known = sum(rows[k][j] * solution[j] for j in range(k + 1, size))
        solution[k] = (rows[k][size] - known) / rows[k][k]
    return solution
