"""What a step's output changes: log-probabilities, failures, requests that ended meanwhile."""

from __future__ import annotations

import pytest

from core.worlds import World
from hotseat.core.batch import SampledTokens, StepOutput, TokenLogprobs
from hotseat.core.block_pool import BlockPool
from hotseat.core.explain import explain_finished
from hotseat.core.request import FinishReason


def logprobs(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(token_id, -0.5, 1, [(token_id, -0.5)])


def test_logprobs_come_with_the_first_token_and_with_the_later_ones() -> None:
    world = World()
    request = world.add(5, "a", max_tokens=3, logprobs=1)
    found = []
    for token_id in (7, 8, 9):
        batch = world.scheduler.schedule(world.now)
        output = StepOutput(sampled=[SampledTokens(request.id, [token_id], [logprobs(token_id)])])
        (update,) = world.scheduler.update(batch, output, world.now)
        found.append(update.logprobs)
    assert found == [[logprobs(7)], [logprobs(8)], [logprobs(9)]]


def test_failure_of_a_request_that_ended_meanwhile_is_no_news() -> None:
    world = World()
    gone, stays = world.add(5, "gone"), world.add(5, "stays")
    world.step()
    batch = world.scheduler.schedule(world.now)
    world.scheduler.abort(gone.id, world.now)
    output = StepOutput(sampled=[SampledTokens(stays.id, [1])], failed={gone.id: "logits are not finite"})
    updates = world.scheduler.update(batch, output, world.now)
    assert [update.request_id for update in updates] == ["stays"]
    assert gone.finish_reason is FinishReason.ABORT


def test_token_of_a_decode_that_ended_meanwhile_is_dropped() -> None:
    world = World()
    gone, stays = world.add(5, "gone"), world.add(5, "stays")
    world.step()
    batch = world.scheduler.schedule(world.now)
    world.scheduler.abort(gone.id, world.now)
    output = StepOutput(sampled=[SampledTokens(gone.id, [1]), SampledTokens(stays.id, [2])])
    updates = world.scheduler.update(batch, output, world.now)
    assert [(update.request_id, update.new_token_ids) for update in updates] == [("stays", [2])]
    assert len(gone.output_token_ids) == 1


@pytest.mark.parametrize("num_steps", [0, 3])
def test_history_of_a_request_that_ended(num_steps: int) -> None:
    world = World()
    request = world.add(5, "a", max_tokens=3)
    for _ in range(num_steps):
        world.step()
    if not num_steps:
        world.scheduler.abort(request.id, world.now)
    assert request.finish_reason is not None
    history = explain_finished(request, request.finish_reason, None, world.now)
    assert history.ttft_s == (1.0 if num_steps else None)
    assert history.num_output_tokens == num_steps
    assert history.finish_reason is (FinishReason.LENGTH if num_steps else FinishReason.ABORT)


def test_a_block_says_in_messages_what_it_is() -> None:
    (block,) = BlockPool(1).allocate(1) or []
    assert repr(block) == "Block(0, refs=1, indexed=False)"
