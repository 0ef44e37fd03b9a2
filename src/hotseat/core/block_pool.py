"""The KV cache's blocks: allocation, reference counts, lookup by content, eviction.

Theory of operation
-------------------
Every block is in exactly one of three places:

    used       num_refs > 0: in that many block tables
    free       num_refs = 0 and holding nothing that can be found: a stack
    evictable  num_refs = 0 and in the index: a queue, least recently used first

    allocate   free ─► used, and when there is none, the head of evictable ─► used (eviction is lazy)
    touch      evictable ─► used, from the middle of the queue in O(1); used ─► used with one reference more
    free       used ─► free or the end of evictable; a table is freed tail first, so that a sequence's tail is evicted
               before its head

A *logical* block of several blocks of the pool (see ``kv_layout``) is one ``Block``, the others being part of it: they
are in its place, whatever that is.

``num_free`` counts what ``allocate`` can give, evictable blocks included: used + free = total, always.

The index finds a block by its tokens and all that come before them. A ``PrefixNode`` names these by the identity of
the node before it, never by a hash of it:

    key = (parent, tokens)    parent: id of the node before, or the request's salt for the first block

An id is given once and never again, and Python's dict compares whole keys, so a hit is a proof that all tokens up to
here are equal, whatever collides. A node whose parent was evicted and computed anew (under another id) can no longer
be found; that costs a hit, never an answer, and the eviction order makes it rare.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

__all__ = ["Block", "BlockKey", "BlockPool", "PrefixNode"]

BlockKey: TypeAlias = "tuple[int | str, tuple[int, ...]]"


class PrefixNode(NamedTuple):
    """A full block's tokens after all that come before them; ``id`` stands for it as a parent."""

    key: BlockKey
    id: int


class Block:
    """``block_size`` slots of KV cache."""

    __slots__ = ("id", "node", "num_refs", "others")

    def __init__(self, block_id: int) -> None:
        self.id = block_id
        self.num_refs = 0  # block tables that hold it
        self.node: PrefixNode | None = None  # set while the index leads here
        self.others: tuple[Block, ...] = ()  # the rest of a logical block

    @property
    def size(self) -> int:
        """Return how many blocks of the pool this one is."""
        return 1 + len(self.others)

    @property
    def ids(self) -> list[int]:
        """Return the ids of all blocks of the pool that this one is."""
        return [self.id, *(block.id for block in self.others)]

    def __repr__(self) -> str:
        return f"Block({self.id}, refs={self.num_refs}, indexed={self.node is not None})"


class BlockPool:
    """A fixed number of blocks, and the index of what they hold."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0, "a pool has at least one block"
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        self.num_evictions = 0
        self._free = self.blocks[::-1]  # a stack: low ids go first
        self._evictable: OrderedDict[int, Block] = OrderedDict()  # by block id, least recently used first
        self._num_evictable = 0  # with the others of each
        self._index: dict[BlockKey, Block] = {}

    @property
    def num_free(self) -> int:
        """Return how many blocks ``allocate`` can give; evictable ones are among them."""
        return len(self._free) + self._num_evictable

    @property
    def num_used(self) -> int:
        return len(self.blocks) - self.num_free

    @property
    def num_evictable(self) -> int:
        """Return how many of the free blocks can still be hit."""
        return self._num_evictable

    def allocate(self, count: int, size: int = 1) -> list[Block] | None:
        """Take ``count`` free blocks of ``size`` each, or none at all and return ``None`` when there are fewer."""
        if count * size > self.num_free:
            return None
        taken = []
        for _ in range(count):
            block = self._free.pop() if self._free else self._evict()
            block.num_refs = 1
            if size > 1:
                block.others = tuple(self._free.pop() if self._free else self._evict() for _ in range(size - 1))
            taken.append(block)
        return taken

    def touch(self, blocks: Iterable[Block]) -> None:
        """Add one reference to each; an evictable block is free no longer."""
        for block in blocks:
            if block.num_refs == 0:
                del self._evictable[block.id]
                self._num_evictable -= block.size
            block.num_refs += 1

    def free(self, blocks: Sequence[Block]) -> None:
        """Drop one reference to each block of a table; its tail will be reused before its head."""
        for block in reversed(blocks):
            assert block.num_refs > 0, f"block {block.id} is freed without a reference"
            block.num_refs -= 1
            if block.num_refs:
                continue
            if block.node is None:
                self._put_back(block)
            else:
                self._evictable[block.id] = block
                self._num_evictable += block.size

    def find(self, key: BlockKey) -> Block | None:
        """Return the block that holds these tokens after this parent."""
        return self._index.get(key)

    def record(self, block: Block, node: PrefixNode) -> None:
        """Index ``block``, whose keys and values have been computed. The first block of a node keeps it."""
        assert block.num_refs > 0, f"block {block.id} is written without a reference"
        if node.key in self._index:
            return
        assert block.node is None, f"block {block.id} is in the index already"
        self._index[node.key] = block
        block.node = node

    def clear_index(self) -> None:
        """Make every block unfindable; blocks in use stay in their tables."""
        for block in self._index.values():
            block.node = None
        for block in self._evictable.values():
            self._put_back(block)
        self._evictable.clear()
        self._num_evictable = 0
        self._index.clear()

    def check_invariants(self) -> None:
        """Assert that every block is in exactly one place and that the index and the blocks agree."""
        free = {block.id for block in self._free}
        assert len(free) == len(self._free), "a block is free twice"
        assert free.isdisjoint(self._evictable), "a block is both free and evictable"
        parts = [other.id for block in self.blocks for other in block.others]
        assert len(parts) == len(set(parts)), "a block is part of two"
        assert free.isdisjoint(parts), "a block is free and part of another"
        assert self._num_evictable == sum(block.size for block in self._evictable.values()), "evictable ones miscounted"
        for block in self.blocks:
            if block.id in parts:
                assert (block.num_refs, block.node, block.others) == (0, None, ()), f"{block!r} is part of another"
                continue
            is_free = block.id in free or block.id in self._evictable
            assert is_free == (block.num_refs == 0), f"{block!r} is {'free' if is_free else 'used'}"
            assert block.id not in free or block.node is None, f"{block!r} is free and can be found"
            assert block.id not in free or not block.others, f"{block!r} is free and has parts"
            assert block.id not in self._evictable or block.node is not None, f"{block!r} is evictable, not indexed"
        assert all(block.node and block.node.key == key for key, block in self._index.items()), "index and block differ"
        assert len(self._index) == sum(block.node is not None for block in self.blocks), "a node is not indexed"

    def _put_back(self, block: Block) -> None:
        self._free.append(block)
        if block.others:
            self._free += block.others
            block.others = ()

    def _evict(self) -> Block:
        _, block = self._evictable.popitem(last=False)
        assert block.node is not None, f"{block!r} is evictable, not indexed"
        del self._index[block.node.key]
        block.node = None
        self._num_evictable -= block.size
        self.num_evictions += block.size
        if block.others:
            self._free += block.others
            block.others = ()
        return block
