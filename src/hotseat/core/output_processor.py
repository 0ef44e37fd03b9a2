"""Processing of a step's output: tokens, finished prefills, ends."""

from __future__ import annotations

from collections.abc import Callable

from hotseat.core.admission import Admission
from hotseat.core.batch import Batch, RequestUpdate, SampledTokens, StepOutput
from hotseat.core.policy import Policy, overrides
from hotseat.core.request import FinishReason, Request
from hotseat.core.running import RunningSet

__all__ = ["OutputProcessor", "final_update"]


class OutputProcessor:
    """Appends tokens, indexes computed blocks and ends requests that are done; ``end`` frees seat and blocks."""

    def __init__(
        self,
        running: RunningSet,
        admission: Admission,
        policy: Policy,
        end: Callable[[Request, FinishReason, float], None],
        block_size: int,
    ) -> None:
        self._running = running
        self._admission = admission
        self._charge = policy.charge if overrides(policy, "charge") else None
        self._end = end
        self._block_size = block_size

    def process(self, batch: Batch, output: StepOutput, now: float) -> list[RequestUpdate]:
        """Apply a step's output; requests that ended since ``schedule`` have no part in it."""
        updates = self._process_failures(output, now) if output.failed else []
        num_decodes = batch.num_decodes
        if output.failed:
            num_decodes -= sum(chunk.request_id in output.failed for chunk in batch.chunks[:num_decodes])
        assert len(output.sampled) >= num_decodes, f"step {batch.step}: the runner left a decode without a token"
        if batch.drafts:
            self._note_drafts(batch, output.sampled[:num_decodes])
        self._process_decodes(output.sampled[:num_decodes], updates, now)
        if len(batch.chunks) > batch.num_decodes:
            self._process_prefills(batch, output, output.sampled[num_decodes:], updates, now)
        return updates

    def _process_failures(self, output: StepOutput, now: float) -> list[RequestUpdate]:
        updates = []
        for request_id, message in output.failed.items():
            request = self._running.requests.get(request_id)
            if request is not None:
                self._end(request, FinishReason.ERROR, now)
                updates.append(final_update(request, error=message))
        return updates

    def _process_decodes(self, sampled: list[SampledTokens], updates: list[RequestUpdate], now: float) -> None:
        """Append the new tokens of each decode. This loop is paid for every running request in every step."""
        running, full, append, charge = self._running.decoding, self._running.full, updates.append, self._charge
        block_size = self._block_size
        for request_id, token_ids, logprobs in sampled:
            request = running.get(request_id)
            if request is None:
                continue  # ended since schedule
            start, count = request.num_computed_tokens, len(token_ids)
            request.num_computed_tokens = num_computed = start + count
            request.output_token_ids += token_ids
            if num_computed % block_size < count:  # a block was filled
                if num_computed == request.capacity:
                    full.append(request)
                self._admission.cache.index_computed(request, start)
            if charge is not None:
                charge(request, 0, count)
            update = RequestUpdate(
                request_id=request_id, new_token_ids=token_ids, num_cached_tokens=request.num_cached_tokens
            )
            if logprobs is not None:
                update.logprobs = logprobs
            if request.num_draft_tokens:
                update.num_draft_tokens = request.num_draft_tokens
                update.num_accepted_tokens = request.num_accepted_tokens
            if token_ids[-1] in request.ends_on or num_computed + 1 >= request.end_at:
                self._end_if_done(request, update, now)
            append(update)

    def _note_drafts(self, batch: Batch, sampled: list[SampledTokens]) -> None:
        """Count the drafts and those that were true; of requests that ended since schedule, too."""
        counts = {entry.request_id: len(entry.token_ids) for entry in sampled}
        for draft in batch.drafts:
            num_drafts = len(draft.token_ids)
            # A row that failed leaves what was accepted before it, the last of which is no gain over its own step.
            num_accepted = max(0, counts.get(draft.request_id, 0) - 1)
            batch.num_accepted.append(num_accepted)
            request = self._running.decoding.get(draft.request_id)
            if request is not None:
                request.num_draft_tokens += num_drafts
                request.num_accepted_tokens += num_accepted

    def _process_prefills(
        self, batch: Batch, output: StepOutput, sampled: list[SampledTokens], updates: list[RequestUpdate], now: float
    ) -> None:
        """Advance the prefills; those whose last chunk this was get their token and decode from now on."""
        tokens = {entry.request_id: entry for entry in sampled}
        for chunk in batch.chunks[batch.num_decodes :]:
            request = self._running.prefilling.get(chunk.request_id)
            if request is None:
                continue  # ended since schedule, or failed
            request.num_computed_tokens = chunk.end
            self._admission.deferred.requeue(self._admission.cache.index_computed(request, chunk.start), now)
            if chunk.end == request.capacity and not chunk.samples:  # its window blocks; the prompt has all others
                self._running.full.append(request)
            if request.collected_logprobs is not None:
                request.collected_logprobs += output.prompt_logprobs.get(chunk.request_id, [])
            if chunk.samples:
                assert request.id in tokens, f"step {batch.step}: the runner left {request.id} without a token"
                update = self._process_first_token(request, tokens[chunk.request_id], now)
                update.pooled = output.pooled.get(chunk.request_id)
                updates.append(update)

    def _process_first_token(self, request: Request, sampled: SampledTokens, now: float) -> RequestUpdate:
        """Append the token that ends a prefill: the first one, or the next one after a preemption."""
        update = RequestUpdate(
            request_id=request.id,
            new_token_ids=[],
            prompt_logprobs=request.collected_logprobs,
            num_cached_tokens=request.num_cached_tokens,
        )
        request.collected_logprobs = None
        if request.params.max_tokens == 0:
            self._end(request, FinishReason.LENGTH, now)
            update.finish_reason = FinishReason.LENGTH
            return update
        request.output_token_ids += sampled.token_ids
        update.new_token_ids = sampled.token_ids
        update.logprobs = sampled.logprobs
        if request.first_token_at is None:
            request.first_token_at = now
        self._running.start_decoding(request)
        if request.num_computed_tokens == request.capacity:
            self._running.full.append(request)
        if self._charge is not None:
            self._charge(request, 0, 1)
        self._end_if_done(request, update, now)
        return update

    def _end_if_done(self, request: Request, update: RequestUpdate, now: float) -> None:
        """End ``request`` if its newest token says so: EOS, then a stop id, then the length limits."""
        token_id = request.output_token_ids[-1]
        reason = None
        # An end that comes before min_tokens is one that the grammar left no choice about.
        may_end = len(request.output_token_ids) >= request.params.min_tokens or request.has_grammar
        if token_id in request.ends_on and may_end:
            reason = FinishReason.STOP
            is_eos = token_id in request.eos_token_ids and not (request.params.ignore_eos and not request.has_grammar)
            update.stop_token_id = None if is_eos else token_id
        elif request.num_tokens >= request.end_at:
            reason = FinishReason.LENGTH
        if reason is not None:
            self._end(request, reason, now)
            update.finish_reason = reason


def final_update(request: Request, *, error: str | None = None) -> RequestUpdate:
    """Return the news that ``request`` ended without another token."""
    return RequestUpdate(
        request_id=request.id,
        new_token_ids=[],
        finish_reason=request.finish_reason,
        error=error,
        num_cached_tokens=request.num_cached_tokens,
        num_draft_tokens=request.num_draft_tokens,
        num_accepted_tokens=request.num_accepted_tokens,
    )
