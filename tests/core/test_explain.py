"""Being asked: where is my request, why, and for how long; and what a step's record says."""

from __future__ import annotations

from core.worlds import World
from hotseat.core.events import Scheduled, StepRecord
from hotseat.core.explain import Explanation
from hotseat.core.request import RequestStatus


def explain(world: World, request_id: str) -> Explanation:
    explanation = world.scheduler.explain(world.requests[request_id].id, world.now)
    assert explanation is not None
    return explanation


def test_unknown_and_ended_requests_have_no_explanation() -> None:
    world = World()
    request = world.add(10, max_tokens=1)
    world.run()
    assert world.scheduler.explain(request.id, world.now) is None


def test_waiting_for_a_seat_is_explained_with_the_number_ahead_and_the_time() -> None:
    world = World(max_num_seqs=1)
    world.add(10, "running", max_tokens=10)
    world.step()
    world.add(10, "a", max_tokens=1)
    world.add(10, "b", max_tokens=1)
    for _ in range(4):
        world.step()
    first, second = explain(world, "a"), explain(world, "b")
    assert first.reason == "first in the queue; the queue waits for: seats"
    assert second.reason == "policy: 1 ahead; the queue waits for: seats"
    assert (first.num_ahead, second.num_ahead, second.num_free_seats) == (0, 1, 0)
    assert second.waited_s == {"next step": 0.0, "seats": 4.0} or second.waited_s == {"seats": 4.0}


def test_running_request_is_explained_with_its_seat_and_progress() -> None:
    world = World(max_num_batched_tokens=64)
    world.add(100, "r")
    world.step()
    explanation = explain(world, "r")
    assert (explanation.status, explanation.seat) == (RequestStatus.RUNNING, 0)
    assert explanation.reason == "runs: 36 tokens to prefill"
    world.step()
    assert explain(world, "r").reason == "runs: decodes one token a step"


def test_waiting_for_blocks_is_explained_with_need_free_blocks_and_who_passed() -> None:
    world = World(num_kv_blocks=20, block_size=16)
    world.add(200, "holder", max_tokens=6)
    world.step()
    world.add(200, "big")
    world.add(10, "small", max_tokens=1)
    world.step()
    explanation = explain(world, "big")
    assert explanation.reason.startswith("blocks: needs 13, 7 free")
    assert (explanation.needs_blocks, explanation.blocks_free) == (13, 7)
    assert explanation.times_passed == 1
    assert explanation.passed_by == ("small",)
    world.step()
    assert explain(world, "big").waited_s["blocks"] == 2.0
    world.run()


def test_waiting_for_a_prefix_is_explained_with_its_owner() -> None:
    world = World(max_num_batched_tokens=128)
    world.add(list(range(100)), "owner")
    world.add(list(range(100)), "waiter")
    world.scheduler.schedule(world.now)
    assert explain(world, "waiter").reason == "prefix: owner is computing it"


def test_preemption_is_explained_with_its_cause() -> None:
    world = World(num_kv_blocks=8, block_size=4, max_num_seqs=4, max_num_batched_tokens=64, watermark=0.0)
    world.add(13, "a", max_tokens=10)
    world.add(13, "b", max_tokens=10)
    while not world.scheduler.stats().num_preemptions:
        world.step()
    explanation = explain(world, "b")
    assert explanation.num_preemptions == 1
    assert explanation.preempted_by == ("blocks: a needed 1, 0 free",)
    assert explanation.num_output_tokens == len(world.outputs["b"])


def test_time_before_admission_adds_up_to_the_whole_wait() -> None:
    world = World(max_num_seqs=2, num_kv_blocks=20, block_size=16, max_num_batched_tokens=64, short_prefill_share=0.0)
    for index in range(12):
        world.add(100 + 10 * index, f"r{index}", max_tokens=3)
    world.run()
    for request in world.requests.values():
        assert request.admitted_at is not None
        assert sum(request.wait.spent.values()) == request.admitted_at - request.arrived_at


def test_step_record_says_who_computed_what() -> None:
    world = World(max_num_batched_tokens=64)
    world.add(10, "a", max_tokens=5)
    world.step()
    world.add(100, "b")
    batch = world.step()
    record = StepRecord(
        step=batch.step,
        start_s=1.0,
        duration_s=1.0,
        chunks=batch.chunks,
        num_decodes=batch.num_decodes,
        prefill_totals=batch.prefill_totals,
        admitted=batch.admitted_ids,
        finished=[],
        preempted=batch.preempted,
        deferred=batch.deferred,
        waiting=batch.num_waiting,
        blocks_used=batch.blocks_used,
        blocks_cached=batch.blocks_cached,
        blocks_free=batch.blocks_free,
        budget=batch.budget,
    )
    assert list(record.scheduled()) == [
        Scheduled(0, world.requests["a"].id, 10, 11, "decode", 11),
        Scheduled(1, world.requests["b"].id, 0, 63, "prefill", 100),
    ]
    assert (record.num_tokens, record.budget) == (64, 64)
    assert record.blocks_used + record.blocks_free == 1000


def test_running_prefill_without_budget_is_named_with_the_reason() -> None:
    world = World(scheduling_policy="priority", max_num_batched_tokens=64, short_prefill_share=0.0)
    world.add(400, "lowly", priority=5)
    world.step()
    world.add(100, "urgent", priority=0)
    batch = world.step()
    assert world.sizes(batch) == {"urgent": 64}
    assert batch.deferred == [("lowly", "budget")]
    world.run()
    world.assert_answers_are_right()
