"""Hypothesis drives a tiny world: add, abort, finish, step, reset, in any order, under every policy and mode."""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core.random_world import POLICIES, RandomWorld
from hotseat.core.request import FinishReason


class SchedulerMachine(RuleBasedStateMachine):
    """A random world whose every move is Hypothesis's."""

    world: RandomWorld

    @initialize(
        random=st.randoms(use_true_random=False),
        policy=st.sampled_from(POLICIES),
        batching=st.sampled_from(["continuous", "continuous", "static", "dynamic"]),
    )
    def begin(self, random: Random, policy: str, batching: str) -> None:
        self.world = RandomWorld(random, scheduling_policy=policy, batching=batching)

    @property
    def is_in_step(self) -> bool:
        return self.world.in_flight is not None

    @rule(count=st.integers(1, 4))
    def add(self, count: int) -> None:
        for _ in range(count):
            self.world.arrive()

    @rule()
    def abort(self) -> None:
        if request_id := self.world.anybody():
            self.world.abort(request_id)

    @precondition(lambda self: not self.is_in_step)
    @rule(reason=st.sampled_from([FinishReason.STOP, FinishReason.ERROR]))
    def finish(self, reason: FinishReason) -> None:
        if request_id := self.world.anybody():
            self.world.finish(request_id, reason)

    @precondition(lambda self: not self.is_in_step)
    @rule()
    def schedule(self) -> None:
        self.world.schedule()

    @precondition(lambda self: self.is_in_step)
    @rule()
    def update(self) -> None:
        self.world.update()

    @precondition(lambda self: not self.is_in_step)
    @rule(count=st.integers(1, 20))
    def run_steps(self, count: int) -> None:
        for _ in range(count):
            self.world.schedule()
            self.world.update()
            self.world.scheduler.check_invariants()

    @rule()
    def reset(self) -> None:
        self.world.scheduler.reset_prefix_cache()

    @rule()
    def flush(self) -> None:
        self.world.scheduler.flush()

    @invariant()
    def all_books_agree(self) -> None:
        if hasattr(self, "world"):
            self.world.scheduler.check_invariants()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.wind_up()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=120, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
