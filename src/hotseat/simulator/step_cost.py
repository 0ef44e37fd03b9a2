"""The duration of a simulated step: base + decodes + prefill tokens + attention."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hotseat.core.batch import Batch
from hotseat.errors import ConfigError

__all__ = ["StepCost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """seconds = base + per_token · tokens computed + per_context_token · positions that they attend to.

    A token attends to all positions before it and to its own, so a decode at position p costs p + 1 of them and a
    chunk ``[start, end)`` costs ``(end - start) · (start + 1 + end) / 2``.
    """

    base_s: float
    per_token_s: float
    per_context_token_s: float

    @classmethod
    def parse(cls, text: str) -> StepCost:
        """Read ``base_s,per_token_s,per_context_token_s``.

        Raises:
            ConfigError: these are not three numbers of at least 0, or all are 0.
        """
        try:
            numbers = [float(part) for part in text.split(",")]
        except ValueError:
            numbers = []
        if len(numbers) != 3 or not all(0 <= number < math.inf for number in numbers) or not any(numbers):
            raise ConfigError(
                "step_cost must be base_s,per_token_s,per_context_token_s (three numbers of at least 0, "
                f"not all of them 0), not {text!r}"
            )
        return cls(base_s=numbers[0], per_token_s=numbers[1], per_context_token_s=numbers[2])

    def __call__(self, batch: Batch) -> float:
        """Return the seconds that ``batch`` takes; nothing to compute takes no time."""
        if not batch.chunks:
            return 0.0
        num_decodes = batch.num_decodes
        num_attended = sum([chunk[3] for chunk in batch.chunks[:num_decodes]])  # Chunk.end; paid for every running one
        for chunk in batch.chunks[num_decodes:]:
            num_attended += chunk.num_pairs
        return self.base_s + self.per_token_s * batch.num_tokens + self.per_context_token_s * num_attended

    def describe(self) -> str:
        """Return the formula with its numbers."""
        rates = f"{self.per_token_s:g} s a token + {self.per_context_token_s:g} s a position attended to"
        return f"{self.base_s:g} s + {rates}"

    def __str__(self) -> str:
        return f"{self.base_s:g},{self.per_token_s:g},{self.per_context_token_s:g}"
