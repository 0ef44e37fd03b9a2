"""The scheduler's options."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hotseat.core.kv_layout import KvLayout
from hotseat.errors import ConfigError

__all__ = ["BATCHING_MODES", "CAPACITY_POLICIES", "SchedulerConfig", "default_token_budget", "parse_tenant_weights"]

BATCHING_MODES = ("continuous", "static", "dynamic")
CAPACITY_POLICIES = ("max-utilization", "no-evict")
DEFAULT_TOKEN_BUDGET = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of a step, of the KV cache and of the queue. Names are vLLM's where they mean the same.

    Raises:
        ConfigError: a value is out of range; the message names the option and its value.
    """

    max_model_len: int = field(metadata={"help": "longest sequence, prompt and output together"})
    num_kv_blocks: int = field(metadata={"help": "blocks in the KV cache"})
    block_size: int = field(default=16, metadata={"help": "tokens in one block of the KV cache"})
    max_num_seqs: int = field(default=64, metadata={"help": "seats: requests that run at the same time"})
    max_num_batched_tokens: int = field(
        default=DEFAULT_TOKEN_BUDGET, metadata={"help": "tokens that one step computes at most"}
    )
    enable_prefix_caching: bool = field(
        default=True, metadata={"help": "reuse the KV cache of equal beginnings of prompts and answers"}
    )
    long_prefill_token_threshold: int = field(
        default=0, metadata={"help": "tokens of one prompt that a step computes at most; 0 is no limit"}
    )
    short_prefill_share: float = field(
        default=0.25,
        metadata={
            "help": "part of a step kept for short prompts (those that two such parts hold) beside a prompt longer "
            "than a step"
        },
    )
    target_itl_ms: float | None = field(
        default=None, metadata={"help": "milliseconds that a step may take: its prefill is limited to what fits"}
    )
    scheduling_policy: str = field(
        default="fcfs", metadata={"help": "fcfs, priority, sjf, fair, deadline, or your own as module:Class"}
    )
    aging_s: float | None = field(
        default=None,
        metadata={"help": "priority, sjf, deadline: a waiting request gains a level each such span; none: never"},
    )
    default_deadline_ms: float = field(
        default=1000.0, metadata={"help": "deadline: milliseconds to the first token for requests that name none"}
    )
    tenant_weights: tuple[str, ...] = field(
        default=(),
        metadata={"help": "fair: NAME=WEIGHT, may be repeated; weight 2 is twice the service; others have 1"},
    )
    batching: str = field(
        default="continuous",
        metadata={
            "help": "continuous; or as baselines: static (waits for a full batch), dynamic (closes it after a delay)",
            "choices": BATCHING_MODES,
        },
    )
    batch_size: int | None = field(
        default=None, metadata={"help": "static and dynamic: requests in a batch; none: as many as there are seats"}
    )
    max_delay_ms: float = field(default=50.0, metadata={"help": "dynamic: milliseconds that a batch waits to fill"})
    max_num_queued_reqs: int | None = field(
        default=None, metadata={"help": "requests that may wait for a seat; further ones are refused; none: no limit"}
    )
    max_num_queued_tokens: int | None = field(
        default=None,
        metadata={"help": "prompt tokens that may wait for a seat; further requests are refused; none: no limit"},
    )
    max_queue_memory_bytes: int | None = field(
        default=None,
        metadata={
            "help": "memory that waiting requests may take, about; further ones are refused; none: no limit "
            "(hotseat serve without this option: 268435456)"
        },
    )
    queue_timeout_s: float | None = field(
        default=None, metadata={"help": "a request that found no seat for so many seconds ends; none: never"}
    )
    request_timeout_s: float | None = field(
        default=None, metadata={"help": "a request ends so many seconds after its arrival; none: never"}
    )
    max_times_passed: int = field(
        default=32, metadata={"help": "how often later requests may pass one whose KV blocks do not fit"}
    )
    capacity_policy: str = field(
        default="max-utilization",
        metadata={
            "help": "max-utilization (admit what fits now, preempt when blocks run out) or no-evict (reserve prompt "
            "and max_tokens at admission: no request is preempted for blocks)",
            "choices": CAPACITY_POLICIES,
        },
    )
    watermark: float = field(
        default=0.01, metadata={"help": "part of the KV blocks that admissions leave free for running requests to grow"}
    )

    kv_layout: KvLayout = field(
        default=KvLayout(), metadata={"help": "blocks of each group of layers, by the model", "is_option": False}
    )

    def __post_init__(self) -> None:
        for name in ("max_model_len", "num_kv_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens"):
            _check(getattr(self, name) >= 1, name, "must be at least 1", getattr(self, name))
        for name in ("batch_size", "max_num_queued_reqs", "max_num_queued_tokens", "max_queue_memory_bytes"):
            value = getattr(self, name)
            _check(value is None or value >= 1, name, "must be at least 1", value)
        for name in ("long_prefill_token_threshold", "max_times_passed"):
            _check(getattr(self, name) >= 0, name, "must not be negative", getattr(self, name))
        for name in ("target_itl_ms", "aging_s", "default_deadline_ms", "queue_timeout_s", "request_timeout_s"):
            value = getattr(self, name)
            _check(value is None or 0 < value < math.inf, name, "must be a positive number", value)
        _check(0 <= self.max_delay_ms < math.inf, "max_delay_ms", "must not be negative", self.max_delay_ms)
        for name in ("short_prefill_share", "watermark"):
            _check(0 <= getattr(self, name) < 1, name, "must be at least 0 and below 1", getattr(self, name))
        _check(
            self.batching in BATCHING_MODES, "batching", f"must be one of {', '.join(BATCHING_MODES)}", self.batching
        )
        capacity = self.capacity_policy
        _check(capacity in CAPACITY_POLICIES, "capacity_policy", f"must be {' or '.join(CAPACITY_POLICIES)}", capacity)
        self._check_against_seats()
        parse_tenant_weights(self.tenant_weights)

    def _check_against_seats(self) -> None:
        seats = f"max_num_seqs = {self.max_num_seqs}"
        holds = self.batch_size is None or self.batch_size <= self.max_num_seqs
        _check(holds, "batch_size", f"must not exceed {seats}", self.batch_size)
        holds = self.max_num_batched_tokens >= self.max_num_seqs
        rule = f"must be at least {seats}, so that every running request gets its token"
        _check(holds, "max_num_batched_tokens", rule, self.max_num_batched_tokens)

    @property
    def short_prefill_tokens(self) -> int:
        """Return the length up to which a prompt counts as short beside a long one: what two steps' shares hold.

        The share is one of the tokens that are left when every seat decodes, so decodes cannot shrink it.
        """
        return 2 * int((self.max_num_batched_tokens - self.max_num_seqs) * self.short_prefill_share)

    @property
    def max_chunk_tokens(self) -> int:
        """Return how many tokens of one request a step computes at most."""
        return min(self.max_num_batched_tokens, self.long_prefill_token_threshold or self.max_num_batched_tokens)

    @property
    def max_cached_tokens(self) -> int:
        """Return the longest sequence whose keys and values the whole KV cache holds."""
        return self.kv_layout.max_tokens(self.num_kv_blocks, self.block_size, self.max_chunk_tokens)

    def num_blocks_of(self, num_tokens: int) -> int:
        """Return how many blocks a sequence of ``num_tokens`` holds at most."""
        return self.kv_layout.num_blocks(num_tokens, self.block_size, self.max_chunk_tokens)

    @property
    def reserves_all(self) -> bool:
        """Tell whether an admission reserves the blocks of all that a request may generate."""
        return self.capacity_policy == "no-evict"

    @property
    def watermark_blocks(self) -> int:
        """Return how many blocks an admission leaves free."""
        return math.ceil(self.num_kv_blocks * self.watermark)


def default_token_budget(max_num_seqs: int) -> int:
    """Return ``max_num_batched_tokens`` without a choice: it grows with the seats, each of which needs a token."""
    return max(DEFAULT_TOKEN_BUDGET, max_num_seqs)


def parse_tenant_weights(parts: tuple[str, ...]) -> dict[str, float]:
    """Read ``NAME=WEIGHT`` strings.

    Raises:
        ConfigError: one is not of this form, or its weight is not positive.
    """
    weights = {}
    for part in parts:
        name, _, number = part.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        _check(
            bool(name) and 0 < weight < math.inf, "tenant_weights", "must be NAME=WEIGHT with a weight above 0", part
        )
        weights[name] = weight
    return weights


def _check(holds: bool, name: str, rule: str, value: object) -> None:
    if not holds:
        raise ConfigError(f"{name} {rule}, not {value!r}")
