"""Admission: reservation of blocks, passing a head that does not fit, head-of-line reservation."""

from __future__ import annotations

import pytest

from core.worlds import World


def test_two_long_prompts_are_not_admitted_together_if_both_do_not_fit() -> None:
    world = World(num_kv_blocks=20, block_size=16, max_num_batched_tokens=64)
    world.add(200, "a")
    world.add(200, "b")
    batch = world.step()
    assert batch.admitted_ids == ["a"]
    world.run()
    assert world.scheduler.stats().num_preemptions == 0
    world.assert_answers_are_right()


def test_watermark_stays_free_for_growth() -> None:
    world = World(num_kv_blocks=20, block_size=16, watermark=0.1)
    world.add(16 * 10, "a")
    world.add(16 * 9, "leaves one block")
    world.add(16 * 8, "leaves two blocks")
    assert world.step().admitted_ids == ["a", "leaves two blocks"]


def test_blocked_head_of_1000_blocks_lets_two_of_10_run_now_and_runs_itself_within_the_bound() -> None:
    world = World(
        num_kv_blocks=1200, block_size=1, max_num_batched_tokens=2000, is_light=True, max_num_seqs=8, max_model_len=1300
    )
    world.add(1147, "holder", max_tokens=3)
    world.step()
    assert world.scheduler.stats().blocks_free == 1200 - 1147
    world.add(1000, "big", max_tokens=2)
    world.add(10, "small 1", max_tokens=2)
    world.add(10, "small 2", max_tokens=2)
    batch = world.step()
    assert batch.admitted_ids == ["small 1", "small 2"]
    assert batch.deferred == [("big", "blocks: needs 1000, 52 free")]
    assert world.requests["big"].wait.times_passed == 2
    assert world.scheduler.explain(world.requests["big"].id, 0.0).times_passed == 2
    world.run()
    big = world.requests["big"]
    assert big.admitted_at is not None
    assert big.admitted_at <= 4.0
    assert set(world.ends) == {"holder", "big", "small 1", "small 2"}


def test_blocked_head_is_passed_at_most_the_stated_number_of_times() -> None:
    world = World(num_kv_blocks=32, block_size=16, max_num_seqs=4, max_times_passed=5, max_model_len=600)
    world.add(100, "first", max_tokens=100)
    world.step()
    world.add(480, "big", max_tokens=2)
    passed_by = []
    for index in range(100):
        world.add(30, f"small{index}", max_tokens=3)
        batch = world.step()
        if world.requests["big"].admitted_at is not None:
            break
        passed_by += batch.admitted_ids
    assert len(passed_by) == 5
    assert list(world.requests["big"].wait.passed_by) == passed_by
    world.run()
    world.assert_answers_are_right()


def test_short_ones_beside_a_long_prompt_count_as_passing_a_head_that_does_not_fit() -> None:
    world = World(num_kv_blocks=100, block_size=16, max_num_batched_tokens=512, max_times_passed=1, max_model_len=1600)
    world.add(800, "long", max_tokens=2)
    world.step()
    world.add(900, "big", max_tokens=2)
    for name in ("a", "b"):
        world.add(16, name, max_tokens=2)
    assert world.step().admitted_ids == ["a"]
    world.run()
    admitted = [request_id for batch in world.batches for request_id in batch.admitted_ids]
    assert admitted == ["long", "a", "big", "b"]


def test_nobody_passes_when_the_bound_is_zero() -> None:
    world = World(num_kv_blocks=20, block_size=16, max_times_passed=0)
    world.add(200, "first", max_tokens=3)
    world.step()
    world.add(200, "big")
    world.add(10, "small")
    assert world.step().admitted_ids == []
    world.run()
    assert world.requests["big"].admitted_at == world.requests["small"].admitted_at


def test_short_one_that_is_kept_out_does_not_keep_the_reserved_one_out() -> None:
    world = World(
        num_kv_blocks=40, max_num_batched_tokens=64, long_prefill_token_threshold=32, max_times_passed=0, max_num_seqs=8
    )
    world.add(16, "holder", max_tokens=4)
    world.add(300, "long", max_tokens=1)
    world.add(16 * 20, "reserved", max_tokens=1)
    world.step()
    world.add(10, "short", max_tokens=1)
    world.run()
    long, reserved, short = (world.requests[name] for name in ("long", "reserved", "short"))
    assert reserved.admitted_at == 4.0
    assert long.first_token_at == 10.0
    assert short.admitted_at is not None
    assert short.admitted_at >= 4.0


