"""Where blocks are, which one is reused next, and what the index finds."""

from __future__ import annotations

import pytest

from hotseat.core.block_pool import Block, BlockPool, Content


def take(pool: BlockPool, count: int) -> list[Block]:
    blocks = pool.allocate(count)
    assert blocks is not None
    pool.check_invariants()
    return blocks


def fill(pool: BlockPool, blocks: list[Block], salt: str = "") -> list[Content]:
    """Record a chain of contents in ``blocks``."""
    parent: int | str = salt
    contents = []
    for block in blocks:
        contents.append(Content((parent, (block.id, 7)), uid=1000 + block.id))
        pool.record(block, contents[-1])
        parent = contents[-1].uid
    pool.check_invariants()
    return contents


def test_failed_allocation_changes_nothing() -> None:
    pool = BlockPool(4)
    take(pool, 3)
    assert pool.allocate(2) is None
    assert (pool.num_free, pool.num_used) == (1, 3)
    pool.check_invariants()
    assert take(pool, 1)


def test_failed_allocation_with_hits_leaves_counts_alone() -> None:
    pool = BlockPool(4)
    hits = take(pool, 2)
    fill(pool, hits)
    pool.touch(hits)
    assert pool.allocate(3) is None
    assert [block.num_refs for block in hits] == [2, 2]
    assert pool.num_free == 2
    pool.check_invariants()


def test_free_and_used_are_the_whole_pool_at_any_time() -> None:
    pool = BlockPool(6)
    first, second = take(pool, 2), take(pool, 3)
    fill(pool, first)
    pool.free(second)
    assert (pool.num_used, pool.num_free, pool.num_cached) == (2, 4, 0)
    pool.free(first)
    assert (pool.num_used, pool.num_free, pool.num_cached) == (0, 6, 2)


def test_blank_blocks_are_reused_before_cached_ones() -> None:
    pool = BlockPool(4)
    cached, blank = take(pool, 2), take(pool, 2)
    contents = fill(pool, cached)
    pool.free(cached)
    pool.free(blank)
    assert set(take(pool, 2)) == set(blank)
    assert pool.find(contents[0].key) is cached[0]
    assert pool.num_evictions == 0


def test_least_recently_used_content_is_evicted_first_and_a_tail_before_its_head() -> None:
    pool = BlockPool(6)
    old, new = take(pool, 3), take(pool, 3)
    fill(pool, old)
    fill(pool, new)
    pool.free(old)
    pool.free(new)
    order = [take(pool, 1)[0] for _ in range(6)]
    assert order == [*reversed(old), *reversed(new)]
    assert pool.num_evictions == 6


def test_content_that_is_used_again_is_evicted_last() -> None:
    pool = BlockPool(4)
    old, new = take(pool, 2), take(pool, 2)
    fill(pool, old)
    fill(pool, new)
    pool.free(old)
    pool.free(new)
    pool.touch(old)
    pool.free(old)
    assert [take(pool, 1)[0] for _ in range(4)] == [*reversed(new), *reversed(old)]


def test_hit_block_leaves_the_middle_of_the_queue() -> None:
    pool = BlockPool(5)
    blocks = take(pool, 5)
    fill(pool, blocks)
    pool.free(blocks)
    pool.touch([blocks[2]])
    pool.check_invariants()
    assert pool.num_free == 4
    assert blocks[2] not in take(pool, 4)


def test_content_is_forgotten_only_when_its_block_is_reused() -> None:
    pool = BlockPool(2)
    blocks = take(pool, 2)
    contents = fill(pool, blocks)
    pool.free(blocks)
    assert [pool.find(content.key) for content in contents] == blocks
    take(pool, 1)
    assert pool.find(contents[0].key) is blocks[0]
    assert pool.find(contents[1].key) is None


def test_first_block_with_a_content_keeps_it() -> None:
    pool = BlockPool(2)
    first, second = take(pool, 2)
    content = Content(("", (1, 2)), uid=1)
    pool.record(first, content)
    pool.record(second, content)
    assert pool.find(content.key) is first
    assert second.content is None
    pool.check_invariants()


class Colliding(int):
    """A token id that is equal to no other but has everybody's hash."""

    def __hash__(self) -> int:
        return 0


def test_content_with_the_same_hash_and_other_tokens_is_no_hit() -> None:
    pool = BlockPool(1)
    (block,) = take(pool, 1)
    pool.record(block, Content(("", (Colliding(1),)), uid=1))
    assert hash(("", (Colliding(1),))) == hash(("", (Colliding(2),)))
    assert pool.find(("", (Colliding(2),))) is None
    assert pool.find(("", (Colliding(1),))) is block


def test_forgetting_all_leaves_used_blocks_to_their_owners() -> None:
    pool = BlockPool(4)
    used, cached = take(pool, 2), take(pool, 2)
    contents = fill(pool, used) + fill(pool, cached, salt="other")
    pool.free(cached)
    pool.forget_all()
    pool.check_invariants()
    assert all(pool.find(content.key) is None for content in contents)
    assert (pool.num_used, pool.num_cached) == (2, 0)


def test_freeing_a_free_block_is_a_bug() -> None:
    pool = BlockPool(1)
    blocks = take(pool, 1)
    pool.free(blocks)
    with pytest.raises(AssertionError, match="nobody holds it"):
        pool.free(blocks)
