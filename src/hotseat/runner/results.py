"""What a step computed, as flat arrays, and as the ``StepOutput`` that the scheduler reads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from hotseat.core.batch import SampledToken, StepOutput, TokenLogprobs
from hotseat.core.request import MAX_LOGPROBS, RequestId
from hotseat.runner.config import RunnerConfig
from hotseat.runner.seats import FlatBatch, Float32Array, Int32Array, PromptSpan, SeatTable, UInt8Array

__all__ = ["LogprobRows", "SampleStatus", "StepResults"]


class SampleStatus(IntEnum):
    """How sampling of a row went."""

    OK = 0
    NOT_FINITE = 1
    NO_CANDIDATE = 2


_FAILURES = {
    SampleStatus.NOT_FINITE: "the model's logits are not finite",
    SampleStatus.NO_CANDIDATE: "no token may be sampled: all are masked",
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
    """Where a runner writes what it sampled; allocated once, row i belongs to ``sample_rows[i]``."""

    token_ids: Int32Array  # [max_num_seqs]
    status: UInt8Array  # [max_num_seqs], a SampleStatus
    sampled: LogprobRows  # [max_num_seqs], filled where the seat wants log-probabilities
    prompt: LogprobRows  # [max_num_batched_tokens], row i belongs to prompt_rows[i]

    @staticmethod
    def allocate(config: RunnerConfig) -> StepResults:
        """Return empty arrays for the largest step."""
        return StepResults(
            token_ids=np.zeros(config.max_num_seqs, np.int32),
            status=np.zeros(config.max_num_seqs, np.uint8),
            sampled=LogprobRows.allocate(config.max_num_seqs),
            prompt=LogprobRows.allocate(config.max_num_batched_tokens),
        )

    def to_output(self, flat: FlatBatch, table: SeatTable) -> StepOutput:
        """Return what the scheduler reads; call ``table.commit`` as well."""
        count = flat.num_samples
        token_ids = self.token_ids[:count].tolist()
        failed: dict[RequestId, str] = {}
        if self.status[:count].any():
            failed = {
                flat.sample_ids[i]: _FAILURES[SampleStatus(self.status[i])] for i in np.flatnonzero(self.status[:count])
            }
        for span in flat.prompt_spans:
            if not np.isfinite(self.prompt.logprob[span.begin : span.end]).all():
                failed[span.request_id] = _FAILURES[SampleStatus.NOT_FINITE]
        if table.wants_logprobs:
            sampled = self._sampled_with_logprobs(flat, table, token_ids)
        else:
            sampled = list(map(SampledToken, flat.sample_ids, token_ids))
        if failed:
            sampled = [token for token in sampled if token.request_id not in failed]
        prompt_logprobs = {span.request_id: self._span(span, flat) for span in flat.prompt_spans}
        return StepOutput(sampled=sampled, failed=failed, prompt_logprobs=prompt_logprobs)

    def _sampled_with_logprobs(self, flat: FlatBatch, table: SeatTable, token_ids: list[int]) -> list[SampledToken]:
        wanted = table.sampling.num_logprobs[flat.sample_seats[: flat.num_samples]].tolist()
        return [
            SampledToken(id_, token_id, self.sampled.entry(row, token_id, num_top) if num_top >= 0 else None)
            for row, (id_, token_id, num_top) in enumerate(zip(flat.sample_ids, token_ids, wanted, strict=True))
        ]

    def _span(self, span: PromptSpan, flat: FlatBatch) -> list[TokenLogprobs]:
        targets = flat.prompt_targets[span.begin : span.end].tolist()
        rows = range(span.begin, span.end)
        return [self.prompt.entry(row, target, span.num_logprobs) for row, target in zip(rows, targets, strict=True)]
