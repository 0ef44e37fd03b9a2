"""20,000 random steps in tiny worlds: every invariant after every move, every answer right at the end."""

from __future__ import annotations

from random import Random

import pytest

from core.random_world import POLICIES, RandomWorld

NUM_STEPS = 20_000
STEPS_PER_WORLD = 100


@pytest.mark.parametrize("policy", POLICIES)
def test_20_000_random_steps_keep_every_invariant_and_every_answer(policy: str) -> None:
    num_worlds = NUM_STEPS // len(POLICIES) // STEPS_PER_WORLD
    num_preemptions = 0
    for seed in range(num_worlds):
        random = Random(f"{policy} {seed}")
        world = RandomWorld(random, scheduling_policy=policy)
        for _ in range(STEPS_PER_WORLD):
            walk(world, random)
            world.scheduler.check_invariants()
        world.wind_up()
        num_preemptions += world.scheduler.stats().num_preemptions
    assert num_preemptions > 50, "the worlds are too roomy to show anything"


def walk(world: RandomWorld, random: Random) -> None:
    """Run one step, and let things happen before it and in its middle."""
    while random.random() < 0.4:
        world.arrive()
    if random.random() < 0.02:
        world.scheduler.reset_prefix_cache()
    world.schedule()
    if random.random() < 0.1 and (victim := world.anybody()):
        world.abort(victim)
    world.update()
