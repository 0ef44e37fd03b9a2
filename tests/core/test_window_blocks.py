"""What requests hold of the layers with a window, and what the prefix cache finds of it."""

from __future__ import annotations

import pytest

from core.drafters import OracleDrafter, fake_answer
from core.worlds import World
from hotseat.core.kv_layout import KvLayout
from hotseat.core.request import BlockReason
from hotseat.core.speculation import Speculation
from hotseat.errors import ConfigError, PromptTooLongError

GEMMA = KvLayout(1, 5, 512)  # five of six layers see 512 tokens
SMALL = KvLayout(1, 2, 20)


def test_32_000_tokens_hold_a_fifth_of_what_full_layers_would() -> None:
    world = World(kv_layout=GEMMA, num_kv_blocks=2400, max_model_len=33_000, max_num_batched_tokens=512, is_light=True)
    world.add(32_000, max_tokens=40)
    world.run()
    most = max(batch.blocks_used for batch in world.batches)
    # Of the windows 511 tokens before a chunk of 512, at most 65 logical blocks of five.
    assert most <= 2000 + 3 + 5 * 65
    assert most < 0.2 * (6 * 2000)


def test_decode_holds_what_its_window_sees() -> None:
    world = World(kv_layout=SMALL, max_model_len=400)
    request = world.add(5, max_tokens=200)
    held = []
    while world.scheduler.has_work:
        world.step()
        held.append(len(request.window_blocks))
    assert max(held) == 3  # 19 tokens behind the newest one, in blocks of 16
    world.assert_answers_are_right()


def test_hit_needs_only_the_blocks_that_the_next_query_sees() -> None:
    world = World(kv_layout=SMALL, max_num_batched_tokens=64)
    prompt = list(range(160))
    world.add([*prompt, 1], "first", max_tokens=1)
    world.run()
    world.add([*prompt, 2], "second", max_tokens=4)
    world.step()
    second = world.requests["second"]
    assert second.num_cached_tokens == 160
    assert second.first_window_block == (160 - 19) // 16
    assert len(second.blocks) == 11
    world.run()
    world.assert_answers_are_right()


def test_hit_is_cut_where_blocks_of_the_window_are_gone() -> None:
    world = World(kv_layout=KvLayout(1, 1, 20), num_kv_blocks=34, max_num_batched_tokens=32, max_num_seqs=4)
    prompt = list(range(160))
    world.add([*prompt, 1], "first", max_tokens=1)
    world.run()
    # Its prompt takes the blocks that were used least recently: those that "first" dropped behind its window.
    world.add(130, "other", max_tokens=1)
    world.run()
    whole = world.add([*prompt, 1], "whole", max_tokens=4)
    world.run()
    assert whole.num_cached_tokens == 160
    short = world.add([*prompt[:80], 3], "short", max_tokens=4)
    world.run()
    assert short.num_cached_tokens == 0
    world.assert_answers_are_right()


@pytest.mark.parametrize("capacity_policy", ["max-utilization", "no-evict"])
def test_requests_that_share_hits_never_lack_blocks_behind_them(capacity_policy: str) -> None:
    # Twelve go on from the same window; each needs blocks of its own before the shared ones come free.
    world = World(kv_layout=SMALL, num_kv_blocks=120, capacity_policy=capacity_policy, max_num_seqs=12, watermark=0.0)
    stem = list(range(96))
    world.add([*stem, 1], "stem", max_tokens=1)
    world.run()
    for index in range(12):
        world.add([*stem, 500 + index], max_tokens=60)
    world.run()
    world.assert_answers_are_right()
    assert all(not batch.preempted for batch in world.batches) or capacity_policy == "max-utilization"


def test_two_long_prompts_are_not_admitted_together_where_one_fits() -> None:
    world = World(kv_layout=SMALL, num_kv_blocks=30, max_num_batched_tokens=32, max_num_seqs=4)
    world.add(160, "first", max_tokens=6)
    world.add(160, "second", max_tokens=2)
    admitted = [request_id for _ in range(7) for request_id in world.step().admitted_ids]
    assert admitted == ["first"]
    explanation = world.scheduler.explain(world.requests["second"].id, world.now)
    assert explanation is not None
    assert explanation.reason.startswith(BlockReason.BLOCKS.value)
    assert explanation.needs_blocks == 10 + 2 * 5  # of the windows: 19 + 32 tokens, in at most five blocks
    world.run()
    world.assert_answers_are_right()


def test_prompt_beyond_the_cache_is_refused_with_what_it_would_hold() -> None:
    world = World(kv_layout=SMALL, num_kv_blocks=30, max_num_batched_tokens=64)
    assert world.config.max_cached_tokens == 16 * (30 - 2 * 7)
    with pytest.raises(PromptTooLongError, match=r"needs 31 blocks of 16 tokens.*\(256 tokens\)"):
        world.add(16 * 17 - 1)
    world.add(255, max_tokens=1)
    world.run()
    world.assert_answers_are_right()


@pytest.mark.parametrize("text", ["1,5", "a,b,c", "0,1,4", "1,-1,4", "1,2,0"])
def test_layout_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="kv_layout must be"):
        KvLayout.parse(text)


def test_layout_reads_what_it_writes() -> None:
    assert KvLayout.parse(str(GEMMA)) == GEMMA


@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_drafts_cross_the_blocks_of_windows(rate: float) -> None:
    drafter = OracleDrafter(fake_answer, rate)
    own = Speculation(drafter, num_tokens=6, max_num_drafts=64, is_adaptive=False)
    world = World(speculation=own, kv_layout=KvLayout(1, 2, 10), block_size=4, max_num_seqs=4)
    request = world.add(20, max_tokens=71)
    world.run()
    world.assert_answers_are_right()
    assert request.num_accepted_tokens == 60 or rate < 1
    assert world.scheduler.stats().blocks_used == 0
