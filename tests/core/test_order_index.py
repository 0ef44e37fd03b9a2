"""The index of the queue's order: counted places, and a look at the queue that does not grow with it."""

from __future__ import annotations

from bisect import bisect_left
from random import Random
from typing import ClassVar

import pytest

from core.worlds import World
from hotseat.core.order_index import CHUNK_LEN, OrderIndex
from hotseat.core.request import Request, RequestId


def test_index_counts_like_a_sorted_list_through_splits_and_emptied_chunks() -> None:
    random, index = Random(3), OrderIndex()
    places: list[tuple[tuple[float, ...], int]] = []
    for serial in range(6 * CHUNK_LEN):
        place = ((float(random.randint(0, 50)),), serial)
        index.add(*place)
        places.append(place)
    random.shuffle(places)
    in_order = sorted(places)
    for num_left in range(len(places), 0, -1):
        place = places.pop()
        if num_left % 37 == 0:
            assert index.num_before(*place) == bisect_left(in_order, place)
            assert index.num_before((99.0,), 0) == num_left
        index.remove(*place)
        in_order.remove(place)
        assert len(index) == num_left - 1
    assert index.num_before((0.0,), 0) == 0


class CountedFloat(float):
    """A number that counts how often it is compared."""

    num_compared: ClassVar[int] = 0

    def __eq__(self, other: object) -> bool:
        CountedFloat.num_compared += 1
        return float(self) == other

    __hash__ = float.__hash__


class Arrival:
    def key(self, request: Request, now: float) -> tuple[float, ...]:
        return (CountedFloat(request.arrived_at),)


@pytest.mark.parametrize("num_waiting", [1_000, 10_000])
def test_explaining_a_waiting_request_costs_no_look_at_the_others(num_waiting: int) -> None:
    world = World(Arrival(), max_num_seqs=1, is_light=True)  # type: ignore[arg-type]
    for index in range(num_waiting + 1):
        world.add([1, 2, 3], f"r{index}", max_tokens=1000, arrived_at=float(index))
    world.step()
    CountedFloat.num_compared = 0
    explanation = world.scheduler.explain(RequestId(f"r{num_waiting}"), world.now)
    assert explanation is not None
    assert explanation.num_ahead == num_waiting - 1
    assert CountedFloat.num_compared < 60
