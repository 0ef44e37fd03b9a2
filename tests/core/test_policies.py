"""Who goes first under each policy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from core.worlds import World, make_config
from hotseat.core.batch import Batch
from hotseat.core.policies import BUILT_IN, policy_for
from hotseat.core.policy import Key
from hotseat.core.request import Request
from hotseat.errors import ConfigError


def order_of_admission(world: World) -> list[str]:
    return [request_id for batch in world.batches for request_id in batch.admitted_ids]


def one_at_a_time(policy: str, **options: object) -> World:
    """Return a world with one seat, which somebody has for the first three steps."""
    world = World(scheduling_policy=policy, max_num_seqs=1, **options)
    world.add(10, "first", max_tokens=3, priority=-9)
    world.step()
    return world


def test_fcfs_goes_by_arrival_even_if_added_in_another_order() -> None:
    world = one_at_a_time("fcfs")
    world.add(10, "b", arrived_at=0.2)
    world.add(10, "a", arrived_at=0.1)
    world.add(10, "c", arrived_at=0.3)
    world.run()
    assert order_of_admission(world) == ["first", "a", "b", "c"]


def test_priority_goes_by_priority_then_arrival() -> None:
    world = one_at_a_time("priority")
    for name, priority in (("late", 7), ("b", 3), ("urgent", 1), ("c", 3)):
        world.add(10, name, priority=priority)
    world.run()
    assert order_of_admission(world) == ["first", "urgent", "b", "c", "late"]


def test_equal_priorities_degenerate_to_order_of_arrival() -> None:
    world = one_at_a_time("priority")
    names = [f"r{index}" for index in range(20)]
    for name in names:
        world.add(10, name, priority=4)
    world.run()
    assert order_of_admission(world) == ["first", *names]
    assert world.scheduler.stats().num_preemptions == 0


@pytest.mark.parametrize(("aging_s", "is_starved"), [(None, True), (10.0, False)])
def test_aging_ends_starvation(aging_s: float | None, is_starved: bool) -> None:
    world = World(scheduling_policy="priority", max_num_seqs=1, aging_s=aging_s)
    world.add(10, "lowly", max_tokens=1, priority=5)
    for index in range(100):
        world.add(10, f"urgent{index}", max_tokens=1, priority=0)
        world.step()
    assert ("lowly" not in world.ends) == is_starved


def test_aged_request_is_not_preempted_by_one_that_is_behind_it() -> None:
    world = World(scheduling_policy="priority", max_num_seqs=1, aging_s=1.0)
    world.add(10, "aged", max_tokens=5, priority=3)
    world.now = 10.0
    world.step()
    world.add(10, "urgent", max_tokens=5, priority=0)
    world.run()
    assert world.scheduler.stats().num_preemptions == 0


def test_sjf_takes_the_shortest_job_first() -> None:
    world = one_at_a_time("sjf")
    world.add(100, "long prompt", max_tokens=1)
    world.add(10, "long answer", max_tokens=50)
    world.add(10, "short", max_tokens=2)
    world.run()
    assert order_of_admission(world) == ["first", "short", "long answer", "long prompt"]


def test_sjf_expects_what_others_needed_rather_than_what_is_allowed() -> None:
    world = one_at_a_time("sjf")
    world.run()  # "first" taught it that answers have 3 tokens
    world.add(10, "holds the seat", max_tokens=3)
    world.step()
    world.add(20, "longer prompt", max_tokens=3)
    world.add(15, "generous limit", max_tokens=200)
    world.run()
    assert order_of_admission(world)[-2:] == ["generous limit", "longer prompt"]


def test_sjf_with_aging_starves_nobody() -> None:
    world = World(scheduling_policy="sjf", max_num_seqs=1, aging_s=5.0)
    world.add(200, "long", max_tokens=1)
    for index in range(100):
        world.add(5, f"short{index}", max_tokens=1)
        world.step()
    assert "long" in world.ends


def flood(policy: str, weights: tuple[str, ...] = ()) -> tuple[World, list[Counter[str]]]:
    """Let one tenant flood and another send its own long queue; return the service of each after each step."""
    world = World(
        is_light=True,
        scheduling_policy=policy,
        tenant_weights=weights,
        num_kv_blocks=40,
        max_num_seqs=8,
        max_num_batched_tokens=64,
    )
    random = Random(1)
    for _ in range(600):
        world.add(random.randint(5, 60), max_tokens=random.randint(1, 40), tenant="floods")
    for _ in range(150):
        world.add(random.randint(5, 60), max_tokens=random.randint(1, 40), tenant="modest")
    service: Counter[str] = Counter()
    history = []
    while {"floods", "modest"} <= {request.tenant for request in world.scheduler._waiting}:
        batch = world.step()
        for chunk in batch.chunks:
            request = world.requests[chunk.request_id]
            num_prompt = min(chunk.end, request.num_prompt_tokens) - min(chunk.start, request.num_prompt_tokens)
            service[request.tenant] += num_prompt + 2 * chunk.samples
        history.append(Counter(service))
    return world, history


def test_fair_keeps_the_service_gap_of_two_tenants_within_the_bound_of_the_paper() -> None:
    bound = 2 * max(1 * 60, 2 * 40 * 16)  # 2 · max(prompt weight · longest prompt, output weight · tokens in the cache)
    _, history = flood("fair")
    assert len(history) > 100
    assert max(abs(service["floods"] - service["modest"]) for service in history) <= bound / 4
    _, unfair = flood("fcfs")
    assert max(abs(service["floods"] - service["modest"]) for service in unfair) > 4 * bound


def test_fair_gives_a_tenant_of_weight_3_three_times_the_service() -> None:
    _, history = flood("fair", ("floods=3",))
    service = history[-1]
    assert service["floods"] / service["modest"] == pytest.approx(3.0, rel=0.1)


def test_fair_lifts_a_tenant_that_comes_back_so_that_nobody_saves_up() -> None:
    world = World(scheduling_policy="fair", max_num_seqs=1, is_light=True)
    for index in range(40):
        world.add(50, f"busy{index}", max_tokens=1, tenant="busy")
    for _ in range(20):
        world.step()
    for index in range(20):
        world.add(50, f"idle{index}", max_tokens=1, tenant="idle")
    before = len(order_of_admission(world))
    for _ in range(20):
        world.step()
    tenants = Counter(request_id[:4] for request_id in order_of_admission(world)[before:])
    assert abs(tenants["busy"] - tenants["idle"]) <= 2


def test_fair_forgets_tenants_that_are_gone() -> None:
    world = World(scheduling_policy="fair", is_light=True)
    for index in range(2500):
        world.add(5, max_tokens=1, tenant=f"tenant{index}")
        world.scheduler.schedule(world.now)
        world.scheduler.abort(world.requests[f"r{index + 1}"].id, world.now)
    assert len(world.scheduler.policy._counters) < 1500  # type: ignore[attr-defined]


def test_deadline_takes_the_earliest_deadline_first() -> None:
    world = one_at_a_time("deadline")
    for name, deadline_at in (("c", 300.0), ("a", 100.0), ("b", 200.0)):
        world.add(10, name, deadline_at=deadline_at)
    world.run()
    assert order_of_admission(world) == ["first", "a", "b", "c"]


def test_deadline_puts_hopeless_ones_last_and_counts_them() -> None:
    world = one_at_a_time("deadline", default_deadline_ms=1_000_000.0)
    world.add(10, "hopeless when it comes", deadline_at=0.5)
    world.add(10, "hopeless when its turn comes", deadline_at=1.5)
    world.add(10, "in time", deadline_at=50.0)
    world.add(10, "default")
    world.run()
    admitted = order_of_admission(world)
    assert admitted[:3] == ["first", "in time", "default"]
    assert set(admitted[3:]) == {"hopeless when it comes", "hopeless when its turn comes"}
    assert world.scheduler.stats().num_missed_deadlines == 2


@pytest.mark.parametrize(("aging_s", "is_starved"), [(None, True), (10.0, False)])
def test_hopeless_request_is_due_again_after_the_aging_span(aging_s: float | None, is_starved: bool) -> None:
    world = World(scheduling_policy="deadline", max_num_seqs=1, aging_s=aging_s)
    world.add(10, "hopeless", max_tokens=1, deadline_at=-1.0)
    for index in range(60):
        world.add(10, f"in time {index}", max_tokens=1, deadline_at=world.now + 2.0)
        world.step()
    assert ("hopeless" not in world.ends) == is_starved
    assert world.scheduler.stats().num_missed_deadlines == 1


def test_deadline_knows_how_long_a_prefill_takes() -> None:
    world = World(scheduling_policy="deadline", max_num_seqs=1, max_num_batched_tokens=100, short_prefill_share=0.0)
    world.add(100, "teaches", max_tokens=3)  # 100 tokens take a second
    world.step()
    world.add(1000, "cannot make it", deadline_at=9.0)
    world.add(100, "can make it", deadline_at=9.5)
    world.run()
    assert order_of_admission(world) == ["teaches", "can make it", "cannot make it"]


def test_unknown_policy_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ConfigError, match=f"{', '.join(BUILT_IN)} or module:Class, not 'lottery'"):
        policy_for(make_config(scheduling_policy="lottery"))


class LongestPromptFirst:
    """A policy as a user would write it."""

    def key(self, request: Request, now: float) -> Key:
        return (-len(request.prompt_token_ids),)

    def may_preempt(self, waiting: Request, running: Request) -> bool:
        return False


def test_own_policy_needs_two_methods() -> None:
    world = World(LongestPromptFirst(), max_num_seqs=1)
    for length in (10, 30, 20):
        world.add(length, f"{length}", max_tokens=1)
    world.run()
    assert order_of_admission(world) == ["30", "20", "10"]


def test_own_policy_of_the_guide_works() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "scheduling.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(guide.partition("```python\n")[2].partition("```")[0], names)
    world = World(names["Vip"](), max_num_seqs=1)
    world.add(10, "guest", tenant="guest", max_tokens=5)
    world.step()
    world.add(10, "paying", tenant="acme", max_tokens=2)
    world.add(10, "guest too", tenant="other", max_tokens=2)
    assert world.step().admitted_ids == ["paying"]
    world.run()
    assert order_of_admission(world) == ["guest", "paying", "guest", "guest too"]
    world.assert_answers_are_right()


class Watching(LongestPromptFirst):
    """A policy that writes down what it is told."""

    def __init__(self) -> None:
        self.charged: Counter[str] = Counter()
        self.num_ended = 0
        self.durations: list[float] = []

    def charge(self, request: Request, num_prefill_tokens: int, num_output_tokens: int) -> None:
        self.charged[request.id] += num_prefill_tokens + 100 * num_output_tokens

    def ended(self, request: Request) -> None:
        self.num_ended += 1

    def stepped(self, batch: Batch, duration_s: float) -> None:
        self.durations.append(duration_s)


def test_policy_that_observes_is_told_of_every_token_once() -> None:
    policy = Watching()
    world = World(policy, num_kv_blocks=12, block_size=4, max_num_seqs=4, max_num_batched_tokens=64, watermark=0.0)
    for index in range(3):
        world.add(13, f"r{index}", max_tokens=18)
    world.run()
    assert world.scheduler.stats().num_preemptions > 0
    assert policy.charged == {f"r{index}": 13 + 1800 for index in range(3)}
    assert policy.num_ended == 3
    assert set(policy.durations) == {1.0}


def test_fair_does_not_let_a_tenant_use_the_share_for_short_prompts_to_get_more_than_its_own() -> None:
    options = {"max_num_batched_tokens": 64, "max_num_seqs": 16, "num_kv_blocks": 400}
    world = World(is_light=True, scheduling_policy="fair", **options)
    service: Counter[str] = Counter()
    gap = 0
    for _ in range(3000):
        while sum(other.tenant == "short" and other.id not in world.ends for other in world.requests.values()) < 20:
            world.add(10, max_tokens=100, tenant="short")
        while sum(other.tenant == "long" and other.id not in world.ends for other in world.requests.values()) < 4:
            world.add(1000, max_tokens=1, tenant="long")
        batch = world.step()
        for chunk in batch.chunks:
            is_decode = chunk.end > world.requests[chunk.request_id].num_prompt_tokens
            service[world.requests[chunk.request_id].tenant] += (1 + is_decode) * (chunk.end - chunk.start)
        for request_id in list(world.ends):
            del world.requests[request_id], world.ends[request_id]
        gap = max(gap, abs(service["short"] - service["long"]))
    assert gap <= 2 * max(1000, 2 * 400 * 16)
    assert gap < 0.05 * sum(service.values())
