"""Who goes first, and who has to get up.

A policy gives every waiting request a key; the smallest goes first, and among running requests the largest is the
victim when blocks run out. Ties go by arrival. The smallest policy there can be:

    class Fcfs:
        def key(self, request, now):
            return (request.arrived_at,)

        def may_preempt(self, waiting, running):
            return False

The key is asked for when the request joins the queue, so waiting costs nothing. What grows with the time that a
request waits goes into the key from the start: ``priority + arrived_at / aging_s`` orders at any instant exactly like
``priority - waited / aging_s``.

Optional abilities, each a protocol of its own: ``Grouping`` orders groups of requests by a number that changes all the
time, ``Sinking`` lets requests fall back, ``Passing`` decides who may pass beside a long prompt, ``Observing`` is told
what is computed and who ends.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias, runtime_checkable

from hotseat.core.batch import Batch
from hotseat.core.request import Request

__all__ = ["Fcfs", "Grouping", "Key", "Observing", "Passing", "Policy", "Priority", "Sinking"]

Key: TypeAlias = tuple[float, ...]


class Policy(Protocol):
    """Decides order and victims."""

    def key(self, request: Request, now: float) -> Key:
        """Return the place of ``request``, which joins the queue, in the order; smaller goes first."""
        ...

    def may_preempt(self, waiting: Request, running: Request) -> bool:
        """Tell whether ``waiting`` is *strictly* more urgent, so that it may take the seat or blocks of ``running``.

        It must imply a smaller key, else the two take turns for ever.
        """
        ...


@runtime_checkable
class Grouping(Protocol):
    """A policy that orders groups of requests first; keys order the requests within a group."""

    def group(self, request: Request) -> str:
        """Return the group of ``request``; it never changes."""
        ...

    def group_key(self, group: str) -> float:
        """Return the place of a group; smaller goes first. It never falls while the group waits."""
        ...

    def joined(self, request: Request) -> None:
        """Note that ``request`` waits now."""
        ...

    def left(self, request: Request) -> None:
        """Note that ``request`` waits no longer: it was admitted or it ended."""
        ...


@runtime_checkable
class Sinking(Protocol):
    """A policy under which a waiting request may lose its place."""

    def key_at_head(self, request: Request, now: float) -> Key:
        """Return the key of a request that came to the head; if it has grown, the request goes back in the order."""
        ...


@runtime_checkable
class Passing(Protocol):
    """A policy under which not every short prompt may pass beside a long one."""

    def may_pass(self, short: Request, long: Request) -> bool:
        """Tell whether ``short``, which waits, may use the share for short prompts while ``long`` is prefilled."""
        ...


@runtime_checkable
class Observing(Protocol):
    """A policy that learns from what happens."""

    def charge(self, request: Request, num_prefill_tokens: int, num_output_tokens: int) -> None:
        """Note what ``request`` is given: its prefill when it is first admitted, then its output."""
        ...

    def ended(self, request: Request) -> None:
        """Note that ``request`` ended."""
        ...

    def stepped(self, batch: Batch, duration_s: float) -> None:
        """Note how long a step took."""
        ...


class Fcfs:
    """First come, first served: order of arrival. Nobody starves.

    The victim is the last to arrive: the latest admitted, except that a request which was passed or preempted
    itself keeps its rank, so that nobody is made to wait twice.
    """

    def key(self, request: Request, now: float) -> Key:
        return (request.arrived_at,)

    def may_preempt(self, waiting: Request, running: Request) -> bool:
        return False


class Priority:
    """Smaller priority first, then arrival; a strictly smaller priority may preempt.

    With ``aging_s`` a waiting request gains one level each such span, so nobody starves.
    """

    def __init__(self, aging_s: float | None = None) -> None:
        self._aging_s = aging_s

    def key(self, request: Request, now: float) -> Key:
        if self._aging_s is None:
            return (request.priority, request.arrived_at)
        return (request.priority + request.arrived_at / self._aging_s, request.arrived_at)

    def may_preempt(self, waiting: Request, running: Request) -> bool:
        return waiting.priority < running.priority and waiting.wait.key < running.wait.key
