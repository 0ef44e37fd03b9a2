"""Speculation: decodes verify tokens that a drafter guessed, several in one step.

A row depends on its own sequence only, and a draw on its position only. So what a row samples after true drafts is what
the plain run samples there, and an answer is the same to the bit, whatever is drafted (the rule is that of Leviathan et
al., "Fast Inference from Transformers via Speculative Decoding", ICML 2023, for drafts that are single points).

Drafts never cost anybody anything: they take what the step leaves of its budget and of blocks that nobody waits for.
They only cost time, and that is weighed. A draft survives if it and all before it are true; the probability is learned
from what was found true, for each request and for all. With E tokens expected of a step that takes T seconds, one more
row of t seconds pays if it is expected to be worth more than the present rate: survival / t > E / T. The most probable
drafts of all requests go first, so a request that repeats a text takes what one that writes prose leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from hotseat.core.batch import Batch
from hotseat.core.request import Request, RequestId
from hotseat.core.running import RunningSet
from hotseat.core.step_builder import StepBuilder

__all__ = ["Drafter", "Speculation", "StepTimes"]

MAX_STREAMS = 31  # decodes beside which arithmetic, not memory, is the limit: a further row costs as much as a stream
FIRST_RATE = 0.6  # of drafts found true, when nothing is known
PRIOR_WEIGHT = 2.0  # drafts that the rate of all requests counts for beside a request's own
MEMORY = 0.9  # weight of what a request was found to do, after each of its steps with drafts
MEMORY_OF_ALL = 0.98
FADING = 0.97  # the same, after each step whose drafts were not worth a try: so that there is another try
FIRST_SLOPE = 0.07  # time of one more row, as a part of a step, when nothing is known
LEAST_SLOPE = 0.01
TIME_MEMORY = 0.03  # weight of the newest step
SLOPE_WEIGHT = 0.5  # rows² that the first slope counts for beside what was measured
MAX_SURPRISE = 2.0  # a step that took that many times what was expected counts as if that was all


class Drafter(Protocol):
    """Guesses how sequences go on. Called between steps, so it has microseconds."""

    def propose(self, request: Request, num_tokens: int) -> Sequence[int]:
        """Return at most ``num_tokens`` ids that may follow prompt and output of ``request``; maybe none."""
        ...

    def ended(self, request: Request) -> None:
        """Take note that ``request`` ended; it may be one that was never proposed for."""
        ...


class StepTimes:
    """The seconds of a step and of one row more, learned from the last steps of decodes alone."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._rows = self._seconds = self._variance = self._covariance = 0.0

    def observe(self, num_rows: int, seconds: float) -> None:
        """Learn from a step of ``num_rows`` rows."""
        if self._num_steps > 8:
            seconds = min(seconds, MAX_SURPRISE * self.predict(num_rows))
        weight = max(TIME_MEMORY, 1 / (self._num_steps + 1))
        rows, time = num_rows - self._rows, seconds - self._seconds
        self._rows += weight * rows
        self._seconds += weight * time
        self._variance = (1 - weight) * (self._variance + weight * rows * rows)
        self._covariance = (1 - weight) * (self._covariance + weight * rows * time)
        self._num_steps += 1

    @property
    def per_row_s(self) -> float:
        """Seconds of one more row."""
        seconds = self._seconds or 1.0
        first = FIRST_SLOPE * seconds / (1 + FIRST_SLOPE * self._rows)
        slope = (self._covariance + SLOPE_WEIGHT * first) / (self._variance + SLOPE_WEIGHT)
        return max(slope, LEAST_SLOPE * seconds)

    def predict(self, num_rows: int) -> float:
        """Return the seconds of a step of ``num_rows`` rows."""
        per_row_s = self.per_row_s
        return max((self._seconds or 1.0) + per_row_s * (num_rows - self._rows), per_row_s * num_rows)


@dataclass(slots=True)
class _Record:
    """Drafts found true and found wrong, the old ones fading."""

    num_true: float = 0.0
    num_wrong: float = 0.0

    def note(self, num_accepted: int, num_drafts: int, memory: float) -> None:
        """Take in a step; drafts behind a wrong one tell nothing."""
        self.num_true = memory * self.num_true + num_accepted
        self.num_wrong = memory * self.num_wrong + (num_accepted < num_drafts)

    def rate(self, prior: float) -> float:
        """Return the probability that a draft is true when those before it are."""
        return (self.num_true + PRIOR_WEIGHT * prior) / (self.num_true + self.num_wrong + PRIOR_WEIGHT)


class _Proposal(NamedTuple):
    chunk: int  # its place in the batch
    request: Request
    token_ids: list[int]