def test_abort_of_an_reserved_request_lets_the_others_go_on() -> None:
    world = World(num_kv_blocks=20, block_size=16, max_times_passed=0)
    world.add(200, "first", max_tokens=10)
    world.step()
    world.add(200, "big")
    world.add(10, "small")
    world.step()
    world.note(world.scheduler.abort(world.requests["big"].id, world.now))
    assert world.step().admitted_ids == ["small"]


def test_small_ones_pass_however_many_big_ones_stand_before_them() -> None:
    world = World(num_kv_blocks=40, block_size=16, max_num_seqs=8, max_num_batched_tokens=512)
    world.add(300, "holder", max_tokens=20)
    world.step()
    for index in range(100):
        world.add(400, f"big{index}", max_tokens=1)
    world.add(20, "small", max_tokens=1)
    assert world.step().admitted_ids == ["small"]


def test_waiting_for_seats_or_blocks_costs_no_look_at_the_queue() -> None:
    world = World(num_kv_blocks=30, block_size=16, max_num_seqs=2)
    world.add(50, max_tokens=30)
    world.add(50, max_tokens=30)
    world.step()
    looks = 0
    first = world.scheduler._waiting.first

    def counting_first(*args: object, **options: object) -> object:
        nonlocal looks
        looks += 1
        return first(*args, **options)  # type: ignore[arg-type]

    world.scheduler._waiting.first = counting_first  # type: ignore[method-assign, assignment]
    for _ in range(50):
        world.add(20, max_tokens=1)
    for _ in range(20):
        world.step()
    assert looks <= 2


def test_request_resumes_only_when_its_context_and_headroom_fit() -> None:
    world = World(num_kv_blocks=12, block_size=4, max_num_seqs=4, max_num_batched_tokens=64, watermark=0.0)
    for index in range(3):
        world.add(13, f"r{index}", max_tokens=18)
    resumed_at_free: list[int] = []
    for _ in range(100):
        if not world.scheduler.has_work:
            break
        free_before = world.scheduler.stats().blocks_free
        batch = world.step()
        for seating in batch.new_requests:
            if world.requests[seating.request_id].num_preemptions:
                resumed_at_free.append(free_before - len(seating.block_ids))
    stats = world.scheduler.stats()
    assert stats.num_preemptions >= 1
    assert stats.num_preemptions == len(resumed_at_free)
    assert max(request.num_preemptions for request in world.requests.values()) <= 2
    world.assert_answers_are_right()


@pytest.mark.parametrize("budget", [512, 2048, 8192])
def test_heads_that_count_as_short_and_do_not_fit_keep_no_smaller_one_out(budget: int) -> None:
    world = World(is_light=True, num_kv_blocks=600, max_num_batched_tokens=budget, max_num_seqs=64, max_model_len=9000)
    world.add(550 * 16 - 100, "holder", max_tokens=200)
    while world.requests["holder"].first_token_at is None:
        world.step()
    for index in range(4):
        world.add(1000, f"head{index}")
    for index in range(20):
        world.add(10, f"small{index}")
    assert world.step().admitted_ids == [f"small{index}" for index in range(20)]


def test_blocked_request_is_looked_at_again_when_others_compute_what_it_shares() -> None:
    world = World(num_kv_blocks=21, watermark=0.0, max_num_seqs=8, max_times_passed=1000)
    shared = list(range(96))
    world.add(8 * 16 - 10, "runs", max_tokens=20)
    world.step()
    world.add([*shared, *range(1000, 1127)], "blocked", max_tokens=2)
    assert world.step().deferred == [("blocked", "blocks: needs 14, 13 free")]
    world.add([*shared, 5], "sharer", max_tokens=300)
    world.step()
    assert world.step().deferred == [("blocked", "blocks: needs 8, 6 free")]
    while world.requests["blocked"].admitted_at is None:
        assert "runs" not in world.ends or len(world.batches) < 25
        world.step()
    assert world.requests["blocked"].num_cached_tokens == 96
    assert "sharer" not in world.ends
