"""Requests that have yet to come: when, how long, and which content they share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hotseat.core.request import Request, RequestId, SamplingParams

__all__ = ["EOS_TOKEN_ID", "Arrival", "Script", "rescaled"]

FILLER = 0  # what stands at every position that need not differ
EOS_TOKEN_ID = -1  # no token of a prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One line of a requests file.

    ``content_ids`` name what stands in the first blocks of the sequence, ``content_block`` tokens each: requests with
    equal ids up to some block have equal tokens up to there. They may reach beyond the prompt and then name the output,
    unless ``content_is_prompt``. What they do not cover is the request's own.
    """

    id: str
    arrival_s: float
    prompt_len: int
    output_len: int
    max_tokens: int | None = None  # what the request asks for at most; None: exactly output_len
    priority: int = 0
    tenant: str = ""
    deadline_ms: float | None = None
    content_ids: tuple[int, ...] = ()
    content_block: int = 16
    content_is_prompt: bool = False
    abort_at_s: float | None = None
    abort_rank: int = 0  # order of those that are aborted at the same instant: it is that in which blocks get free
    added_s: float | None = None  # when the engine took it in; None: as soon as it arrived and a step was over

    @property
    def due_s(self) -> float:
        """Return the instant from which the loop may take it in."""
        return self.arrival_s if self.added_s is None else self.added_s

    def to_request(self, serial: int) -> Request:
        """Return a fresh request for the scheduler; ``serial`` makes its content its own."""
        max_tokens = self.output_len if self.max_tokens is None else self.max_tokens
        return Request(
            id=RequestId(self.id),
            prompt_token_ids=Script(self, serial).prompt(),
            params=SamplingParams(max_tokens=max_tokens, ignore_eos=max_tokens == self.output_len),
            arrived_at=self.arrival_s,
            eos_token_ids=frozenset({EOS_TOKEN_ID}),
            priority=self.priority,
            tenant=self.tenant,
            deadline_at=None if self.deadline_ms is None else self.arrival_s + self.deadline_ms / 1000,
        )


class Script:
    """The tokens of one sequence, made of its content ids.

        content block   [2·id + 2, 0, 0, …]       the same id gives the same tokens
        the rest        [2·serial + 1, 0, 0, …]   no other request has this first token

    A block cache compares whole prefixes, so one telling token in each block is as good as sixteen.
    """

    __slots__ = ("_covered", "_eos_at", "_ids", "_own", "_prompt_len", "_size")

    def __init__(self, arrival: Arrival, serial: int) -> None:
        self._ids = arrival.content_ids
        self._size = arrival.content_block
        covered = len(self._ids) * self._size
        self._covered = min(covered, arrival.prompt_len) if arrival.content_is_prompt else covered
        self._own = 2 * serial + 1
        self._prompt_len = arrival.prompt_len
        ends_by_eos = arrival.max_tokens is not None and arrival.max_tokens > arrival.output_len
        self._eos_at = arrival.prompt_len + arrival.output_len - 1 if ends_by_eos else None

    @property
    def has_plain_decodes(self) -> bool:
        """Tell whether every token after the first of the output is the filler."""
        return self._covered <= self._prompt_len and self._eos_at is None

    def prompt(self) -> list[int]:
        """Return the prompt's tokens."""
        tokens: list[int] = []
        rest = [FILLER] * (self._size - 1)
        for content_id in self._ids[: -(-self._prompt_len // self._size)]:
            tokens.append(2 * content_id + 2)
            tokens += rest
        if len(tokens) < self._prompt_len:
            tokens.append(self._own)
            tokens += [FILLER] * (self._prompt_len - len(tokens))
        return tokens[: self._prompt_len]

    def token_at(self, position: int) -> int:
        """Return the token that is sampled for ``position``."""
        if position == self._eos_at:
            return EOS_TOKEN_ID
        if position < self._covered:
            return FILLER if position % self._size else 2 * self._ids[position // self._size] + 2
        return self._own if position == self._covered else FILLER


def rescaled(arrivals: Iterable[Arrival], speedup: float) -> list[Arrival]:
    """Let ``arrivals`` come ``speedup`` times as fast; how long a client has patience stays as it is."""
    if speedup == 1:
        return list(arrivals)  # to the last bit: a replay depends on it
    return [
        replace(
            arrival,
            arrival_s=(at := arrival.arrival_s / speedup),
            abort_at_s=None if arrival.abort_at_s is None else at + arrival.abort_at_s - arrival.arrival_s,
            added_s=None if arrival.added_s is None else at + arrival.added_s - arrival.arrival_s,
        )
        for arrival in arrivals
    ]
