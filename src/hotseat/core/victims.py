"""The choice of running requests that must give up their seats."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hotseat.core.block_pool import Block
from hotseat.core.request import Request
from hotseat.core.waiting import Rank

__all__ = ["choose_victims", "least_urgent"]


def least_urgent(running: Sequence[Request], rank: Callable[[Request], Rank]) -> Request:
    """Return the running request that has to go when blocks run out."""
    return max(running, key=rank)


def choose_victims(
    candidates: Sequence[Request], hits: Sequence[Block], *, num_seats: int, num_blocks: int, headroom: int
) -> list[Request]:
    """Return the fewest ``candidates``, from the first on, that free ``num_seats`` and ``num_blocks``.

    An empty list: none is needed, or not even all of them are enough. ``hits`` are blocks that the newcomer shares:
    they do not come free for it. ``headroom`` is the part of ``num_blocks`` that need not stay free when no other
    request is left running.
    """
    num_held = {block.id: -1 for block in hits}
    victims: list[Request] = []
    for candidate in candidates:
        if len(victims) >= num_seats and num_blocks <= 0:
            break
        victims.append(candidate)
        num_blocks -= sum(block.size for block in candidate.blocks if _is_last_holder(block, num_held))
        num_blocks -= candidate.num_promised_blocks
    if len(victims) == len(candidates):
        num_blocks -= headroom
    return victims if len(victims) >= num_seats and num_blocks <= 0 else []


def _is_last_holder(block: Block, num_held: dict[int, int]) -> bool:
    """Count one more victim that holds ``block``; tell whether no other table does."""
    num_held[block.id] = num_held.get(block.id, 0) + 1
    return num_held[block.id] == block.num_refs
