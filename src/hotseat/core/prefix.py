"""Who can reuse which blocks, who is computing what, and who waits for that.

    contents of a request   c0      c1      c2      c3          one a full block, chained by uid
                            hit     hit     claim   claim       hits are in the pool's index;
                                                                claims say: I am computing this

A content enters the index when it *has been computed*, in ``computed``, never when it is planned: a step that fails
leaves nothing valid-looking behind. Until then a claim on it lets a second request with the same prefix wait
for the first (its leader) instead of computing it again.
"""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from hotseat.core.block_pool import Block, BlockPool, Content, ContentKey
from hotseat.core.request import Request
from hotseat.core.running import RunningSet

__all__ = ["Match", "PrefixCache"]


class Match(NamedTuple):
    """What the cache has for a request."""

    blocks: list[Block]  # hits, from the first block on
    leader: Request | None = None  # is computing the block after them
    num_awaited: int = 0  # tokens that the leader must have computed before all that it shares is there


class PrefixCache:
    """Match requests against the pool's index and keep the index up to date."""

    def __init__(self, pool: BlockPool, block_size: int, *, is_enabled: bool) -> None:
        self._pool = pool
        self._block_size = block_size
        self._is_enabled = is_enabled
        self._uids = count()
        self._claims: dict[ContentKey, tuple[Content, Request]] = {}

    def match(self, request: Request) -> Match:
        """Return the blocks that hold the beginning of ``request``, and who computes what comes after them."""
        if not self._is_enabled or request.gathered_logprobs is not None:
            return Match([])  # prompt log-probabilities need every row to be computed
        blocks: list[Block] = []
        parent: int | str = request.cache_salt
        slices = self._slices(request, request.num_tokens)
        for tokens in slices:
            block = self._pool.find((parent, tokens))
            if block is None:
                break
            blocks.append(block)
            assert block.content is not None, f"{block!r} is in the index without content"
            parent = block.content.uid
        leader, num_shared = self._follow_claims(slices, len(blocks), parent)
        return Match(blocks, leader, num_shared * self._block_size)

    def claim(self, request: Request, hits: list[Block]) -> None:
        """Note that ``request``, which was given ``hits``, computes the rest of its full blocks."""
        if not self._is_enabled:
            return
        contents = request.contents = [block.content for block in hits if block.content is not None]
        assert len(contents) == len(hits), f"{request.id} was given a block without content"
        for tokens in self._slices(request, request.num_tokens)[len(hits) :]:
            key = (self._parent(request), tokens)
            content = self._known(key)
            if content is None:
                content = Content(key, next(self._uids))
                self._claims[key] = (content, request)
            contents.append(content)

    def computed(self, request: Request, start: int) -> list[Request]:
        """Index the blocks that were filled since ``start`` tokens were computed; return who waited for them."""
        if not self._is_enabled:
            return []
        end = request.num_computed_tokens
        first = max(start, request.num_shared_tokens) // self._block_size
        for index in range(first, end // self._block_size):
            content = self._content(request, index)
            self._pool.record(request.blocks[index], content)
            self._drop_claim(content, request)
        return self._wake(request, end) if request.followers else []

    def release(self, request: Request) -> list[Request]:
        """Drop the claims of a request that leaves its seat; return who waited for it."""
        for content in request.contents[request.num_computed_tokens // self._block_size :]:
            self._drop_claim(content, request)
        request.contents = []
        followers, request.followers = request.followers, []
        return [follower for _, follower in followers]

    def check_invariants(self, running: RunningSet) -> None:
        """Assert that only running requests claim, and only what they have not computed."""
        open_uids = {
            request.id: {content.uid for content in request.contents[request.num_computed_tokens // self._block_size :]}
            for request in running.requests.values()
        }
        for content, request in self._claims.values():
            assert running.requests.get(request.id) is request, f"{request.id} has a claim and no seat"
            assert content.uid in open_uids[request.id], f"{request.id} claims what it has computed"

    def _follow_claims(
        self, slices: list[tuple[int, ...]], num_hits: int, parent: int | str
    ) -> tuple[Request | None, int]:
        """Return who computes the block after the hits, and how many blocks will be there with all that is shared."""
        leader: Request | None = None
        num_shared = num_hits
        while num_shared < len(slices):
            claim = self._claims.get((parent, slices[num_shared]))
            if claim is None or leader not in (None, claim[1]):
                break
            parent, leader = claim[0].uid, claim[1]
            num_shared += 1
        return leader, num_shared

    def _slices(self, request: Request, num_tokens: int) -> list[tuple[int, ...]]:
        """Return the first ``num_tokens`` tokens cut into full blocks; cut once and kept."""
        size, slices = self._block_size, request.slices
        if len(slices) < num_tokens // size:
            tokens = request.token_ids()
            slices.extend(tuple(tokens[i : i + size]) for i in range(len(slices) * size, num_tokens - size + 1, size))
        return slices

    def _content(self, request: Request, index: int) -> Content:
        contents = request.contents
        while len(contents) <= index:  # output filled a block
            key = (self._parent(request), self._next_slice(request, len(contents)))
            contents.append(self._known(key) or Content(key, next(self._uids)))
        return contents[index]

    def _next_slice(self, request: Request, index: int) -> tuple[int, ...]:
        if index < len(request.slices):
            return request.slices[index]
        start = index * self._block_size - request.num_prompt_tokens
        if start >= 0:  # all of it is output: the common case must not copy the whole sequence
            request.slices.append(tuple(request.output_token_ids[start : start + self._block_size]))
            return request.slices[index]
        return self._slices(request, (index + 1) * self._block_size)[index]

    def _parent(self, request: Request) -> int | str:
        return request.contents[-1].uid if request.contents else request.cache_salt

    def _known(self, key: ContentKey) -> Content | None:
        block = self._pool.find(key)
        if block is not None:
            return block.content
        claim = self._claims.get(key)
        return claim[0] if claim else None

    def _drop_claim(self, content: Content, request: Request) -> None:
        claim = self._claims.get(content.key)
        if claim is not None and claim[1] is request:
            del self._claims[content.key]

    def _wake(self, leader: Request, num_computed: int) -> list[Request]:
        woken = [follower for awaited, follower in leader.followers if awaited <= num_computed]
        if woken:
            leader.followers = [pair for pair in leader.followers if pair[0] > num_computed]
        return woken
