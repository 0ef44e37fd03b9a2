"""The contract between the scheduler and every runner.

    batch   = scheduler.schedule(now)
    output  = runner.execute(batch)
    updates = scheduler.update(batch, output, now)

A runner is stateful per *seat*: it learns all about a request once, in ``Batch.new_requests``, then only what
changes (``block_appends``), and forgets it when its id appears in ``released_ids``. In one batch a runner
handles ``released_ids`` first, then ``new_requests``, ``block_appends``, ``drafts``, then ``chunks``; a seat may be
released and taken again in the same batch. The runner appends each token it samples to its own copy of the sequence,
because the next chunk of that seat starts with it. Drafts that were not true are forgotten; their keys and values stay
behind the end of the sequence and are written over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from hotseat.core.request import FinishReason, RequestId, SamplingParams

__all__ = [
    "Batch",
    "BlockAppend",
    "Chunk",
    "Deferral",
    "Draft",
    "NewRequest",
    "Preemption",
    "RequestUpdate",
    "Runner",
    "SampledTokens",
    "StepOutput",
    "TokenLogprobs",
    "TokenMask",
]


class Chunk(NamedTuple):
    """Tokens ``[start, end)`` of one request to compute in this step.

    ``samples`` is true when the chunk reaches the end of the known tokens, so that a token is sampled
    from its last row, or with a ``Draft`` from each of its rows. It is a prefill chunk while ``end`` does not exceed
    the tokens that were known when the request was admitted, else a decode; runners need not care, attention looks at
    ``end - start``.
    """

    seat: int
    request_id: RequestId
    start: int
    end: int
    samples: bool
    # False only when a full prefix hit recomputes its last token for the logits: its keys and values are
    # in a shared block already, so nothing is written there.
    writes_kv: bool = True

    @property
    def num_pairs(self) -> int:
        """Pairs of a token of the chunk and a position that it attends to: all up to its own."""
        return (self.end - self.start) * (self.start + 1 + self.end) // 2


class NewRequest(NamedTuple):
    """An admitted request: all that a runner must know about it."""

    seat: int
    request_id: RequestId
    token_ids: list[int]  # prompt and, when it resumes, the output so far; the runner copies it
    num_prompt_tokens: int
    block_ids: list[int]  # blocks allocated so far, in order; the runner copies it
    params: SamplingParams
    seed: int
    eos_token_ids: frozenset[int]  # masked while fewer than params.min_tokens were sampled
    pooling: str | None = None  # "last" or "mean": the final hidden states are wanted, put together so
    # Of the layers with a window (see KvLayout; a logical block of either group is several ids in a row): the table
    # begins at first_window_block, no query of this request sees what is before it.
    window_block_ids: Sequence[int] = ()
    first_window_block: int = 0


class BlockAppend(NamedTuple):
    """Blocks appended to the table of a seat that was taken in an earlier batch."""

    seat: int
    block_ids: list[int]
    window_block_ids: Sequence[int] = ()


class Draft(NamedTuple):
    """Tokens guessed to follow the newest one of a decode, whose chunk ends with them.

    All rows of the chunk sample: row i as if the first i drafts were true. The results are those of the rows up to and
    with the first whose token is not its draft, so they are the tokens of as many plain steps, to the bit.
    """

    seat: int
    request_id: RequestId
    token_ids: list[int]  # none of them ends the request


class TokenMask(NamedTuple):
    """The tokens that the request in a seat may sample in this step, by its grammar."""

    seat: int
    words: Any  # buffer of uint32[ceil(vocab_size / 32)]; token t is bit t % 32 of word t // 32; read by execute only
    num_drafts: int = 0  # it holds for the row after so many drafts


class Preemption(NamedTuple):
    request_id: RequestId
    cause: str  # e.g. "blocks: r7 needed 1, 0 free"


class Deferral(NamedTuple):
    request_id: RequestId
    reason: str


@dataclass(slots=True, kw_only=True)
class Batch:
    """The work of one step, and the decisions on the way. Decode chunks come first.

    ``prefill_totals`` and ``admitted_ids`` … ``budget`` are for the step record only; a runner reads the other fields.
    """

    step: int
    chunks: list[Chunk]
    new_requests: list[NewRequest] = field(default_factory=list)
    block_appends: list[BlockAppend] = field(default_factory=list)
    released_ids: list[RequestId] = field(default_factory=list)  # ended or preempted since the last batch
    drafts: list[Draft] = field(default_factory=list)  # in the order of their chunks
    token_masks: list[TokenMask] = field(default_factory=list)  # for each constrained request and row that samples
    num_tokens: int = 0  # sum of end - start
    num_decodes: int = 0  # the first num_decodes chunks are decodes
    prefill_totals: list[int] = field(default_factory=list)  # parallel to chunks[num_decodes:]: tokens known
    admitted_ids: list[RequestId] = field(default_factory=list)
    preempted: list[Preemption] = field(default_factory=list)
    deferred: list[Deferral] = field(default_factory=list)  # with the reason, new or unchanged in this step
    ended: list[RequestUpdate] = field(default_factory=list)  # ended by schedule() itself: timed out
    num_waiting: int = 0
    blocks_used: int = 0  # held by running requests; blocks_used + blocks_free is the whole pool
    blocks_cached: int = 0  # those of the free blocks that a prefix hit can still use
    blocks_free: int = 0
    budget: int = 0  # tokens offered to this step
    num_accepted: list[int] = field(default_factory=list)  # parallel to drafts, once the output is there


class TokenLogprobs(NamedTuple):
    """Log-probabilities at one position (natural log, of the unmodified softmax at temperature 1)."""

    token_id: int
    logprob: float
    rank: int  # 1 is the most probable
    top: list[tuple[int, float]]  # (token id, logprob), most probable first


class SampledTokens(NamedTuple):
    """The tokens that a step gave to one request, in order: one, and one more for each draft that was true.

    All but the last are known not to end the request, and their keys and values are in the cache.
    """

    request_id: RequestId
    token_ids: list[int]  # the scheduler keeps the list
    logprobs: list[TokenLogprobs] | None = None  # parallel to token_ids


@dataclass(slots=True, kw_only=True)
class StepOutput:
    """A runner's result: one entry per chunk with ``samples``, in batch order, less the failed ones."""

    sampled: list[SampledTokens]
    # Requests that failed by themselves (for example: logits are not finite); the others are unharmed.
    failed: dict[RequestId, str] = field(default_factory=dict)
    # For requests with params.prompt_logprobs: one entry per prompt position computed in this
    # step, for positions start+1 .. end of the prompt (position 0 has none).
    prompt_logprobs: dict[RequestId, list[TokenLogprobs]] = field(default_factory=dict)
    # For requests with a pooling whose prompt ends in this step: float32[hidden_size] each, after the final norm.
    pooled: dict[RequestId, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class RequestUpdate:
    """News about one request after a step."""

    request_id: RequestId
    new_token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None  # parallel to new_token_ids when asked for
    prompt_logprobs: list[TokenLogprobs] | None = None
    pooled: Any = None  # float32[hidden_size] of a request with a pooling
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None  # the stop_token_ids entry that ended it; None for EOS
    error: str | None = None  # for FinishReason.ERROR
    num_cached_tokens: int = 0
    num_draft_tokens: int = 0  # of the request so far
    num_accepted_tokens: int = 0  # of these, found true


class Runner(Protocol):
    """Computes batches; owns the KV cache. Called from the engine thread only."""

    def execute(self, batch: Batch) -> StepOutput:
        """Compute all chunks of ``batch`` and sample where ``samples`` is set."""
        ...

    def close(self) -> None:
        """Release threads and memory; idempotent."""
        ...
