"""Questions about the engine's state are answered while a step is computed."""

from __future__ import annotations

import asyncio
import threading

import pytest

from engine.fakes import WAIT_S, StartedEngine, in_thread, make_request, read
from hotseat.core.batch import Batch
from hotseat.core.config import SchedulerConfig
from hotseat.core.request import FinishReason, RequestId, RequestStatus
from hotseat.core.scheduler import Scheduler
from hotseat.engine import VirtualClock
from hotseat.engine.state_lock import StateLock


def test_a_question_is_answered_at_once_while_nobody_holds_the_state() -> None:
    assert asyncio.run(StateLock().ask(lambda: 5)) == 5


async def hold(state: StateLock, asked: threading.Event) -> threading.Thread:
    """Return a thread that holds ``state`` until ``asked`` is set."""
    holds = threading.Event()

    def run() -> None:
        with state:
            holds.set()
            assert asked.wait(WAIT_S)

    holder = threading.Thread(target=run)
    holder.start()
    await asyncio.to_thread(holds.wait, WAIT_S)
    return holder


def test_a_question_waits_for_whoever_holds_the_state_and_gets_its_answer_from_them() -> None:
    async def scenario() -> None:
        state, asked = StateLock(), threading.Event()

        holder = await hold(state, asked)
        questions = [asyncio.create_task(state.ask(threading.get_ident)) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(question.done() for question in questions)
        asked.set()
        assert await asyncio.gather(*questions) == [holder.ident] * 3
        holder.join()

    asyncio.run(scenario())


def test_an_error_of_a_question_reaches_who_asked_and_leaves_the_lock_free() -> None:
    async def scenario() -> None:
        state, asked = StateLock(), threading.Event()
        with pytest.raises(KeyError):
            await state.ask(lambda: {}["nothing"])

        holder = await hold(state, asked)
        question = asyncio.create_task(state.ask(lambda: {}["nothing"]))
        await asyncio.sleep(0)
        asked.set()
        with pytest.raises(KeyError):
            await question
        holder.join()
        assert await state.ask(lambda: 1) == 1

    asyncio.run(scenario())


def test_no_question_is_lost_between_holders_and_askers() -> None:
    state = StateLock()
    leaves = threading.Event()

    def hold_again_and_again() -> None:
        while not leaves.is_set():
            with state, state.released():
                pass

    async def ask_often() -> int:
        answers = [await asyncio.wait_for(state.ask(lambda: 1), WAIT_S) for _ in range(2000)]
        return sum(answers)

    holder = threading.Thread(target=hold_again_and_again)
    holder.start()
    try:
        assert asyncio.run(ask_often()) == 2000
    finally:
        leaves.set()
        holder.join()


def test_a_step_that_is_being_computed_delays_no_explanation() -> None:
    async def scenario(started: StartedEngine) -> None:
        engine = started.engine
        started.runner.hold()
        running = asyncio.create_task(read(engine, make_request("runs", max_tokens=3)))
        await in_thread(started.runner.entered)
        late = asyncio.create_task(read(engine, make_request("late", max_tokens=3)))
        await asyncio.sleep(0)
        # The runner stands in its step until it is let: all answers come meanwhile.
        explanation = await engine.explain(RequestId("runs"))
        assert explanation is not None
        assert explanation.status is RequestStatus.RUNNING
        arriving = await engine.explain(RequestId("late"))
        assert arriving is not None
        assert arriving.status is RequestStatus.WAITING
        assert arriving.num_prompt_tokens == 5
        assert await engine.explain(RequestId("nobody")) is None
        engine.abort(RequestId("runs"))
        leaving = await engine.explain(RequestId("runs"))
        assert leaving is not None
        assert leaving.reason.startswith("ends: aborted")
        assert engine.is_known(RequestId("runs"))
        assert engine.is_known(RequestId("late"))
        started.runner.let_go()
        _, last = await running
        assert last.finish_reason is FinishReason.ABORT
        assert last.new_token_ids == []  # the abort wins over the step during which it was sent
        await late
        assert not engine.is_known(RequestId("late"))

    started = StartedEngine().run(scenario)
    assert started.witness.ends == {"runs": "abort", "late": "length"}


def test_a_pause_is_the_time_between_two_steps_with_work_left() -> None:
    class PausingScheduler(Scheduler):
        def schedule(self, now: float) -> Batch:
            if self.num_running:
                clock.advance(0.5)
            return super().schedule(now)

    async def scenario(started: StartedEngine) -> None:
        for name in ("a", "b"):
            await read(started.engine, make_request(name, max_tokens=3))
            while started.runner.seats:  # until the step that follows the last end
                await asyncio.sleep(0)
            clock.advance(100.0)  # idle: no pause

    clock, pauses = VirtualClock(), list[float]()
    config = SchedulerConfig(max_model_len=512, num_kv_blocks=256, max_num_batched_tokens=256)
    StartedEngine(PausingScheduler(config), clock=clock, on_pause=pauses.append).run(scenario)
    assert max(pauses) == 0.5
    assert pauses.count(0.5) == 4  # before the second and the third step of each
