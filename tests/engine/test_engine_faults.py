"""Faults of runner and scheduler, and what health says of them."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from engine.fakes import (
    FakeRunner,
    StartedEngine,
    assert_all_free,
    expected_tokens,
    in_thread,
    make_request,
    make_scheduler,
    read,
    step_over,
)
from hotseat.core.batch import Batch, RequestUpdate, StepOutput
from hotseat.core.request import FinishReason, RequestId
from hotseat.core.scheduler import Scheduler
from hotseat.engine import VirtualClock
from hotseat.errors import EngineStoppedError


def test_runner_that_raises_in_one_step_costs_that_batch_and_no_more() -> None:
    async def scenario(started: StartedEngine) -> None:
        _, last = await read(started.engine, make_request("bad"))
        assert last.finish_reason is FinishReason.ERROR
        assert "bad weights" in (last.error or "")
        good = make_request("good")
        tokens, last = await read(started.engine, good)
        assert tokens == expected_tokens(good)
        assert started.engine.health().alive

    runner = FakeRunner(lambda batch: RuntimeError("bad weights") if runner.num_steps == 1 else None)
    started = StartedEngine(runner=runner).run(scenario)
    assert_all_free(started.scheduler)


def test_runner_that_always_raises_turns_health_red_until_a_step_succeeds() -> None:
    async def scenario(started: StartedEngine) -> None:
        for i in range(3):
            assert started.engine.health().alive
            await read(started.engine, make_request(f"bad{i}"))
        health = started.engine.health()
        assert not health.alive
        assert "no device" in (health.reason or "")
        broken.clear()
        await read(started.engine, make_request("good"))
        assert started.engine.health().alive

    broken = threading.Event()
    broken.set()
    StartedEngine(runner=FakeRunner(lambda batch: OSError("no device") if broken.is_set() else None)).run(scenario)


class BuggyScheduler(Scheduler):
    """Breaks after the third step was scheduled or updated; ``stays_broken``: its invariants fail from then on."""

    breaks_in = "schedule"
    stays_broken = False
    num_calls = 0

    def schedule(self, now: float) -> Batch:
        batch = super().schedule(now)
        self.num_calls += 1
        assert self.num_calls != 3 or self.breaks_in != "schedule", "free + used = total"
        return batch

    def update(self, batch: Batch, output: StepOutput, now: float) -> list[RequestUpdate]:
        updates = super().update(batch, output, now)
        assert self.num_calls != 3 or self.breaks_in != "update", "free + used = total"
        return updates

    def check_invariants(self) -> None:
        assert not self.stays_broken, "still broken"
        super().check_invariants()


@pytest.mark.parametrize("stays_broken", [False, True])
@pytest.mark.parametrize("breaks_in", ["schedule", "update"])
def test_bug_in_the_scheduler_gives_every_client_an_answer(breaks_in: str, stays_broken: bool) -> None:
    async def scenario(started: StartedEngine) -> None:
        # The release of the short one is in the lost batch; a runner that never hears of it keeps its seat taken.
        requests = [make_request("short", max_tokens=2), *(make_request(f"r{i}", max_tokens=9) for i in range(4))]
        ends: dict[str, FinishReason | None] = {}
        async for updates in await started.engine.submit(requests):
            ends.update((update.request_id, update.finish_reason) for update in updates)
        assert ends.pop("short") is FinishReason.LENGTH
        assert set(ends.values()) == {FinishReason.ERROR}
        if stays_broken:
            with pytest.raises(EngineStoppedError, match=r"free \+ used"):
                await read(started.engine, make_request("late"))
            await asyncio.to_thread(started.engine.stop)
            assert not started.engine.health().alive
            assert "free + used" in (started.engine.health().reason or "")
        else:
            late = [make_request(f"late{i}") for i in range(8)]
            results = await asyncio.gather(*(read(started.engine, request) for request in late))
            assert [tokens for tokens, _ in results] == [expected_tokens(request) for request in late]
            assert started.engine.health().alive

    scheduler = BuggyScheduler(make_scheduler(max_num_seqs=8).config)
    scheduler.breaks_in, scheduler.stays_broken = breaks_in, stays_broken
    started = StartedEngine(scheduler).run(scenario)
    assert started.runner.is_closed
    assert Counter(started.witness.ends.values())["error"] == 4


def test_health_turns_red_when_a_step_hangs_and_green_when_it_goes_on() -> None:
    async def scenario(started: StartedEngine, clock: VirtualClock) -> None:
        clock.advance(100.0)
        assert started.engine.health().alive, "idle is not stalled"
        started.runner.hold()
        reading = asyncio.create_task(read(started.engine, make_request("a", max_tokens=2)))
        await in_thread(started.runner.entered)
        clock.advance(9.0)
        assert started.engine.health().alive
        clock.advance(1.5)
        health = started.engine.health()
        assert not health.alive
        assert health.stalled_for_s == pytest.approx(10.5)
        assert "10.5 s" in (health.reason or "")
        started.runner.let(1)
        await in_thread(started.runner.entered)
        assert started.engine.health().alive
        started.runner.let_go()
        await reading
        await step_over(started.engine)  # one without chunks follows the last end
        clock.advance(100.0)
        assert started.engine.health().alive

    clock = VirtualClock()
    StartedEngine(clock=clock, stall_timeout_s=10.0).run(scenario, clock)


def test_a_batch_that_waits_to_be_full_is_no_stall() -> None:
    async def scenario(started: StartedEngine, clock: VirtualClock) -> None:
        first = asyncio.create_task(read(started.engine, make_request("a", max_tokens=2)))
        while await started.engine.explain(RequestId("a")) is None:
            await asyncio.sleep(0)
        await step_over(started.engine)  # it found the batch incomplete
        clock.advance(1000.0)
        assert started.engine.health().alive
        _, last = await read(started.engine, make_request("b", max_tokens=2))
        assert last.finish_reason is FinishReason.LENGTH
        await first

    clock = VirtualClock()
    scheduler = make_scheduler(batching="static", batch_size=2, max_num_seqs=2)
    StartedEngine(scheduler, clock=clock, stall_timeout_s=10.0).run(scenario, clock)
