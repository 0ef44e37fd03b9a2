"""How requests end: EOS, stop ids, lengths, abort."""

from __future__ import annotations

import pytest

from core.fake_runner import expected_output
from core.worlds import World
from hotseat.core.request import FinishReason
from hotseat.errors import InvalidRequestError, PromptTooLongError

PROMPT = list(range(20))
ANSWER = expected_output(PROMPT, 30)
THIRD = frozenset({ANSWER[2]})


def test_expected_answer_suits_these_tests() -> None:
    assert ANSWER.index(ANSWER[2]) == 2
    assert ANSWER[2] not in ANSWER[3:]


def test_eos_ends_with_stop_and_is_part_of_the_output() -> None:
    world = World()
    request = world.add(PROMPT, max_tokens=10, eos_token_ids=THIRD)
    world.run()
    assert world.outputs[request.id] == ANSWER[:3]
    assert world.ends[request.id] is FinishReason.STOP
    assert world.updates[request.id][-1].stop_token_id is None


def test_stop_id_ends_with_stop_and_is_named() -> None:
    world = World()
    request = world.add(PROMPT, max_tokens=10, stop_token_ids=(ANSWER[2],))
    world.run()
    assert world.outputs[request.id] == ANSWER[:3]
    assert world.ends[request.id] is FinishReason.STOP
    assert world.updates[request.id][-1].stop_token_id == ANSWER[2]


def test_max_tokens_ends_with_length() -> None:
    world = World()
    request = world.add(PROMPT, max_tokens=7)
    world.run()
    assert world.outputs[request.id] == ANSWER[:7]
    assert world.ends[request.id] is FinishReason.LENGTH


def test_stop_wins_over_length_at_the_same_token() -> None:
    world = World()
    request = world.add(PROMPT, max_tokens=3, eos_token_ids=THIRD)
    world.run()
    assert world.ends[request.id] is FinishReason.STOP


def test_max_tokens_of_none_means_up_to_max_model_len() -> None:
    world = World(max_model_len=45)
    request = world.add(PROMPT, max_tokens=None)
    world.run()
    assert world.outputs[request.id] == ANSWER[:25]
    assert world.ends[request.id] is FinishReason.LENGTH


def test_max_model_len_ends_before_max_tokens() -> None:
    world = World(max_model_len=30)
    request = world.add(PROMPT, max_tokens=100)
    world.run()
    assert request.num_tokens == 30
    assert world.ends[request.id] is FinishReason.LENGTH


def test_min_tokens_blocks_eos_and_stop_ids() -> None:
    world = World()
    request = world.add(PROMPT, max_tokens=10, min_tokens=4, eos_token_ids=THIRD, stop_token_ids=(ANSWER[1],))
    world.run()
    assert world.outputs[request.id] == ANSWER[:10]
    assert world.ends[request.id] is FinishReason.LENGTH


def test_eos_counts_from_min_tokens_on() -> None:
    world = World()
    request = world.add(PROMPT, max_tokens=10, min_tokens=3, eos_token_ids=THIRD)
    world.run()
    assert world.outputs[request.id] == ANSWER[:3]


def test_ignore_eos_goes_on_but_stop_ids_still_count() -> None:
    world = World()
    request = world.add(PROMPT, max_tokens=10, ignore_eos=True, eos_token_ids=THIRD, stop_token_ids=(ANSWER[5],))
    world.run()
    assert world.outputs[request.id] == ANSWER[:6]
    assert world.updates[request.id][-1].stop_token_id == ANSWER[5]


def test_eos_that_is_also_a_stop_id_counts_under_ignore_eos() -> None:
    world = World()
    request = world.add(PROMPT, ignore_eos=True, eos_token_ids=THIRD, stop_token_ids=(ANSWER[2],))
    world.run()
    assert world.ends[request.id] is FinishReason.STOP
    assert world.updates[request.id][-1].stop_token_id == ANSWER[2]


def test_max_tokens_of_zero_computes_the_prompt_alone() -> None:
    world = World()
    request = world.add(PROMPT, max_tokens=0, prompt_logprobs=0)
    world.run()
    (update,) = world.updates[request.id]
    assert update.new_token_ids == []
    assert update.finish_reason is FinishReason.LENGTH
    assert update.prompt_logprobs is not None
    assert len(update.prompt_logprobs) == len(PROMPT) - 1


