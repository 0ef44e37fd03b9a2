"""A request, its state and its place in the queue."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NewType

from hotseat.core.sampling_params import (
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOP_STRINGS,
    SamplingParams,
    StructuredOutputsParams,
)

if TYPE_CHECKING:
    from hotseat.core.block_pool import Block, PrefixNode
    from hotseat.core.structured_outputs import TokenConstraint

__all__ = [
    "MAX_LOGIT_BIAS",
    "MAX_LOGPROBS",
    "MAX_N",
    "MAX_STOP_STRINGS",
    "BlockReason",
    "FinishReason",
    "Request",
    "RequestId",
    "RequestStatus",
    "SamplingParams",
    "StructuredOutputsParams",
    "Wait",
]

RequestId = NewType("RequestId", str)

NUM_REMEMBERED = 8  # the last that passed or preempted a request are kept for explain


class RequestStatus(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


# Preemption is RUNNING → WAITING.
TRANSITIONS: dict[RequestStatus, frozenset[RequestStatus]] = {
    RequestStatus.WAITING: frozenset({RequestStatus.RUNNING, RequestStatus.FINISHED}),
    RequestStatus.RUNNING: frozenset({RequestStatus.WAITING, RequestStatus.FINISHED}),
    RequestStatus.FINISHED: frozenset(),
}


class FinishReason(enum.Enum):
    """The cause of a request's end; the value is the word in metrics and step records."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    TIMEOUT = "timeout"


class BlockReason(enum.Enum):
    """The condition that keeps waiting requests from a seat; the value is the word in records and explanations."""

    NEXT_STEP = "next step"
    SEATS = "seats"
    BLOCKS = "blocks"
    PREFIX = "prefix"
    BUDGET = "budget"
    PREEMPTION = "preemption"
    BATCHING = "batching"
    GRAMMAR = "grammar"


@dataclass(slots=True, kw_only=True)
class Wait:
    """A request's place in the queue and its waiting times; kept over preemptions."""

    key: tuple[float, ...] = ()  # its place in the policy's order
    group: str = ""  # requests of one group are ordered among themselves, see Policy.group
    bucket: int = 0  # class of length, see waiting.py
    heap_entry: Any = None  # in the bucket's heap; None while it is deferred or runs
    needs_blocks: int = 0  # free blocks that it lacked when it was last looked at
    owner: Request | None = None  # computes the prefix that it waits for
    times_passed: int = 0  # by later ones, while its blocks did not fit; reset when it starts
    num_passed: int = 0  # the same, never reset
    passed_by: deque[RequestId] = field(default_factory=lambda: deque(maxlen=NUM_REMEMBERED))
    preempted_by: deque[str] = field(default_factory=lambda: deque(maxlen=NUM_REMEMBERED))
    # Waiting times by reason, see explain.WaitTimes:
    reason: BlockReason | None = None  # its own reason; None: that of the queue as a whole
    detail: str = ""  # of its own reason
    since: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)
    baseline: dict[str, float] = field(default_factory=dict)

    @property
    def own_reason(self) -> str:
        """Return its own reason with its detail; empty when it waits for what the queue waits for."""
        return f"{self.reason.value}: {self.detail}" if self.reason else ""


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One sequence on its way through the engine; owned by the scheduler once added.

    A request is a counter catching up: ``num_computed_tokens`` chases ``num_tokens``.
    """

    id: RequestId
    prompt_token_ids: list[int]
    params: SamplingParams
    arrived_at: float  # seconds on the engine's clock
    seed: int = 0  # always set: params.seed, or drawn by the caller; keys the counter-based generator
    eos_token_ids: frozenset[int] = frozenset()
    priority: int = 0  # smaller is more urgent
    tenant: str = ""
    deadline_at: float | None = None  # instant by which the first token is wanted
    constraint: TokenConstraint | None = None  # its grammar; goes on with each token that is sampled
    cache_salt: str = ""  # only requests with the same salt share cached blocks
    pooling: str | None = None  # "last" or "mean": its final hidden states are wanted, put together so
    # Owned by the scheduler:
    status: RequestStatus = RequestStatus.WAITING
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0  # prompt tokens that came from the prefix cache at first admission
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0  # of the drafts, found true
    seat: int | None = None
    finish_reason: FinishReason | None = None
    admitted_at: float | None = None  # first time that it took a seat
    first_token_at: float | None = None
    finished_at: float | None = None
    # The scheduler's own books:
    serial: int = -1  # order of arrival; breaks ties
    end_at: int = 0  # num_tokens at which it ends by length
    ends_on: frozenset[int] = frozenset()  # EOS and stop ids
    num_seated_tokens: int = 0  # tokens known when it took its seat: what its prefill has to compute
    num_shared_tokens: int = 0  # tokens in blocks that came from the prefix cache and are never written
    is_long: bool = False  # its prefill exceeded one step's budget when it took its seat
    blocks: list[Block] = field(default_factory=list, repr=False)
    window_blocks: list[Block] = field(
        default_factory=list, repr=False
    )  # of layers with a window, see window_blocks.py
    first_window_block: int = 0  # those before it were given back
    num_promised_blocks: int = 0  # that window_blocks may take, in blocks of the pool
    capacity: int = 0  # tokens that fit in its blocks
    nodes: list[PrefixNode] = field(default_factory=list, repr=False)  # of its full blocks, known so far
    slices: list[tuple[int, ...]] = field(default_factory=list, repr=False)  # its tokens, cut into full blocks
    waiters: dict[int, tuple[int, Request]] = field(default_factory=dict, repr=False)  # serial → (num_awaited, request)
    best_waiter: Request | None = field(default=None, repr=False)  # the first of them in the policy's order
    collected_logprobs: list[Any] | None = field(default=None, repr=False)  # of the prompt; None: unwanted, or sent
    wait: Wait = field(default_factory=Wait, repr=False)

    @property
    def has_grammar(self) -> bool:
        """Tell whether its answer has a form, which says where it ends."""
        return self.constraint is not None and self.constraint.ends_answer

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    def token_ids(self) -> list[int]:
        """Return prompt and output as one new list."""
        return self.prompt_token_ids + self.output_token_ids

    def move_to(self, status: RequestStatus) -> None:
        """Change the status along the transition table."""
        assert status in TRANSITIONS[self.status], f"{self.id}: no way from {self.status.value} to {status.value}"
        self.status = status
