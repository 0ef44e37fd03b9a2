"""Which blocks of the KV cache are free, which hold what, and which is reused next.

Theory of operation
-------------------
Every block is in exactly one of three places:

    used      num_refs > 0: in that many block tables
    blank     num_refs = 0 and no content that anybody could ask for: a stack
    cached    num_refs = 0 and content in the index: a queue, least recently used first

    allocate  blank ─► used, and when there is none, the head of cached ─► used (eviction is lazy)
    touch     cached ─► used, from the middle of the queue in O(1); used ─► used with one reference more
    free      used ─► blank or the end of cached; a table is freed tail first, so that a sequence's tail is evicted
              before its head

Free blocks are the blank and the cached ones: used + free = total, always.

The index finds a block by its *content*: its tokens and all that comes before them. A ``Content`` names that by the
identity of the content before it, never by a hash of it:

    key = (parent, tokens)    parent: uid of the content before, or the request's salt for the first block

A uid is given once and never again, and Python's dict compares whole keys, so a hit is a proof that all tokens up to
here are equal, whatever collides. A content whose parent was evicted and computed anew (under another uid) can no
longer be found; that costs a hit, never an answer, and the eviction order makes it rare.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

__all__ = ["Block", "BlockPool", "Content", "ContentKey"]

ContentKey: TypeAlias = "tuple[int | str, tuple[int, ...]]"


class Content(NamedTuple):
    """What a full block holds: ``key`` says it, ``uid`` stands for it as a parent."""

    key: ContentKey
    uid: int


class Block:
    """``block_size`` slots of KV cache."""

    __slots__ = ("content", "id", "num_refs")

    def __init__(self, block_id: int) -> None:
        self.id = block_id
        self.num_refs = 0  # block tables that hold it
        self.content: Content | None = None  # set while the index leads here

    def __repr__(self) -> str:
        return f"Block({self.id}, refs={self.num_refs}, content={self.content is not None})"


class BlockPool:
    """A fixed number of blocks, and the index of what they hold."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0, "a pool has at least one block"
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        self.num_evictions = 0
        self._blank = self.blocks[::-1]  # a stack: low ids go first
        self._cached: OrderedDict[int, Block] = OrderedDict()  # by block id, least recently used first
        self._index: dict[ContentKey, Block] = {}

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    @property
    def num_free(self) -> int:
        """Return how many blocks ``allocate`` can give; cached ones are among them."""
        return len(self._blank) + len(self._cached)

    @property
    def num_used(self) -> int:
        return len(self.blocks) - self.num_free

    @property
    def num_cached(self) -> int:
        """Return how many free blocks hold content that can still be hit."""
        return len(self._cached)

    def allocate(self, count: int) -> list[Block] | None:
        """Take ``count`` free blocks, or none at all and return ``None`` when there are fewer."""
        if count > self.num_free:
            return None
        taken = []
        for _ in range(count):
            block = self._blank.pop() if self._blank else self._evict()
            block.num_refs = 1
            taken.append(block)
        return taken

    def touch(self, blocks: Iterable[Block]) -> None:
        """Add one reference to each; a cached block is free no longer."""
        for block in blocks:
            if block.num_refs == 0:
                del self._cached[block.id]
            block.num_refs += 1

    def free(self, blocks: Sequence[Block]) -> None:
        """Drop one reference to each block of a table; its tail will be reused before its head."""
        for block in reversed(blocks):
            assert block.num_refs > 0, f"block {block.id} is freed but nobody holds it"
            block.num_refs -= 1
            if block.num_refs:
                continue
            if block.content is None:
                self._blank.append(block)
            else:
                self._cached[block.id] = block

    def find(self, key: ContentKey) -> Block | None:
        """Return the block that holds this content."""
        return self._index.get(key)

    def record(self, block: Block, content: Content) -> None:
        """Let ``find`` lead to ``block``, whose content has been computed. The first block with a content keeps it."""
        assert block.num_refs > 0, f"block {block.id} is written but nobody holds it"
        if content.key in self._index:
            return
        assert block.content is None, f"block {block.id} holds something else already"
        self._index[content.key] = block
        block.content = content

    def forget_all(self) -> None:
        """Empty the index; blocks in use stay with their owners."""
        for block in self._index.values():
            block.content = None
        self._blank.extend(self._cached.values())
        self._cached.clear()
        self._index.clear()

    def check_invariants(self) -> None:
        """Assert that every block is in exactly one place and that the index and the blocks agree."""
        blank = {block.id for block in self._blank}
        assert len(blank) == len(self._blank), "a block is blank twice"
        assert blank.isdisjoint(self._cached), "a block is both blank and cached"
        for block in self.blocks:
            is_free = block.id in blank or block.id in self._cached
            assert is_free == (block.num_refs == 0), f"{block!r} is {'free' if is_free else 'used'}"
            assert block.id not in blank or block.content is None, f"{block!r} is blank and can be found"
            assert block.id not in self._cached or block.content is not None, f"{block!r} is cached and cannot be found"
        assert all(block.content and block.content.key == key for key, block in self._index.items()), (
            "index and block differ"
        )
        assert len(self._index) == sum(block.content is not None for block in self.blocks), "a content is not indexed"

    def _evict(self) -> Block:
        _, block = self._cached.popitem(last=False)
        assert block.content is not None, f"{block!r} is cached and cannot be found"
        del self._index[block.content.key]
        block.content = None
        self.num_evictions += 1
        return block
