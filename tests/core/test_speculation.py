"""Drafts: the answers stay what they are, come in fewer steps, and cost nobody anything."""

from __future__ import annotations

from typing import Any

import pytest

from core.drafters import OracleDrafter, fake_answer
from core.worlds import World
from hotseat.core.speculation import MAX_STREAMS, Speculation, StepTimes


def speculation(rate: float, **options: Any) -> Speculation:
    """Return speculation by a drafter that is right with probability ``rate``."""
    values = {"num_tokens": 4, "max_num_drafts": 64, "is_adaptive": False} | options
    return Speculation(OracleDrafter(fake_answer, rate), **values)


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_answers_are_those_of_the_plain_run(rate: float) -> None:
    world = World(speculation=speculation(rate), max_num_seqs=4)
    for _ in range(8):
        world.add(20, max_tokens=60)
    world.run()
    world.assert_answers_are_right()
    assert {len(output) for output in world.outputs.values()} == {60}


def test_true_drafts_give_several_tokens_a_step() -> None:
    world = World(speculation=speculation(1.0))
    world.add(20, max_tokens=51)
    world.run()
    assert len(world.batches) == 1 + 50 // 5
    assert world.requests["r1"].num_accepted_tokens == 40


def test_wrong_drafts_give_one_token_a_step() -> None:
    world = World(speculation=speculation(0.0))
    world.add(20, max_tokens=11)
    world.run()
    assert len(world.batches) == 11
    assert world.requests["r1"].num_draft_tokens > 0 == world.requests["r1"].num_accepted_tokens


def test_an_update_tells_what_was_drafted_and_accepted() -> None:
    world = World(speculation=speculation(1.0))
    world.add(20, max_tokens=12)
    world.run()
    last = world.updates["r1"][-1]
    assert (last.num_draft_tokens, last.num_accepted_tokens) == (8, 8)
    assert [batch.num_accepted for batch in world.batches] == [[], [4], [4], []]


def test_a_draft_stops_before_a_token_that_ends_the_answer() -> None:
    world = World(speculation=speculation(1.0, num_tokens=8))
    answer = list(fake_answer(world.add(20, "plain", max_tokens=1), 10))
    world.run()
    world.add(world.requests["plain"].prompt_token_ids, "me", max_tokens=50, stop_token_ids=(answer[5],))
    world.run()
    assert world.outputs["me"] == answer[:6]


def test_full_blocks_of_accepted_tokens_are_found_by_later_prompts() -> None:
    world = World(speculation=speculation(0.7), block_size=4)
    first = world.add(20, max_tokens=41)
    world.run()
    second = world.add(first.token_ids(), max_tokens=20)
    world.run()
    assert second.num_cached_tokens == 60
    world.assert_answers_are_right()


def test_nobody_is_preempted_for_drafts() -> None:
    num_preemptions = []
    for own in (None, speculation(0.0, num_tokens=8)):
        world = World(speculation=own, num_kv_blocks=24, block_size=4, max_model_len=96)
        for _ in range(3):
            world.add(8, max_tokens=20)
        world.run()
        world.assert_answers_are_right()
        num_preemptions.append(world.scheduler.stats().num_preemptions)
    assert num_preemptions[0] == num_preemptions[1]


def test_drafts_take_no_block_while_somebody_waits() -> None:
    world = World(speculation=speculation(0.0), max_num_seqs=1, block_size=4)
    world.add(4, max_tokens=12)
    world.add(4, max_tokens=2)
    world.step()
    for _ in range(8):
        batch = world.step()
        held = -(-batch.chunks[0].end // 4)
        assert batch.blocks_used == held == -(-(world.requests["r1"].num_computed_tokens) // 4)


def test_drafts_take_what_the_budget_leaves() -> None:
    world = World(speculation=speculation(1.0), max_num_seqs=4, max_num_batched_tokens=6)
    for _ in range(4):
        world.add(1, max_tokens=30)
    world.run()
    assert max(batch.num_tokens for batch in world.batches) == 6
    full = [batch for batch in world.batches if batch.num_decodes == 4]
    assert {sum(len(draft.token_ids) for draft in batch.drafts) for batch in full} == {2}
    world.assert_answers_are_right()


def test_many_streams_do_without() -> None:
    world = World(speculation=speculation(1.0))
    for _ in range(MAX_STREAMS + 1):
        world.add(1, max_tokens=5)
    world.step()
    assert not world.step().drafts


def test_drafts_that_are_wrong_are_given_up_and_tried_again() -> None:
    world = World(speculation=speculation(0.0, is_adaptive=True))
    world.add(4, max_tokens=400)
    world.run()
    num_tries = sum(bool(batch.drafts) for batch in world.batches)
    assert 5 < num_tries < 130


def test_drafts_that_are_true_are_used_to_the_full() -> None:
    world = World(speculation=speculation(1.0, is_adaptive=True))
    world.add(4, max_tokens=400)
    world.run()
    assert len(world.batches) < 100


def test_an_aborted_request_leaves_nothing() -> None:
    own = speculation(1.0)
    world = World(speculation=own)
    request = world.add(4, max_tokens=40)
    world.step()
    batch = world.scheduler.schedule(world.now)
    assert batch.drafts
    output = world.runner.execute(batch)
    world.scheduler.abort(request.id, world.now)
    assert world.scheduler.update(batch, output, world.now) == []
    world.scheduler.check_invariants()
    assert world.scheduler.stats().blocks_used == 0


def test_the_time_of_a_row_is_learned() -> None:
    times = StepTimes()
    for rows in [1, 8, 4, 2, 8, 1, 5] * 10:
        times.observe(rows, 0.004 + 0.0005 * rows)
    assert times.per_row_s == pytest.approx(0.0005, rel=0.05)
    assert times.predict(6) == pytest.approx(0.007, rel=0.05)
