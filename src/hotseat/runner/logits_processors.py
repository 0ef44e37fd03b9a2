"""Rows of logits that Python callables of their requests change before they are sampled.

A row depends on its own request alone, so its neighbours do not change it. It is sampled by the NumPy sampler, which is
the definition; the native runner replaces by it what it has sampled itself.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable

import numpy as np

from hotseat.core.sampling_params import LogitsProcessor
from hotseat.runner.results import SampleStatus, StepResults
from hotseat.runner.sampling_reference import RowSampling, choose_token, store_logprobs
from hotseat.runner.seats import Float32Array, SeatTable

__all__ = ["resample", "sample_processed"]

logger = logging.getLogger(__name__)


def sample_processed(table: SeatTable, seat: int, logits: Float32Array) -> tuple[SampleStatus, int]:
    """Choose the next token of ``seat`` from what its processors make of ``logits`` float32[V]."""
    if not np.isfinite(logits).all():
        return SampleStatus.NOT_FINITE, 0
    sampling = RowSampling.of_seat(table, seat)
    processed = _process(table.logits_processors[seat], sampling, logits)
    return (SampleStatus.PROCESSOR, 0) if processed is None else choose_token(processed, sampling)


def resample(
    table: SeatTable, results: StepResults, row_of: Callable[[int], Float32Array], token_ids: list[int | None]
) -> None:
    """Sample the rows again that have processors, after a step that has appended its tokens to the seats.

    ``row_of(row)`` is the row's logits. Its token is replaced in ``token_ids``, ``results`` and ``table``.
    """
    for row, seat in enumerate(table.flat.sample_seats[: len(token_ids)].tolist()):
        if seat not in table.logits_processors:
            continue
        logits = row_of(row)
        table.num_tokens[seat] -= 1
        status, token_id = sample_processed(table, seat, logits)
        table.tokens[seat, table.num_tokens[seat]] = token_id
        table.num_tokens[seat] += 1
        results.status[row], results.token_ids[row] = status, token_id
        token_ids[row] = token_id if status == SampleStatus.OK else None
        num_logprobs = int(table.sampling["num_logprobs"][seat])
        if num_logprobs >= 0:
            store_logprobs(results.sampled, row, logits, token_id, num_logprobs)


def _process(
    processors: tuple[LogitsProcessor, ...], sampling: RowSampling, logits: Float32Array
) -> Float32Array | None:
    """Return the changed row, float32[V]; ``None`` where a processor failed, which is logged."""
    row: Float32Array = logits.copy()
    prompt_ids, output_ids = sampling.prompt_ids.tolist(), sampling.output_ids.tolist()
    try:
        for processor in processors:
            takes_prompt = len(inspect.signature(processor).parameters) == 3
            row = processor(prompt_ids, output_ids, row) if takes_prompt else processor(output_ids, row)
        row = np.ascontiguousarray(row, np.float32)
        if row.shape != logits.shape or np.isnan(row).any() or np.isposinf(row).any():
            raise ValueError(f"it must return float32[{len(logits)}] without NaN and +inf")
    except Exception as error:  # whatever a user's function raises ends its own request
        logger.warning("a logits processor failed: %s: %s", type(error).__name__, error)
        return None
    return row