class Speculation:
    """Extends decode chunks by drafts of ``drafter``, at most ``num_tokens`` each and ``max_num_drafts`` in a step.

    ``is_adaptive=False`` takes all drafts that there is room for.
    """

    def __init__(self, drafter: Drafter, *, num_tokens: int, max_num_drafts: int, is_adaptive: bool = True) -> None:
        assert num_tokens > 0, "speculation without tokens"
        self.num_tokens = num_tokens
        self.num_drafts = self.num_draft_tokens = self.num_accepted_tokens = 0
        self.num_accepted_at = [0] * num_tokens  # by place in the draft
        self.times = StepTimes()
        self._drafter = drafter
        self._max_num_drafts = max_num_drafts
        self._is_adaptive = is_adaptive
        self._all = _Record()
        self._records: dict[RequestId, _Record] = {}

    def extend(self, step: StepBuilder, running: RunningSet, num_spare_blocks: int) -> None:
        """Let decodes of ``step`` verify drafts, with what the step and the block pool have left."""
        room = min(step.left, self._max_num_drafts)
        if room <= 0 or not 0 < step.batch.num_decodes <= MAX_STREAMS:
            return
        proposals = self._propose(running, room)
        counts = self._choose(proposals, room, step) if proposals else []
        for (chunk, request, token_ids), count in zip(proposals, counts, strict=True):
            while count and request.num_computed_tokens + 1 + count > request.capacity and num_spare_blocks > 0:
                if (growth := running.grow_ahead(request, num_spare_blocks)) is None:
                    break
                num_spare_blocks -= sum(block.size for block in growth.blocks + growth.window_blocks)
                step.append_blocks(request, growth.blocks, growth.window_blocks)
            count = min(count, request.capacity - request.num_computed_tokens - 1)
            if count > 0:
                step.draft(chunk, token_ids[:count])

    def learn(self, batch: Batch, decoding: Mapping[RequestId, Request], duration_s: float) -> None:
        """Take in a step that was run."""
        if batch.num_decodes == len(batch.chunks) and batch.chunks:
            self.times.observe(batch.num_tokens, duration_s)
        for draft, num_accepted in zip(batch.drafts, batch.num_accepted, strict=True):
            num_drafts = len(draft.token_ids)
            self.num_drafts += 1
            self.num_draft_tokens += num_drafts
            self.num_accepted_tokens += num_accepted
            for place in range(num_accepted):
                self.num_accepted_at[place] += 1
            self._all.note(num_accepted, num_drafts, MEMORY_OF_ALL)
            if draft.request_id in decoding:
                record = self._records.setdefault(draft.request_id, _Record())
                record.note(num_accepted, num_drafts, MEMORY)

    def ended(self, request: Request) -> None:
        """Forget a request that ended."""
        self._records.pop(request.id, None)
        self._drafter.ended(request)

    def _propose(self, running: RunningSet, room: int) -> list[_Proposal]:
        """Ask the drafter for all decodes, in the order of their chunks."""
        proposals = []
        for chunk, request in enumerate(running.decoding.values()):
            limit = min(self.num_tokens, room, request.end_at - request.num_tokens - 1)
            if limit <= 0 or request.params.logits_processors:
                continue
            token_ids = _until_end(self._drafter.propose(request, limit), request.ends_on)
            if token_ids:
                proposals.append(_Proposal(chunk, request, token_ids[:limit]))
        return proposals

    def _choose(self, proposals: Sequence[_Proposal], room: int, step: StepBuilder) -> list[int]:
        """Return how many tokens of each proposal are worth their time."""
        counts = [0] * len(proposals)
        slots = []  # survival, negative place: the earlier first among equals
        for which, (_, request, token_ids) in enumerate(proposals):
            rate, survival = self._rate(request), 1.0
            for place in range(len(token_ids)):
                survival *= rate
                slots.append((survival, -place, which))
        slots.sort(reverse=True)
        num_rows = step.batch.budget - step.left
        seconds, per_row_s = self.times.predict(num_rows), self.times.per_row_s
        if step.time is not None:  # what the latency target leaves
            room = min(room, int(max(0.0, step.time.left_s) / per_row_s))
        expected = float(step.batch.num_decodes)
        for survival, _, which in slots[:room]:
            if self._is_adaptive and survival * seconds <= per_row_s * expected:
                break
            expected += survival
            seconds += per_row_s
            counts[which] += 1
        for count, (_, request, _) in zip(counts, proposals, strict=True):
            if not count and (record := self._records.get(request.id)):
                record.num_true *= FADING
                record.num_wrong *= FADING
        return counts

    def _rate(self, request: Request) -> float:
        prior, own = self._all.rate(FIRST_RATE), self._records.get(request.id)
        return min(prior if own is None else own.rate(prior), 0.999)


def _until_end(token_ids: Sequence[int], ends_on: frozenset[int]) -> list[int]:
    """Return the ids before the first that ends the request: the row before it samples that one as its own."""
    if ends_on.isdisjoint(token_ids):
        return list(token_ids)
    return list(token_ids[: next(i for i, token_id in enumerate(token_ids) if token_id in ends_on)])
