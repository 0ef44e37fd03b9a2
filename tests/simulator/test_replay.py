"""An engine with a real thread and a real clock records its steps; the simulator forms the same batches again."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine.fakes import FakeRunner, token_at
from hotseat.core.config import SchedulerConfig
from hotseat.core.request import FinishReason, Request, RequestId, SamplingParams
from hotseat.core.scheduler import Scheduler
from hotseat.engine import Engine, MonotonicClock, StepLoop, warm_up
from hotseat.simulator import read_arrivals
from hotseat.simulator.replay import RecordError, read_records, replay
from hotseat.telemetry import RecordWriter, RequestWriter

EOS = 7
OPTIONS: dict[str, Any] = {"max_num_seqs": 6, "num_kv_blocks": 60, "max_model_len": 300, "max_num_batched_tokens": 64}


def chats(engine: Engine, count: int) -> Iterator[Request]:
    """Return turns of a few chats, and other requests of every kind."""
    random = Random(5)
    for index in range(count):
        stem = [random.choice([11, 12]) for _ in range(2)] * random.choice([0, 8, 20, 40])
        prompt = [*stem, *(random.randrange(100, 200) for _ in range(random.randint(1, 40)))]
        if random.random() < 0.3:  # the answer that a chat was given, and the next question
            prompt += [token_at(position) for position in range(len(prompt), len(prompt) + 30)]
        yield Request(
            id=RequestId(f"r{index}"),
            prompt_token_ids=prompt,
            params=SamplingParams(
                temperature=0.0, max_tokens=random.choice([0, 1, 5, 40, None]), ignore_eos=random.random() < 0.3
            ),
            arrived_at=engine.clock.now(),
            eos_token_ids=frozenset({EOS}),
            priority=random.choice([0, 0, 1, 9]),
            tenant=random.choice("ab"),
            deadline_at=engine.clock.now() + 0.01 if random.random() < 0.5 else None,
            cache_salt=random.choice(["", "", "salt"]),
        )


async def talk(engine: Engine, request: Request, leave_after: int | None) -> None:
    """Read the answer, or leave or stop it after some tokens."""
    stream = await engine.submit([request])
    num_tokens = 0
    async for (update,) in stream:
        num_tokens += len(update.new_token_ids)
        if leave_after is not None and num_tokens >= leave_after:
            if leave_after % 2:
                break
            engine.finish(request.id, FinishReason.STOP)
    await stream.aclose()


def recorded(tmp_path: Path, config: SchedulerConfig, fails: Any = lambda batch: None) -> tuple[Path, Path]:
    """Run an engine under load and return its records: of steps, and of requests."""
    steps, requests = io.StringIO(), io.StringIO()
    random = Random(6)

    def script(request_id: RequestId, position: int) -> int:
        return EOS if position % 37 == 36 else token_at(position)

    runner = FakeRunner(fails=fails, script=script)
    scheduler, sinks = Scheduler(config), [RecordWriter(steps), RequestWriter(requests, config.block_size)]
    if config.target_itl_ms is not None:
        warm_up(StepLoop(scheduler, runner, clock=MonotonicClock(), sinks=sinks), config)
    engine = Engine(scheduler, runner, sinks=sinks)
    engine.start()

    async def load() -> None:
        async with asyncio.TaskGroup() as group:
            for request in chats(engine, 120):
                leave_after = random.choice([None, None, None, 1, 2, 3, 10])
                group.create_task(talk(engine, request, leave_after))
                if random.random() < 0.7:
                    await asyncio.to_thread(lambda: None)  # lets the engine's thread get on

    asyncio.run(load())
    engine.stop()
    paths = tmp_path / "steps.jsonl", tmp_path / "requests.jsonl"
    for path, file in zip(paths, (steps, requests), strict=True):
        path.write_text(file.getvalue())
    return paths


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_kv_blocks": 24, "watermark": 0.0},
        {"scheduling_policy": "priority"},
        {"scheduling_policy": "sjf", "aging_s": 0.01},
        {"scheduling_policy": "fair"},
        {"scheduling_policy": "deadline"},
        {"target_itl_ms": 1.0},
        {"batching": "dynamic", "max_delay_ms": 2.0},
        {"enable_prefix_caching": False},
    ],
    ids=str,
)
def test_a_replay_of_an_engines_own_step_times_forms_the_same_batches(tmp_path: Path, options: dict[str, Any]) -> None:
    config = SchedulerConfig(**(OPTIONS | options))
    steps, requests = recorded(tmp_path, config)
    arrivals = read_arrivals(requests, block_size=config.block_size)
    assert len([arrival for arrival in arrivals if not arrival.id.startswith("warm-up")]) == 120
    result = replay(config, arrivals, read_records(steps))
    assert result.differences == []
    assert result.is_equal
    assert result.num_equal_counts == result.num_steps > 100


@pytest.mark.parametrize(("num_kv_blocks", "period"), [(60, 50), (24, 7)])
def test_a_step_that_failed_is_replayed_with_its_ends(tmp_path: Path, num_kv_blocks: int, period: int) -> None:
    config = SchedulerConfig(**(OPTIONS | {"num_kv_blocks": num_kv_blocks}))
    steps, requests = recorded(
        tmp_path, config, lambda batch: OSError("broken") if (batch.step + 1) % period == 0 else None
    )
    result = replay(config, read_arrivals(requests, block_size=config.block_size), read_records(steps))
    assert result.differences == []
    assert result.is_equal


def test_a_replay_says_where_another_scheduler_would_have_gone_another_way(tmp_path: Path) -> None:
    config = SchedulerConfig(**OPTIONS)
    steps, requests = recorded(tmp_path, config)
    other = SchedulerConfig(**(OPTIONS | {"max_num_seqs": 3}))
    result = replay(other, read_arrivals(requests, block_size=config.block_size), read_records(steps))
    assert not result.is_equal
    assert result.num_equal == result.num_steps - 1
    assert f"step {result.num_steps - 1}: " in result.differences[-1]


def test_a_request_that_the_records_lack_is_noticed(tmp_path: Path) -> None:
    config = SchedulerConfig(**OPTIONS)
    steps, requests = recorded(tmp_path, config)
    arrivals = read_arrivals(requests, block_size=config.block_size)
    assert not replay(config, arrivals[1:], read_records(steps)).is_equal


GOOD = {
    "step": 0,
    "start_s": 0.0,
    "duration_s": 0.1,
    "scheduled": [],
    "admitted": [],
    "finished": [],
    "preempted": [],
    "deferred": [],
    "waiting": 0,
    "blocks_used": 0,
    "blocks_cached": 0,
    "blocks_free": 9,
    "budget": 64,
}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", "line 2: this is not JSON"),
        ("[]", "line 2: step is missing; this is no record of a step"),
        (
            json.dumps({name: value for name, value in GOOD.items() if name != "admitted"}),
            "line 2: admitted is missing",
        ),
        (json.dumps(GOOD), "line 2: step must be 1, not 0: a replay needs every step from 0 on"),
        (json.dumps(GOOD | {"step": 1, "duration_s": -1}), "line 2: duration_s must be a number of at least 0, not -1"),
    ],
)
def test_a_broken_record_is_named_by_line_and_field(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + line + "\n")
    with pytest.raises(RecordError, match=message):
        list(read_records(path))


def test_the_record_of_a_simulation_is_replayed_as_well(tmp_path: Path) -> None:
    from hotseat.simulator import Arrival, Simulation, StepCost

    config = SchedulerConfig(**OPTIONS)
    arrivals = [
        Arrival(
            id=f"r{index}", arrival_s=0.01 * index, prompt_len=30 + index, output_len=20, abort_at_s=0.01 * index + 1
        )
        for index in range(40)
    ]
    file = io.StringIO()
    cost = StepCost.parse("0.01,0.001,0")
    Simulation(config, arrivals, cost=cost, sinks=[RecordWriter(file)]).run()
    path = tmp_path / "steps.jsonl"
    path.write_text(file.getvalue())
    assert replay(config, arrivals, read_records(path)).is_equal
