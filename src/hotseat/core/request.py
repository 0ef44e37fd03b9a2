"""A request and how it wants its tokens sampled."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NewType

from hotseat.errors import InvalidRequestError

__all__ = [
    "FinishReason",
    "Request",
    "RequestId",
    "RequestStatus",
    "SamplingParams",
]

RequestId = NewType("RequestId", str)

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_N = 128


class RequestStatus(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(enum.Enum):
    """Why a request ended; the value is the word in metrics and step records."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Say how tokens are chosen and when to stop. Names and defaults are vLLM's.

    ``temperature`` 0 is greedy. ``top_k`` 0 (or -1) and ``top_p`` 1 and ``min_p`` 0 switch the filter
    off. ``seed`` ``None`` lets the caller of the engine draw one. ``max_tokens`` ``None`` means: up to the
    model's context. ``logprobs`` n asks for the chosen token's log-probability and the n most
    probable tokens (0: the chosen one alone); ``prompt_logprobs`` the same for the prompt.

    Raises:
        InvalidRequestError: a value is out of range; ``param`` names the field.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False


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
    cache_salt: str = ""  # only requests with the same salt share cached blocks
    # Owned by the scheduler:
    status: RequestStatus = RequestStatus.WAITING
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0  # prompt tokens that came from the prefix cache at first admission
    num_preemptions: int = 0
    seat: int | None = None
    finish_reason: FinishReason | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)
