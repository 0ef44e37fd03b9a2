"""What one step hands out: decodes first, chunks, the share for short prompts, prefix hits."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from core.fake_runner import expected_output
from core.worlds import World
from hotseat.core.request import FinishReason


def test_three_prompts_of_800_share_a_budget_of_1024_in_chunks_of_400() -> None:
    world = World(max_num_batched_tokens=1024, long_prefill_token_threshold=400, short_prefill_share=0.0)
    for name in ("a", "b", "c"):
        world.add(800, name)
    assert world.sizes(world.step()) == {"a": 400, "b": 400, "c": 224}
    assert world.sizes(world.step()) == {"a": 400, "b": 400, "c": 224}
    assert world.sizes(world.step()) == {"a": 1, "b": 1, "c": 352}
    world.run()
    world.assert_answers_are_right()


def test_ten_short_requests_are_all_admitted_in_one_step_in_order_of_arrival() -> None:
    world = World()
    for index in range(10):
        world.add(20, f"r{index}")
    batch = world.step()
    assert batch.admitted_ids == [f"r{index}" for index in range(10)]
    assert [seating.seat for seating in batch.new_requests] == list(range(10))
    assert batch.num_tokens == 200
    assert batch.num_decodes == 0
    assert all(chunk.samples for chunk in batch.chunks)


def test_decodes_come_before_any_prefill() -> None:
    world = World(max_num_batched_tokens=64, max_num_seqs=8)
    world.add(10, "old", max_tokens=10)
    world.step()
    world.add(100, "new")
    batch = world.step()
    assert [(chunk.request_id, chunk.end - chunk.start) for chunk in batch.chunks] == [("old", 1), ("new", 63)]
    assert batch.num_decodes == 1
    assert batch.prefill_totals == [100]


def test_nothing_is_sampled_before_the_last_chunk() -> None:
    world = World(max_num_batched_tokens=64)
    request = world.add(150, max_tokens=2)
    samples = [world.step().chunks[0].samples for _ in range(3)]
    assert samples == [False, False, True]
    assert world.outputs[request.id] == expected_output(request.prompt_token_ids, 1)


def test_last_prompt_token_is_served_before_other_prefills() -> None:
    world = World(max_num_batched_tokens=64, max_num_seqs=4, short_prefill_share=0.0, scheduling_policy="sjf")
    world.add(65, "nearly")
    world.step()
    world.add(20, "shorter", max_tokens=1)
    world.add(50, "other", max_tokens=1)
    assert world.sizes(world.step()) == {"nearly": 1, "shorter": 20, "other": 43}


@pytest.mark.parametrize(("first", "step"), [(20, 2), (126, 2), (224, 0)])  # lengths: first, first + step, …
def test_short_prompts_have_their_first_token_within_two_steps_beside_a_prompt_of_30_000(first: int, step: int) -> None:
    options: dict[str, Any] = {"max_num_batched_tokens": 512, "max_model_len": 40_000, "num_kv_blocks": 4000}
    alone = World(is_light=True, **options)
    alone.add(30_000, "long", max_tokens=1)
    alone.run()
    world = World(is_light=True, **options)
    world.add(30_000, "long", max_tokens=1)
    world.step()
    share = world.config.short_prefill_tokens // 2
    assert share == (512 - 64) // 4
    for index in range(50):
        world.add(first + step * index, f"short{index}", max_tokens=1)
    world.run()
    for request in world.requests.values():
        assert request.admitted_at is not None
        assert request.first_token_at is not None
        if request.id != "long":
            assert request.first_token_at - request.admitted_at <= 2.0
            assert request.first_token_at <= 1 + sum(first + step * index for index in range(50)) // share + 1
    assert world.requests["long"].first_token_at <= alone.requests["long"].first_token_at * 4 / 3 + 1
    shares = [world.sizes(batch)["long"] for batch in world.batches if "long" in world.sizes(batch)]
    assert min(shares[:-1]) >= 512 * 3 // 4


@pytest.mark.parametrize("budget", [128, 512])
@pytest.mark.parametrize("num_decodes", [0, 40])
@pytest.mark.parametrize("seed", range(3))
def test_first_tokens_come_within_two_steps_although_those_who_have_theirs_take_room(
    budget: int, num_decodes: int, seed: int
) -> None:
    random = Random(seed)
    world = World(is_light=True, max_num_batched_tokens=budget, max_model_len=60_000, num_kv_blocks=5000)
    for _ in range(num_decodes):
        world.add(1, max_tokens=10_000)
    world.step()
    world.add(100 * budget, "long", max_tokens=1)
    world.step()
    short, room = [], 0
    while "long" not in world.ends:
        if random.random() < 0.5 and world.scheduler.num_running < 60:
            length = random.randint(1, budget // 2)
            short.append(world.add(length, max_tokens=random.choice([1, 30])))
        batch = world.step()
        room += budget - batch.num_decodes
    assert len(short) > 20
    for request in short:
        if request.admitted_at is not None and request.admitted_at <= world.now - 2.0:
            assert request.first_token_at is not None
            assert request.first_token_at - request.admitted_at <= 2.0
    assert 0.74 * (room - budget) <= 100 * budget  # the long one had three quarters of what the decodes left


def test_long_prompt_takes_everything_when_nothing_short_waits() -> None:
    world = World(max_num_batched_tokens=64)
    world.add(200, "long")
    world.add(60, "not short: more than half of the budget")
    assert world.sizes(world.step()) == {"long": 64}
    assert world.sizes(world.step()) == {"long": 64}


def test_prompt_that_arrives_several_times_at_once_is_computed_once() -> None:
    world = World(max_num_batched_tokens=128)
    prompt = list(range(100))
    for index in range(5):
        world.add(prompt, f"r{index}", max_tokens=3)
    first = world.step()
    assert world.sizes(first) == {"r0": 100}
    assert [why for _, why in first.deferred] == ["prefix: r0 is computing it"] * 4
    assert world.sizes(world.step()) == {"r0": 1, "r1": 4, "r2": 4, "r3": 4, "r4": 4}
    world.run()
    assert sum(world.runner.num_computed.values()) == 100 + 4 * 4 + 5 * 2
    world.assert_answers_are_right()


def test_request_waits_for_what_it_shares_with_a_longer_prompt_and_for_no_more() -> None:
    world = World(max_num_batched_tokens=64, long_prefill_token_threshold=48)
    prompt = list(range(200))
    world.add(prompt, "long")
    world.step()
    world.add([*prompt[:48], 1000, 1001], "forks early", max_tokens=1)
    world.add([*prompt[:96], 2000], "forks late", max_tokens=1)
    world.step()
    world.run()
    early, late = world.requests["forks early"], world.requests["forks late"]
    assert (early.num_cached_tokens, late.num_cached_tokens) == (48, 96)
    assert (early.admitted_at, late.admitted_at) == (1.0, 2.0)
    world.assert_answers_are_right()


@pytest.mark.parametrize("ends", ["abort", "failure"])
def test_waiters_go_on_when_their_owner_ends_early(ends: str) -> None:
    world = World(max_num_batched_tokens=64)
    prompt = list(range(100))
    world.add(prompt, "owner")
    world.add(prompt, "waiter")
    world.step()
    if ends == "abort":
        world.note(world.scheduler.abort(world.requests["owner"].id, world.now))
    else:
        world.runner.fails.add("owner")
        world.step()
        assert world.ends["owner"] is FinishReason.ERROR
    world.run()
    assert len(world.outputs["waiter"]) == 4
    world.assert_answers_are_right()


def test_full_hit_computes_one_token_and_writes_nothing() -> None:
    world = World()
    prompt = list(range(48))
    world.add(prompt, "first", max_tokens=1)
    world.run()
    request = world.add(prompt, "second", max_tokens=20)
    (chunk,) = world.step().chunks
    assert (chunk.start, chunk.end, chunk.samples, chunk.writes_kv) == (47, 48, True, False)
    assert request.num_cached_tokens == 47
    assert world.scheduler.stats().blocks_used == 3
    world.run()
    world.assert_answers_are_right()


def test_partial_hit_writes_what_it_computes() -> None:
    world = World()
    prompt = list(range(55))
    world.add(prompt, "first", max_tokens=1)
    world.run()
    world.add(prompt, "second", max_tokens=20)
    (chunk,) = world.step().chunks
    assert (chunk.start, chunk.end, chunk.writes_kv) == (48, 55, True)
    world.run()
    world.assert_answers_are_right()


def test_runner_is_told_of_new_blocks_only_when_the_last_one_is_full() -> None:
    world = World(block_size=16)
    world.add(30, "r", max_tokens=20)
    told = [len(world.step().block_appends) for _ in range(20)]
    # Two blocks hold 32 tokens: the prefill and two decodes; the third one comes with the token at position 32.
    assert [step for step, count in enumerate(told) if count] == [3, 19]


def test_finished_ids_appear_once_even_in_an_empty_batch() -> None:
    world = World()
    world.add(10, "a", max_tokens=1)
    world.add(10, "b", max_tokens=2)
    assert world.step().released_ids == []
    assert world.step().released_ids == ["a"]
    assert not world.scheduler.has_work
    assert world.scheduler.has_releases
    assert world.step().released_ids == ["b"]
    assert world.step().released_ids == []


def test_nothing_is_left_when_all_have_finished() -> None:
    world = World(num_kv_blocks=40)
    for index in range(20):
        world.add(30 + index, max_tokens=10)
    world.run()
    world.step()
    scheduler = world.scheduler
    assert not scheduler.has_work
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 0)
    assert scheduler.stats().blocks_free == 40
    assert world.runner.seats == {}
    assert scheduler.reset_prefix_cache()
    assert scheduler.stats().blocks_cached == 0


def test_failed_request_ends_alone() -> None:
    world = World()
    world.add(10, "broken", max_tokens=5)
    world.add(10, "sound", max_tokens=5)
    world.step()
    world.runner.fails.add("broken")
    world.run()
    assert world.ends == {"broken": FinishReason.ERROR, "sound": FinishReason.LENGTH}
    assert world.updates["broken"][-1].error == "logits are not finite"
    world.assert_answers_are_right()


def test_step_that_failed_leaves_nothing_in_the_prefix_cache() -> None:
    world = World()
    prompt = list(range(64))
    world.add(prompt, "failed", max_tokens=5)
    world.runner.fails.add("failed")
    world.step()
    assert world.ends["failed"] is FinishReason.ERROR
    assert world.scheduler.stats().blocks_cached == 0
    request = world.add(prompt, "again", max_tokens=5)
    world.run()
    assert request.num_cached_tokens == 0
    world.assert_answers_are_right()


def test_prompt_logprobs_are_gathered_over_chunks_without_reading_the_cache() -> None:
    world = World(max_num_batched_tokens=64)
    prompt = list(range(100))
    world.add(prompt, "first", max_tokens=1)
    world.run()
    request = world.add(prompt, "asks", max_tokens=3, prompt_logprobs=1)
    world.run()
    assert request.num_cached_tokens == 0
    assert world.runner.num_computed["asks"] == 102
    entries = [update.prompt_logprobs for update in world.updates["asks"]]
    assert entries[0] is not None
    assert [entry.token_id for entry in entries[0]] == prompt[1:]
    assert entries[1:] == [None, None]


def test_prompt_logprobs_fill_the_cache() -> None:
    world = World()
    prompt = list(range(100))
    world.add(prompt, "asks", max_tokens=1, prompt_logprobs=1)
    world.run()
    world.add(prompt, "reads")
    world.run()
    assert world.requests["reads"].num_cached_tokens == 96
