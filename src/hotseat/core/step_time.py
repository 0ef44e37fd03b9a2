"""How long a step will take, learned from those that were run.

    seconds = base + decode · rows + prefill · tokens + context · attended positions

The four coefficients are fitted online by recursive least squares with forgetting, so that they follow the machine.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["StepLoad", "StepTimePredictor"]

FORGETTING = 0.99  # weight of the past after each step
MAX_COVARIANCE = 1000.0  # of a coefficient
MIN_STEPS = 4  # before these, the fit says nothing
FIRST_PREFILL = 64  # tokens of prefill that a step dares to take when nothing is known
GROWTH = 2  # times the largest prefill seen that a step dares to take
MIN_PREFILL = 16  # tokens that a step takes in any case, so that nobody starves
MAX_SURPRISE = 1.0  # a step that took more than that many times longer than predicted counts as if it had been that
SCALES = (1.0, 64.0, 512.0, 65536.0)  # bring the features to the same size


class StepLoad(NamedTuple):
    """What a step computes."""

    num_decodes: int
    num_prefill_tokens: int
    num_attended: int  # positions read by all rows together

    def features(self) -> list[float]:
        """Return the regression's row."""
        values = (1, self.num_decodes, self.num_prefill_tokens, self.num_attended)
        return [value / scale for value, scale in zip(values, SCALES, strict=True)]


class StepTimePredictor:
    """Predicts step times and turns a target into a budget of prefill tokens."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.error = 0.0  # running mean of |predicted - taken| / taken
        self._coefficients = [0.0] * 4
        self._covariance = [[MAX_COVARIANCE / 10 if i == j else 0.0 for j in range(4)] for i in range(4)]
        self._largest_prefill = 0

    def predict(self, load: StepLoad) -> float:
        """Return the expected seconds of a step."""
        return sum(max(0.0, c) * x for c, x in zip(self._coefficients, load.features(), strict=True))

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn from a step that took ``seconds``."""
        if seconds <= 0:
            return
        predicted = self.predict(load)
        if self.num_steps >= MIN_STEPS:
            self.error += 0.05 * (abs(predicted - seconds) / seconds - self.error)
            seconds = min(seconds, predicted * (1 + MAX_SURPRISE)) if predicted > 0 else seconds
        self._fit(load.features(), seconds)
        self._largest_prefill = max(self._largest_prefill, load.num_prefill_tokens)
        self.num_steps += 1

    def prefill_budget(
        self, num_decodes: int, num_attended: int, prefill_start: int, target_s: float, limit: int
    ) -> int:
        """Return how many prefill tokens fit in ``target_s`` beside the decodes, at least a few, at most ``limit``.

        The decodes attend ``num_attended`` positions; the prefill begins at position ``prefill_start`` of its prompt.
        """
        if self.num_steps < MIN_STEPS:
            return min(limit, FIRST_PREFILL)
        low, high = 0, min(limit, max(FIRST_PREFILL, GROWTH * self._largest_prefill))
        while low < high:
            middle = (low + high + 1) // 2
            attended = num_attended + middle * prefill_start + middle * middle // 2
            if self.predict(StepLoad(num_decodes, middle, attended)) <= target_s:
                low = middle
            else:
                high = middle - 1
        return min(limit, max(low, MIN_PREFILL))

    def _fit(self, x: list[float], y: float) -> None:
        covariance = self._covariance
        px = [sum(p * value for p, value in zip(row, x, strict=True)) for row in covariance]
        # Forgetting what brings no news makes the covariance of a feature that is absent for long grow without end.
        forgetting = FORGETTING if max(covariance[i][i] for i in range(4)) < MAX_COVARIANCE else 1.0
        denominator = forgetting + sum(value * p for value, p in zip(x, px, strict=True))
        surprise = y - sum(c * value for c, value in zip(self._coefficients, x, strict=True))
        self._coefficients = [c + p / denominator * surprise for c, p in zip(self._coefficients, px, strict=True)]
        for i, row in enumerate(covariance):
            for j in range(4):
                row[j] = (row[j] - px[i] * px[j] / denominator) / forgetting
