"""The option ``speculative_config``, with vLLM's names, and the drafter that it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any

from hotseat.core.speculation import Drafter, Speculation
from hotseat.errors import ConfigError
from hotseat.speculation.drafters import NgramDrafter, SuffixDrafter
from hotseat.speculation.user import UserDrafter

__all__ = ["SpeculationOptions", "SpeculativeConfig"]

METHODS = ("ngram", "suffix")
MAX_TOKENS = 64  # of one draft
MAX_DRAFTS = 64  # of one step


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationOptions:
    """The option that turns speculation on."""

    speculative_config: dict[str, Any] | None = field(
        default=None,
        metadata={
            "help": "guess tokens and verify several in a step, which changes no answer: a JSON object with method "
            "(ngram, suffix, or your own as module:Class), num_speculative_tokens, prompt_lookup_min and _max, …"
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """The configuration of speculation. Names and meanings are vLLM's, but ``adaptive``.

    ``adaptive`` (on) takes only drafts that are expected to save time; off, all that there is room for.

    Raises:
        ConfigError: a value is out of range; the message names it.
    """

    method: str
    num_speculative_tokens: int = 0  # 0: 8 for ngram and a class of one's own, 16 for suffix
    prompt_lookup_min: int = 0  # 0: as prompt_lookup_max, or 3
    prompt_lookup_max: int = 0  # 0: 24 or more
    suffix_decoding_max_tree_depth: int = 24
    suffix_decoding_max_cached_requests: int = 10_000
    suffix_decoding_max_spec_factor: float = 1.0
    adaptive: bool = True

    def __post_init__(self) -> None:
        if self.method not in METHODS and ":" not in self.method:
            raise _error("method", f"must be {', '.join(METHODS)} or module:Class, not {self.method!r}")
        _check_range("num_speculative_tokens", self.num_tokens, 1, MAX_TOKENS)
        _check_range("prompt_lookup_min", self.lookup[0], 1, 16)
        _check_range("prompt_lookup_max", self.lookup[1], self.lookup[0], 1024)
        _check_range("suffix_decoding_max_tree_depth", self.suffix_decoding_max_tree_depth, 3, 1024)
        _check_range("suffix_decoding_max_cached_requests", self.suffix_decoding_max_cached_requests, 0, 10**9)
        _check_range("suffix_decoding_max_spec_factor", self.suffix_decoding_max_spec_factor, 0, 1000)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> SpeculativeConfig:
        """Check the object ``values``.

        Raises:
            ConfigError: a key is unknown, or a value is of the wrong type or out of range.
        """
        known = {one.name: one for one in fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise _error(name, f"is not known; known are {', '.join(known)}")
            kind = type(getattr(cls(method="ngram"), name))
            is_number = kind is float and isinstance(value, int) and not isinstance(value, bool)
            if not is_number and type(value) is not kind:
                raise _error(name, f"must be of type {kind.__name__}, not {value!r}")
        if "method" not in values:
            raise _error("method", f"is missing: {', '.join(METHODS)} or module:Class")
        return cls(**values)

    @property
    def num_tokens(self) -> int:
        """Tokens of one draft at most."""
        return self.num_speculative_tokens or (16 if self.method == "suffix" else 8)

    @property
    def lookup(self) -> tuple[int, int]:
        """The shortest and the longest match of n-grams."""
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        low = low or high or 3
        return low, high or max(low, 24)

    def max_num_drafts(self, max_num_seqs: int) -> int:
        """Return how many tokens one step may verify."""
        return min(MAX_DRAFTS, self.num_tokens * max_num_seqs)

    def make(self, max_num_seqs: int, vocab_size: int) -> Speculation:
        """Return what extends the decodes of a scheduler.

        Raises:
            ConfigError: the class of a user's drafter cannot be imported or made.
        """
        return Speculation(
            self._drafter(vocab_size),
            num_tokens=self.num_tokens,
            max_num_drafts=self.max_num_drafts(max_num_seqs),
            is_adaptive=self.adaptive,
        )

    def _drafter(self, vocab_size: int) -> Drafter:
        if self.method == "ngram":
            return NgramDrafter(*self.lookup)
        if self.method == "suffix":
            return SuffixDrafter(
                self.suffix_decoding_max_tree_depth,
                self.suffix_decoding_max_cached_requests,
                self.suffix_decoding_max_spec_factor,
            )
        module_name, _, class_name = self.method.partition(":")
        try:
            drafter = getattr(import_module(module_name), class_name)()
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise _error("method", f"{self.method!r} cannot be used: {error}") from error
        if not callable(getattr(drafter, "propose", None)):
            raise _error("method", f"{self.method!r} has no method propose(token_ids, k)")
        return UserDrafter(drafter, vocab_size)


def _error(name: str, text: str) -> ConfigError:
    return ConfigError(f"speculative_config: {name} {text}")


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise _error(name, f"must be from {low} to {high}, not {value}")
