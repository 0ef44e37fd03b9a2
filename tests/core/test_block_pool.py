"""Where blocks are, which one is reused next, and what the index finds."""

from __future__ import annotations

import pytest

from hotseat.core.block_pool import Block, BlockPool, PrefixNode


def take(pool: BlockPool, count: int) -> list[Block]:
    blocks = pool.allocate(count)
    assert blocks is not None
    pool.check_invariants()
    return blocks


def fill(pool: BlockPool, blocks: list[Block], salt: str = "") -> list[PrefixNode]:
    """Record a chain of nodes in ``blocks``."""
    parent: int | str = salt
    nodes = []
    for block in blocks:
        nodes.append(PrefixNode((parent, (block.id, 7)), id=1000 + block.id))
        pool.record(block, nodes[-1])
        parent = nodes[-1].id
    pool.check_invariants()
    return nodes


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
    assert (pool.num_used, pool.num_free, pool.num_evictable) == (2, 4, 0)
    pool.free(first)
    assert (pool.num_used, pool.num_free, pool.num_evictable) == (0, 6, 2)


def test_free_blocks_are_reused_before_evictable_ones() -> None:
    pool = BlockPool(4)
    evictable, free = take(pool, 2), take(pool, 2)
    nodes = fill(pool, evictable)
    pool.free(evictable)
    pool.free(free)
    assert set(take(pool, 2)) == set(free)
    assert pool.find(nodes[0].key) is evictable[0]
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
    nodes = fill(pool, blocks)
    pool.free(blocks)
    assert [pool.find(node.key) for node in nodes] == blocks
    take(pool, 1)
    assert pool.find(nodes[0].key) is blocks[0]
    assert pool.find(nodes[1].key) is None


def test_first_block_of_a_node_keeps_it() -> None:
    pool = BlockPool(2)
    first, second = take(pool, 2)
    node = PrefixNode(("", (1, 2)), id=1)
    pool.record(first, node)
    pool.record(second, node)
    assert pool.find(node.key) is first
    assert second.node is None
    pool.check_invariants()


class Colliding(int):
    """A token id that is equal to no other but has everybody's hash."""

    def __hash__(self) -> int:
        return 0


def test_node_with_the_same_hash_and_other_tokens_is_no_hit() -> None:
    pool = BlockPool(1)
    (block,) = take(pool, 1)
    pool.record(block, PrefixNode(("", (Colliding(1),)), id=1))
    assert hash(("", (Colliding(1),))) == hash(("", (Colliding(2),)))
    assert pool.find(("", (Colliding(2),))) is None
    assert pool.find(("", (Colliding(1),))) is block


def test_clearing_the_index_leaves_used_blocks_in_their_tables() -> None:
    pool = BlockPool(4)
    used, evictable = take(pool, 2), take(pool, 2)
    nodes = fill(pool, used) + fill(pool, evictable, salt="other")
    pool.free(evictable)
    pool.clear_index()
    pool.check_invariants()
    assert all(pool.find(node.key) is None for node in nodes)
    assert (pool.num_used, pool.num_evictable) == (2, 0)


def test_freeing_a_free_block_is_a_bug() -> None:
    pool = BlockPool(1)
    blocks = take(pool, 1)
    pool.free(blocks)
    with pytest.raises(AssertionError, match="without a reference"):
        pool.free(blocks)
