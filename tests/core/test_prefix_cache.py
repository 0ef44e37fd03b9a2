"""Which blocks a request finds computed already."""

from __future__ import annotations

import pytest

from core.worlds import World


def test_prompt_of_55_tokens_takes_4_blocks_of_which_3_are_indexed() -> None:
    world = World(block_size=16)
    request = world.add(55, max_tokens=3)
    world.step()
    assert len(request.blocks) == 4
    assert [block.node is not None for block in request.blocks] == [True, True, True, False]


def test_same_prefix_of_48_tokens_gives_3_hits_one_new_block_and_2_references() -> None:
    world = World(block_size=16)
    prefix = list(range(48))
    first = world.add([*prefix, *range(100, 107)], max_tokens=10)
    world.step()
    free = world.scheduler.stats().blocks_free
    second = world.add([*prefix, *range(200, 205)], max_tokens=10)
    world.step()
    assert second.num_cached_tokens == 48
    assert second.blocks[:3] == first.blocks[:3]
    assert [block.num_refs for block in second.blocks] == [2, 2, 2, 1]
    assert free - world.scheduler.stats().blocks_free == 1
    world.run()
    world.assert_answers_are_right()


def test_prompt_of_17_tokens_twice_finds_16_cached() -> None:
    world = World(block_size=16)
    world.add(list(range(17)), "first", max_tokens=1)
    world.run()
    second = world.add(list(range(17)), "second", max_tokens=1)
    world.run()
    assert second.num_cached_tokens == 16
    assert world.updates["second"][0].num_cached_tokens == 16


def test_salt_separates_and_the_same_salt_shares() -> None:
    world = World(block_size=16)
    prompt = list(range(40))
    cached = []
    for salt in ("", "a", "b", "a", ""):
        cached.append(world.add(prompt, max_tokens=1, cache_salt=salt))
        world.run()
    assert [request.num_cached_tokens for request in cached] == [0, 0, 0, 32, 32]


def test_equal_blocks_after_different_beginnings_are_different_contents() -> None:
    world = World(block_size=4)
    world.add([1, 1, 1, 1, 9, 9, 9, 9, 5], max_tokens=1)
    world.run()
    other = world.add([2, 2, 2, 2, 9, 9, 9, 9, 5], max_tokens=5)
    world.run()
    assert other.num_cached_tokens == 0
    world.assert_answers_are_right()


def test_next_turn_hits_all_full_blocks_of_prompt_and_output() -> None:
    world = World(block_size=16)
    first = world.add(list(range(40)), max_tokens=60)
    world.run()
    # The last token sampled was never computed: 99 tokens are in the cache, 6 blocks are full.
    turn = world.add([*first.token_ids(), 7, 8, 9], max_tokens=5)
    world.run()
    assert turn.num_cached_tokens == 96
    world.assert_answers_are_right()


def test_block_is_not_found_before_it_is_computed() -> None:
    world = World(block_size=16)
    prompt = list(range(64))
    world.add(prompt, "first")
    batch = world.scheduler.schedule(0.0)
    assert world.scheduler.stats().blocks_cached == 0
    assert not world.requests["first"].blocks[0].node
    world.scheduler.update(batch, world.runner.execute(batch), 1.0)
    assert world.requests["first"].blocks[0].node is not None


def test_hit_block_is_not_evicted_while_another_is_free() -> None:
    world = World(block_size=16, num_kv_blocks=6, watermark=0.0)
    world.add(list(range(48)), "early", max_tokens=1)
    world.run()
    world.add(list(range(100, 148)), "late", max_tokens=1)
    world.run()
    assert world.scheduler.stats().blocks_cached == 6
    # The blocks of "early" are next to be evicted; a hit on them must take the others instead.
    again = world.add([*range(48), *range(500, 540)], max_tokens=1)
    world.run()
    assert again.num_cached_tokens == 48
    world.assert_answers_are_right()


def test_switched_off_cache_finds_nothing() -> None:
    world = World(enable_prefix_caching=False)
    for _ in range(2):
        world.add(list(range(64)), max_tokens=2)
        world.run()
    assert [request.num_cached_tokens for request in world.requests.values()] == [0, 0]
    assert world.scheduler.stats().blocks_cached == 0
    world.assert_answers_are_right()


def test_reset_forgets_everything_when_nobody_runs() -> None:
    world = World()
    world.add(list(range(64)), max_tokens=1)
    world.run()
    assert world.scheduler.reset_prefix_cache()
    again = world.add(list(range(64)), max_tokens=1)
    world.run()
    assert again.num_cached_tokens == 0


def test_reset_beside_running_requests_hurts_nobody() -> None:
    world = World(max_num_batched_tokens=64)
    prompt = list(range(100))
    world.add(prompt, "running", max_tokens=40)
    world.add(prompt, "waiter", max_tokens=5)
    world.step()
    assert not world.scheduler.reset_prefix_cache()
    world.scheduler.check_invariants()
    world.run()
    world.assert_answers_are_right()


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_answers_are_the_same_cold_and_cached(block_size: int) -> None:
    world = World(block_size=block_size, max_model_len=200)
    for length in (1, block_size, block_size + 1, 3 * block_size, 50):
        for _ in range(2):
            world.add(list(range(length)), max_tokens=10)
            world.run()
    world.assert_answers_are_right()
