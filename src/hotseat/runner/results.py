"""The results of a step, as flat arrays, and as the ``StepOutput`` that the scheduler reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from itertools import repeat

import numpy as np

from hotseat.core.batch import SampledTokens, StepOutput, TokenLogprobs
from hotseat.core.request import MAX_LOGPROBS
from hotseat.runner.config import RunnerConfig
from hotseat.runner.seats import FlatBatch, Float32Array, Int32Array, PromptSpan, SeatTable, UInt8Array

__all__ = ["LogprobRows", "SampleStatus", "StepResults"]


class SampleStatus(IntEnum):
    """The outcome of sampling a row."""

    OK = 0
    NOT_FINITE = 1
    NO_CANDIDATE = 2
    PROCESSOR = 3


_sampled_tokens = partial(tuple.__new__, SampledTokens)  # of a tuple; see core/step_builder.py

_FAILURES = {
    SampleStatus.NOT_FINITE: "the model's logits are not finite",
    SampleStatus.NO_CANDIDATE: "no token may be sampled: all are masked",
    SampleStatus.PROCESSOR: "one of its logits_processors failed; the log says how",
}


@dataclass(slots=True)
class LogprobRows:
    """Log-probabilities of ``num_rows`` rows; of the top arrays as many columns are in use as were asked for.

    A row whose logits are not finite has a NaN ``logprob``.
    """

    logprob: Float32Array  # [num_rows], of the chosen token
    rank: Int32Array  # [num_rows], of the chosen token
    top_ids: Int32Array  # [num_rows, MAX_LOGPROBS]
    top_logprobs: Float32Array  # [num_rows, MAX_LOGPROBS]

    @staticmethod
    def allocate(num_rows: int) -> LogprobRows:
        """Return empty arrays."""
        return LogprobRows(
            logprob=np.zeros(num_rows, np.float32),
            rank=np.zeros(num_rows, np.int32),
            top_ids=np.zeros((num_rows, MAX_LOGPROBS), np.int32),
            top_logprobs=np.zeros((num_rows, MAX_LOGPROBS), np.float32),
        )

    def entry(self, row: int, token_id: int, num_top: int) -> TokenLogprobs:
        """Return one row as a value."""
        top_ids = self.top_ids[row, :num_top].tolist()
        top_logprobs = self.top_logprobs[row, :num_top].tolist()
        logprob, rank = float(self.logprob[row]), int(self.rank[row])
        return TokenLogprobs(token_id, logprob, rank, list(zip(top_ids, top_logprobs, strict=True)))


@dataclass(slots=True)
class StepResults:
    """Arrays for the tokens that a runner samples; allocated once, row i belongs to ``sample_rows[i]``."""

    token_ids: Int32Array  # [max_num_samples]
    status: UInt8Array  # [max_num_samples], a SampleStatus
    sampled: LogprobRows  # [max_num_seqs], filled where the seat wants log-probabilities
    prompt: LogprobRows  # [max_num_batched_tokens], row i belongs to prompt_rows[i]

    @staticmethod
    def allocate(config: RunnerConfig) -> StepResults:
        """Return empty arrays for the largest step."""
        return StepResults(
            token_ids=np.zeros(config.max_num_samples, np.int32),
            status=np.zeros(config.max_num_samples, np.uint8),
            sampled=LogprobRows.allocate(config.max_num_samples),
            prompt=LogprobRows.allocate(config.max_num_batched_tokens),
        )

    def listed_ids(self, num_samples: int) -> list[int | None]:
        """Return what was sampled; ``None`` where that failed."""
        token_ids, statuses = self.token_ids[:num_samples].tolist(), self.status[:num_samples].tolist()
        return [id_ if status == SampleStatus.OK else None for id_, status in zip(token_ids, statuses, strict=True)]

    def to_output(self, table: SeatTable, token_ids: Sequence[int | None]) -> StepOutput:
        """Return what the scheduler reads; ``token_ids`` are as in ``listed_ids``."""
        flat = table.flat
        rows: Sequence[int] = range(len(token_ids))
        lists = [[token_id] for token_id in token_ids]
        if table.has_drafts:
            lists, rows = table.verified(token_ids)
        assert len(lists) == len(flat.sample_ids), "tokens for each chunk that samples"
        sampled = list(map(_sampled_tokens, zip(flat.sample_ids, lists, repeat(None))))
        if table.wants_logprobs:
            sampled = [self._with_logprobs(row, tokens, table) for row, tokens in zip(rows, sampled, strict=True)]
        output = StepOutput(sampled=sampled)
        if None in token_ids:
            statuses = zip(flat.sample_ids, self.status[list(rows)].tolist(), strict=True)
            output.failed = {request_id: _FAILURES[status] for request_id, status in statuses if status}
        for span in flat.prompt_spans:
            output.prompt_logprobs[span.request_id] = self._span(span, flat)
            if not np.isfinite(self.prompt.logprob[span.begin : span.end]).all():
                output.failed[span.request_id] = _FAILURES[SampleStatus.NOT_FINITE]
        if output.failed:
            output.sampled = [tokens for tokens in sampled if tokens.request_id not in output.failed]
        return output

    def _with_logprobs(self, row: int, tokens: SampledTokens, table: SeatTable) -> SampledTokens:
        num_top = int(table.sampling["num_logprobs"][table.flat.sample_seats[row]])
        if num_top < 0 or tokens.token_ids[0] is None:
            return tokens
        entries = [self.sampled.entry(row + i, token_id, num_top) for i, token_id in enumerate(tokens.token_ids)]
        return tokens._replace(logprobs=entries)

    def _span(self, span: PromptSpan, flat: FlatBatch) -> list[TokenLogprobs]:
        targets = flat.prompt_targets[span.begin : span.end].tolist()
        rows = range(span.begin, span.end)
        return [self.prompt.entry(row, target, span.num_logprobs) for row, target in zip(rows, targets, strict=True)]