def test_abort_frees_seat_and_blocks_at_once() -> None:
    world = World()
    running = world.add(100, "running")
    world.step()
    assert world.scheduler.stats().blocks_used == 7
    update = world.scheduler.abort(running.id, world.now)
    assert update is not None
    assert update.finish_reason is FinishReason.ABORT
    stats = world.scheduler.stats()
    assert (stats.num_running, stats.blocks_used) == (0, 0)
    assert world.scheduler.abort(running.id, world.now) is None


def test_abort_of_a_waiting_request_never_computes_it() -> None:
    world = World(max_num_seqs=1)
    world.add(10, "running", max_tokens=3)
    world.step()
    waiting = world.add(10, "waiting")
    world.note(world.scheduler.abort(waiting.id, world.now))
    world.run()
    assert "waiting" not in world.runner.num_computed


def test_abort_between_schedule_and_update_wins() -> None:
    world = World()
    aborted = world.add(10, "aborted", max_tokens=1)
    world.add(10, "other", max_tokens=1)
    batch = world.scheduler.schedule(0.0)
    output = world.runner.execute(batch)
    assert world.scheduler.abort(aborted.id, 0.5) is not None
    updates = world.scheduler.update(batch, output, 1.0)
    assert [update.request_id for update in updates] == ["other"]
    assert aborted.output_token_ids == []
    assert aborted.finish_reason is FinishReason.ABORT
    assert not world.scheduler.has_work


def test_abort_matches_the_whole_id() -> None:
    world = World()
    world.add(10, "batch_1", max_tokens=3)
    world.add(10, "batch_10", max_tokens=3)
    world.step()
    world.note(world.scheduler.abort(world.requests["batch_1"].id, world.now))
    world.run()
    assert world.ends == {"batch_1": FinishReason.ABORT, "batch_10": FinishReason.LENGTH}


def test_finish_ends_with_the_given_reason() -> None:
    world = World()
    request = world.add(10, max_tokens=10)
    world.step()
    update = world.scheduler.finish(request.id, FinishReason.STOP, world.now)
    assert update is not None
    assert update.finish_reason is FinishReason.STOP
    assert world.scheduler.finish(request.id, FinishReason.STOP, world.now) is None


def test_id_in_use_is_refused_and_hurts_nobody() -> None:
    world = World()
    world.add(10, "twin")
    with pytest.raises(InvalidRequestError, match="'twin'"):
        world.add(10, "twin")
    world.run()
    assert world.ends == {"twin": FinishReason.LENGTH}


def test_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="at least one token") as caught:
        World().add([])
    assert caught.value.param == "prompt"


def test_prompts_larger_than_the_pool_are_refused_with_the_numbers_and_short_ones_go_on() -> None:
    world = World(num_kv_blocks=50, block_size=16)
    for _ in range(5):
        with pytest.raises(PromptTooLongError, match=r"1002 tokens.*63 blocks of 16 tokens.*50 blocks \(800 tokens\)"):
            world.add(1002)
        world.add(30)
    assert world.scheduler.num_waiting == 5
    world.run()
    assert set(world.ends.values()) == {FinishReason.LENGTH}


def test_prompt_that_leaves_no_room_for_a_token_is_refused_with_the_numbers() -> None:
    world = World(max_model_len=100, num_kv_blocks=7)
    with pytest.raises(PromptTooLongError, match=r"100 tokens.*max_model_len\) is 100 tokens"):
        world.add(100)
    world.add(99)
    world.add(100, max_tokens=0)
    world.run()


def test_prompt_that_fills_the_whole_pool_gets_its_token() -> None:
    world = World(num_kv_blocks=4, block_size=16)
    request = world.add(63, max_tokens=10)
    world.run()
    # 64 slots hold 64 tokens; the last token sampled needs no slot.
    assert len(world.outputs[request.id]) == 2
    assert world.ends[request.id] is FinishReason.LENGTH
    world.assert_answers_are_right()
