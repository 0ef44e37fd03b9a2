"""Options of ``hotseat bench serve``."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from hotseat.errors import ConfigError
from hotseat.loadgen.workload import DATASETS, LengthDistribution

__all__ = ["BenchConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """Describe one benchmark run; every field is a flag of ``hotseat bench serve``.

    Raises:
        ConfigError: a value is out of range; the message names the option.
    """

    url: str = field(default="http://127.0.0.1:8000", metadata={"help": "address of the server, without /v1"})
    endpoint: str = field(default="chat", metadata={"help": "API to use", "choices": ["chat", "completions"]})
    model: str | None = field(default=None, metadata={"help": "model name (default: the first that /v1/models lists)"})
    api_key: str | None = field(default=None, metadata={"help": "sent as a Bearer token"})
    num_prompts: int = field(default=64, metadata={"help": "how many requests are measured"})
    num_warmups: int = field(default=0, metadata={"help": "requests sent before, not measured"})
    request_rate: float = field(
        default=math.inf, metadata={"help": "mean requests per second, Poisson arrivals (default: all at once)"}
    )
    max_concurrency: int | None = field(
        default=None, metadata={"help": "requests in flight at most; alone it makes a closed loop"}
    )
    seed: int = field(default=0, metadata={"help": "fixes prompts, lengths and arrivals"})
    dataset: str = field(
        default="standard",
        metadata={
            "help": "standard: chats of about 160 tokens in and 117 out; text: sentences; random: unrelated words",
            "choices": list(DATASETS),
        },
    )
    input_len: str | None = field(
        default=None,
        metadata={"help": "prompt tokens: 128 (all), 32-512 (uniform) or 160~0.5 (log-normal: mean, sigma); estimated"},
    )
    output_len: str | None = field(default=None, metadata={"help": "output tokens, written like --input-len; exact"})
    ignore_eos: bool = field(default=True, metadata={"help": "ask the server to go on to the full output length"})
    temperature: float = field(default=0.0, metadata={"help": "sampling temperature"})
    extra_body: str | None = field(default=None, metadata={"help": "JSON object merged into every request body"})
    timeout_s: float = field(default=600.0, metadata={"help": "a request that takes longer counts as failed"})
    output_json: str | None = field(default=None, metadata={"help": "write all results to this file"})

    def __post_init__(self) -> None:
        for name, low in [("num_prompts", 1), ("num_warmups", 0), ("temperature", 0)]:
            if getattr(self, name) < low:
                raise ConfigError(f"{name} must be at least {low}, not {getattr(self, name)}")
        for name in ["request_rate", "timeout_s"]:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ConfigError(f"max_concurrency must be at least 1, not {self.max_concurrency}")
        if self.endpoint not in ("chat", "completions"):
            raise ConfigError(f"endpoint must be chat or completions, not {self.endpoint!r}")
        if self.dataset not in DATASETS:
            raise ConfigError(f"dataset must be one of {', '.join(DATASETS)}, not {self.dataset!r}")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"url must look like http://host:port, not {self.url!r}")
        self.extra_fields()
        _ = self.input_lengths, self.output_lengths

    @property
    def input_lengths(self) -> LengthDistribution:
        return LengthDistribution.parse("input_len", self.input_len or DATASETS[self.dataset].input_len)

    @property
    def output_lengths(self) -> LengthDistribution:
        return LengthDistribution.parse("output_len", self.output_len or DATASETS[self.dataset].output_len)

    def extra_fields(self) -> dict[str, object]:
        """Return the decoded ``extra_body``."""
        if self.extra_body is None:
            return {}
        try:
            value = json.loads(self.extra_body)
        except ValueError as error:
            raise ConfigError(f"extra_body is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise ConfigError(f"extra_body must be a JSON object, not {self.extra_body!r}")
        return value
