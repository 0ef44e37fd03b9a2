"""How long a step will take, learned from those that were run.

    seconds = base + decode · decodes + prefill · tokens + read · positions + attend · pairs

A decode reads the positions before it from memory, a prefill multiplies each of its tokens with all positions before:
both grow with the context, at different rates. The coefficients are those with the least squared relative error over
the past steps, none of them negative; older steps count less. Steps with and without prefill are forgotten apart, so
that an hour of decodes does not wipe out what a prefill costs.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["StepLoad", "StepTimePredictor"]

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


class StepLoad(NamedTuple):
    """What a step computes."""

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
        for i, value in zip(used, solution, strict=bool(used)):
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
