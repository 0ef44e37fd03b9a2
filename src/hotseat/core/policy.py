"""Scheduling policies: the order of requests, and the victims of preemption.

A policy gives every waiting request a key; the smallest goes first, and among running requests the largest is the
victim when blocks run out. Ties go by arrival. The smallest policy there can be:

    class Fcfs(Policy):
        def key(self, request, now):
            return (request.arrived_at,)

The key is asked for when the request is enqueued, so waiting costs nothing. What grows with the time that a request
waits goes into the key from the start: ``priority + arrived_at / aging_s`` orders at any instant exactly like
``priority - waited / aging_s``.

The other methods have defaults. A class of the user's need not derive from ``Policy``: ``UserPolicy`` gives it the
defaults that it lacks, and replaces it by ``Fcfs`` when it raises, so that its fault ends no request.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from hotseat.core.batch import Batch
from hotseat.core.request import Request

__all__ = ["METHODS", "Fcfs", "Key", "Policy", "Priority", "UserPolicy", "overrides"]

Key: TypeAlias = tuple[float, ...]


class Policy:
    """The order of waiting requests and the choice of victims; a base class whose defaults do nothing special."""

    uses_priority = False  # whether Request.priority changes anything
    uses_deadline = False  # whether Request.deadline_at does
    num_missed_deadlines = 0  # requests whose first token could not be in time any more
    error: str | None = None  # set when a policy of the user's failed and was replaced

    def key(self, request: Request, now: float) -> Key:
        """Return the place of ``request``, which is being enqueued, in the order; smaller goes first."""
        return (request.arrived_at,)

    def may_preempt(self, waiting: Request, running: Request) -> bool:
        """Tell whether ``waiting`` is *strictly* more urgent, so that it may take the seat or blocks of ``running``.

        It must imply a smaller key, else the two take turns for ever.
        """
        return False

    # Groups: ordered first, by a number that changes all the time; keys order the requests within a group.

    def group(self, request: Request) -> str:
        """Return the group of ``request``; it never changes."""
        return ""

    def group_key(self, group: str) -> float:
        """Return the place of a group; smaller goes first. It never falls while the group waits."""
        return 0.0

    def joined(self, request: Request) -> None:
        """Note that ``request`` waits now."""

    def left(self, request: Request) -> None:
        """Note that ``request`` waits no longer: it was admitted or it ended."""

    # Orders that change

    def key_at_head(self, request: Request, now: float) -> Key:
        """Return the key of a request that came to the head; if it has grown, the request goes back in the order."""
        return request.wait.key

    def may_pass(self, short: Request, long: Request) -> bool:
        """Tell whether ``short``, which waits, may use the share for short prompts while ``long`` is prefilled."""
        return True

    # Observations

    def charge(self, request: Request, num_prefill_tokens: int, num_output_tokens: int) -> None:
        """Note the service of ``request``: its prefill when it is first admitted, then its output."""

    def ended(self, request: Request) -> None:
        """Note that ``request`` ended."""

    def stepped(self, batch: Batch, duration_s: float) -> None:
        """Note the duration of a step."""


METHODS = tuple(name for name, value in vars(Policy).items() if callable(value))


def overrides(policy: Policy, *names: str) -> bool:
    """Tell whether ``policy`` has a method of its own for any of ``names``: defaults need not be called."""
    return any(name in vars(policy) or getattr(type(policy), name) is not getattr(Policy, name) for name in names)


class Fcfs(Policy):
    """First come, first served: order of arrival, so no request starves.

    The victim is the last to arrive: the latest admitted, except that a request which was passed or preempted
    itself keeps its rank, so that it is not made to wait twice.
    """


class Priority(Policy):
    """Smaller priority first, then arrival; a strictly smaller priority may preempt.

    With ``aging_s`` a waiting request gains one level each such span, so no request starves.
    """

    uses_priority = True

    def __init__(self, aging_s: float | None = None) -> None:
        self._aging_s = aging_s

    def key(self, request: Request, now: float) -> Key:
        if self._aging_s is None:
            return (request.priority, request.arrived_at)
        return (request.priority + request.arrived_at / self._aging_s, request.arrived_at)

    def may_preempt(self, waiting: Request, running: Request) -> bool:
        return waiting.priority < running.priority and waiting.wait.key < running.wait.key


class UserPolicy(Policy):
    """A policy of the user's behind a guard: when a method raises or returns nonsense, ``Fcfs`` takes over for good.

    ``error`` says then what happened. The scheduler orders the queue anew by the keys of ``Fcfs``.
    """

    def __init__(self, policy: Any) -> None:
        self.uses_priority = getattr(policy, "uses_priority", True)
        self.uses_deadline = getattr(policy, "uses_deadline", True)
        self._name = type(policy).__name__
        for name in METHODS:
            own = getattr(policy, name, None)
            if own is not None and getattr(type(policy), name, None) is not getattr(Policy, name):
                setattr(self, name, self._guarded(name, own))

    def _guarded(self, name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        default = getattr(super(), name)

        def call(*arguments: Any) -> Any:
            if self.error is None:
                try:
                    value = own(*arguments)
                    if name not in _IS_VALID or _IS_VALID[name](value):
                        return value
                    self.error = f"{self._name}.{name} returned {value!r:.200}"
                except Exception as error:
                    self.error = f"{self._name}.{name} raised {type(error).__name__}: {error!s:.200}"
            return default(*arguments)

        return call


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not math.isnan(value)


def _is_key(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_is_number, value))


_IS_VALID: dict[str, Callable[[Any], bool]] = {
    "key": _is_key,
    "key_at_head": _is_key,
    "group": lambda value: isinstance(value, str),
    "group_key": _is_number,
    "may_preempt": lambda value: value is not None,
}
