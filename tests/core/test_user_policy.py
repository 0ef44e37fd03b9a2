"""A policy of the user's that is at fault harms no request: fcfs takes over."""

from __future__ import annotations

import math
from typing import Any

import pytest

from core.worlds import World
from hotseat.core.request import Request


class KeyOnly:
    def key(self, request: Request, now: float) -> tuple[float, ...]:
        return (-request.num_prompt_tokens,)


class Faulty:
    """Raises, or returns ``value``, from its second call of ``name`` on."""

    def __init__(self, name: str, value: Any = None) -> None:
        self.num_calls = 0
        self.name = name
        self.value = value
        setattr(self, name, self.fail)

    def fail(self, *arguments: Any) -> Any:
        self.num_calls += 1
        if self.num_calls < 2:
            return {"group": "", "may_pass": True, "ended": None, "key_at_head": (0.0,)}.get(self.name, (1.0,))
        if self.value is None:
            raise RuntimeError("no idea")
        return self.value


def test_a_policy_may_lack_every_method_but_one() -> None:
    world = World(KeyOnly(), max_num_seqs=1)  # type: ignore[arg-type]
    for length in (10, 30, 20):
        world.add(length, f"{length}", max_tokens=1)
    world.run()
    assert [one for batch in world.batches for one in batch.admitted_ids] == ["30", "20", "10"]
    assert world.scheduler.stats().policy_error is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("key", None, "Faulty.key raised RuntimeError: no idea"),
        ("key", 5, "Faulty.key returned 5"),
        ("key", (math.nan,), "returned (nan,)"),
        ("key", ("a",), "returned ('a',)"),
        ("group", 3, "Faulty.group returned 3"),
        ("ended", None, "Faulty.ended raised"),
        ("key_at_head", "x", "Faulty.key_at_head returned 'x'"),
    ],
)
def test_fcfs_takes_over_from_a_policy_that_fails(name: str, value: Any, said: str) -> None:
    world = World(Faulty(name, value), max_num_seqs=1)  # type: ignore[arg-type]
    for index in range(4):
        world.add(10 + index, f"r{index}", max_tokens=2)
    world.run()
    assert world.scheduler.stats().policy_error is not None
    assert said in world.scheduler.stats().policy_error
    assert [one for batch in world.batches for one in batch.admitted_ids] == ["r0", "r1", "r2", "r3"]
    world.assert_answers_are_right()


class NewestFirst:
    """Newest first, for as long as it works."""

    def __init__(self, num_calls: int) -> None:
        self.num_left = num_calls

    def key(self, request: Request, now: float) -> tuple[float, ...]:
        self.num_left -= 1
        if self.num_left < 0:
            raise RuntimeError("no idea")
        return (-request.arrived_at,)


def test_the_order_of_running_requests_is_that_of_fcfs_as_well_after_a_fault() -> None:
    world = World(NewestFirst(2), num_kv_blocks=6, block_size=4, watermark=0.0, max_num_seqs=2)  # type: ignore[arg-type]
    world.add(8, "first", max_tokens=12)
    world.step()
    world.add(8, "second", max_tokens=12)
    world.step()
    world.add(8, "third", max_tokens=2)
    world.run()
    preempted = [one.request_id for batch in world.batches for one in batch.preempted]
    assert preempted[0] == "second"
    assert "first" not in preempted
    world.assert_answers_are_right()


def test_a_prefix_owner_inherits_the_rank_of_fcfs_after_a_fault() -> None:
    prefix = list(range(200))
    world = World(NewestFirst(4), max_num_batched_tokens=32, max_num_seqs=4, short_prefill_share=0.0)  # type: ignore[arg-type]
    world.add(prefix, "owner", max_tokens=1)
    world.step()
    world.add([*prefix, 1], "early", max_tokens=1)
    world.step()
    world.add([*prefix, 2], "late", max_tokens=1)
    world.step()
    owner = world.requests["owner"]
    assert owner.best_waiter is world.requests["late"]
    world.add(30, "other", max_tokens=1)
    world.add(30, "faulty", max_tokens=1)
    world.step()
    assert owner.best_waiter is world.requests["early"]
    world.run()
    world.assert_answers_are_right()


def test_short_prompts_may_pass_when_the_policy_that_decides_it_fails() -> None:
    policy = Faulty("may_pass")
    world = World(policy, max_num_batched_tokens=64, max_num_seqs=4)  # type: ignore[arg-type]
    world.add(600, "long", max_tokens=1)
    for index in range(3):
        world.add(4, f"short{index}", max_tokens=1)
    world.run()
    assert policy.num_calls == 2
    assert world.scheduler.stats().policy_error == "Faulty.may_pass raised RuntimeError: no idea"
    assert list(world.ends)[-1] == "long"
    world.assert_answers_are_right()
