"""Options of ``hotseat simulate`` and ``hotseat bench scheduler``; the scheduler's own come on top."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hotseat.core.config import BATCHING_MODES, CAPACITY_POLICIES
from hotseat.core.kv_layout import KvLayout
from hotseat.errors import ConfigError
from hotseat.options.lists import counts, names, words
from hotseat.simulator.step_cost import StepCost
from hotseat.simulator.summary import Slo

__all__ = ["DEFAULT_STEP_COST", "SchedulerBenchOptions", "SimulateOptions"]

# About what the default model takes on two cores of a server CPU, see docs/simulator.md.
DEFAULT_STEP_COST = "0.004,0.0004,5e-7"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """Options of ``hotseat simulate``.

    Raises:
        ConfigError: a value is wrong; the message names the option.
    """

    requests: Path | None = field(
        default=None,
        metadata={"help": "requests: JSON lines, an Azure trace (CSV) or a Mooncake trace; the content says which"},
    )
    record: Path | None = field(default=None, metadata={"help": "write what each step did to this file, a line each"})
    step_cost: str = field(
        default=DEFAULT_STEP_COST,
        metadata={"help": "seconds of a step: base_s,per_token_s,per_context_token_s, or a file of --save-step-cost"},
    )
    calibrate: Path | None = field(
        default=None, metadata={"help": "learn the step cost from this record of `hotseat serve --record`"}
    )
    calibrate_requests: Path | None = field(
        default=None,
        metadata={"help": "of the same run, by --record-requests: learn from it how long requests are on the way"},
    )
    calibrate_bench: Path | None = field(
        default=None,
        metadata={"help": "of the same run, by `hotseat bench serve --output-json`: learn the share of HTTP from it"},
    )
    save_step_cost: Path | None = field(default=None, metadata={"help": "write what was learned to this JSON file"})
    slo: str | None = field(
        default=None, metadata={"help": "targets in milliseconds for the goodput: ttft:1000,tpot:100 (e2e as well)"}
    )
    speedup: float = field(default=1.0, metadata={"help": "let the requests arrive so many times as fast"})
    limit: int | None = field(default=None, metadata={"help": "take only so many requests, the first to arrive"})
    max_tokens: int | None = field(
        default=None,
        metadata={
            "help": "what a request asks for at most, where its line does not say it; it still ends at its output_len "
            "(default: exactly output_len, which tells sjf more than a server would know)"
        },
    )
    content_block: int | None = field(
        default=None,
        metadata={
            "help": "tokens that a prefix or hash id stands for (default: block-size; worked out in a Mooncake trace)"
        },
    )
    max_model_len: int | None = field(
        default=None,
        metadata={"help": "longest sequence, prompt and output together (default: what the KV cache holds)"},
    )
    num_kv_blocks: int = field(default=16384, metadata={"help": "blocks in the KV cache"})
    kv_layout: str = field(
        default="1,0,0",
        metadata={
            "help": "FULL,WINDOW,TOKENS: blocks that block-size tokens take of layers that see all tokens, of layers "
            "with a window, and that window; a server's log names them"
        },
    )
    compare: str | None = field(
        default=None, metadata={"help": "run several batching modes side by side: static,dynamic,continuous"}
    )
    compare_policy: str | None = field(
        default=None, metadata={"help": "run several policies side by side: fcfs,sjf,…, or your own as module:Class"}
    )
    compare_capacity: str | None = field(
        default=None, metadata={"help": "run both capacity policies side by side: max-utilization,no-evict"}
    )
    replay: Path | None = field(
        default=None,
        metadata={"help": "a record of the engine: take its step times and check that the same batches are formed"},
    )
    json: bool = field(default=False, metadata={"help": "print JSON instead of tables"})

    def __post_init__(self) -> None:
        for name, low in (("limit", 1), ("max_tokens", 1), ("content_block", 1), ("max_model_len", 1)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigError(f"{name} must be at least {low}, not {value}")
        if not 0 < self.speedup < float("inf"):
            raise ConfigError(f"speedup must be a positive number, not {self.speedup!r}")
        rivals = (self.compare, self.compare_policy, self.compare_capacity, self.replay)
        if sum(option is not None for option in rivals) > 1:
            raise ConfigError("compare, compare_policy, compare_capacity and replay exclude each other")
        _ = self.modes, self.policies, self.capacity_policies, KvLayout.parse(self.kv_layout)
        if self.slo is not None:
            Slo.parse(self.slo)
        if not self.step_cost.endswith(".json"):
            StepCost.parse(self.step_cost)
        if self.calibrate is None:
            for name in ("calibrate_requests", "calibrate_bench", "save_step_cost"):
                if getattr(self, name) is not None:
                    raise ConfigError(f"{name} belongs to calibrate, which is missing")

    @property
    def modes(self) -> list[str]:
        return [] if self.compare is None else names("compare", self.compare, BATCHING_MODES)

    @property
    def policies(self) -> list[str]:
        return [] if self.compare_policy is None else words("compare_policy", self.compare_policy)

    @property
    def capacity_policies(self) -> list[str]:
        if self.compare_capacity is None:
            return []
        return names("compare_capacity", self.compare_capacity, CAPACITY_POLICIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerBenchOptions:
    """Options of ``hotseat bench scheduler``: requests that run and wait while it is timed.

    Raises:
        ConfigError: a value is wrong; the message names the option.
    """

    running: str = field(default="16,64,256,1024", metadata={"help": "numbers of running requests", "metavar": "N,N,…"})
    waiting: str = field(default="0,1000,100000", metadata={"help": "numbers of waiting requests", "metavar": "N,N,…"})
    num_steps: int = field(default=64, metadata={"help": "steps that are timed at each point"})
    num_rounds: int = field(default=15, metadata={"help": "times that each point is measured; the best one counts"})
    json: bool = field(default=False, metadata={"help": "print JSON instead of a table"})

    def __post_init__(self) -> None:
        for name in ("num_steps", "num_rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        _ = self.running_counts, self.waiting_counts

    @property
    def running_counts(self) -> list[int]:
        return counts("running", self.running, 1)

    @property
    def waiting_counts(self) -> list[int]:
        return counts("waiting", self.waiting, 0)
