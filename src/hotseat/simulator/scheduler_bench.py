"""Time what the scheduler itself costs: ``schedule`` and ``update`` in a steady decode."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from hotseat.core.config import SchedulerConfig
from hotseat.core.request import RequestId
from hotseat.core.scheduler import Scheduler
from hotseat.engine import VirtualClock
from hotseat.simulator.arrivals import Arrival, Script
from hotseat.simulator.config import SchedulerBenchOptions
from hotseat.simulator.runner import SimulatedRunner

__all__ = ["Point", "measure", "run"]

SCHEMA = "hotseat.bench.scheduler/1"
BLOCK_SIZE = 16
PROMPT_LEN = 64
STEP_S = 0.01  # of the virtual clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Microseconds at one number of running and waiting requests."""

    num_running: int
    num_waiting: int
    schedule_us: float  # a step
    update_us: float  # a step
    us_per_running: float  # both, for each running request and step
    vs_smallest: float | None  # times as long as with the smallest queue measured: the median over the rounds
    rounds: list[float]  # us_per_running of the median step of each round; the best one is the point


def run(options: SchedulerBenchOptions, *, command: str, machine: Mapping[str, Any]) -> int:
    """Measure all points, print each as soon as it is known, return the exit status."""
    points = measure(options)
    if options.json:
        document = {
            "schema": SCHEMA,
            "command": command,
            "machine": dict(machine),
            "options": asdict(options),
            "points": [asdict(point) for point in points],
        }
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return 0
    sys.stdout.write(f"{machine['cpu']}, Python {machine['python']}; median of {options.num_steps} decode steps, ")
    sys.stdout.write(f"best of {options.num_rounds} rounds\n\n")
    heads = ("running", "waiting", "schedule µs", "update µs", "µs/running", f"vs {min(options.waiting_counts)}")
    sys.stdout.write("".join(f"{head:>13}" for head in heads) + "\n")
    sys.stdout.flush()
    for point in points:
        ratio = "-" if point.vs_smallest is None else f"{point.vs_smallest:.3f}"
        sys.stdout.write(
            f"{point.num_running:>13}{point.num_waiting:>13}{point.schedule_us:>13.1f}{point.update_us:>13.1f}"
            f"{point.us_per_running:>13.3f}{ratio:>13}\n"
        )
        sys.stdout.flush()
    return 0


def measure(options: SchedulerBenchOptions) -> Iterator[Point]:
    """Yield a point for each number of running and of waiting requests.

    The queue lengths of one number of running requests are measured in turns, so that a machine that
    slows down slows all of them.
    """
    queues = sorted(options.waiting_counts)
    for num_running in options.running_counts:
        worlds = [_World(num_running, num_waiting, options) for num_waiting in queues]
        times: list[list[tuple[float, float]]] = [[] for _ in queues]
        for _ in range(options.num_rounds):
            for world, rounds in zip(worlds, times, strict=True):
                rounds.append(world.time_steps(options.num_steps))
        yield from _points(num_running, queues, times)


def _points(num_running: int, queues: Sequence[int], times: Sequence[Sequence[tuple[float, float]]]) -> Iterator[Point]:
    base = [sum(pair) for pair in times[0]]
    for num_waiting, rounds in zip(queues, times, strict=True):
        schedule_s, update_s = min(rounds, key=sum)
        ratios = [sum(pair) / smallest for pair, smallest in zip(rounds, base, strict=True)]
        yield Point(
            num_running=num_running,
            num_waiting=num_waiting,
            schedule_us=round(schedule_s * 1e6, 3),
            update_us=round(update_s * 1e6, 3),
            us_per_running=round((schedule_s + update_s) * 1e6 / num_running, 4),
            vs_smallest=None if rounds is times[0] else round(median(ratios), 4),
            rounds=[round(sum(pair) * 1e6 / num_running, 4) for pair in rounds],
        )


class _World:
    """A scheduler whose seats are all taken by requests that decode, with others behind them."""

    def __init__(self, num_running: int, num_waiting: int, options: SchedulerBenchOptions) -> None:
        num_decodes = options.num_steps * options.num_rounds + num_running + 100
        length = PROMPT_LEN + BLOCK_SIZE + num_decodes
        config = SchedulerConfig(
            max_model_len=length,
            num_kv_blocks=num_running * (length // BLOCK_SIZE + 2) + 1,
            block_size=BLOCK_SIZE,
            max_num_seqs=num_running,
            max_num_batched_tokens=max(2048, 2 * num_running),
        )
        self._scheduler = Scheduler(config)
        self._clock = VirtualClock()
        self._runner = SimulatedRunner(self._clock, lambda batch: STEP_S)
        for index in range(num_running + num_waiting):
            # Lengths differ, so that block boundaries come in turns, as they do in service.
            arrival = Arrival(
                id=f"r{index}", arrival_s=0.0, prompt_len=PROMPT_LEN + index % BLOCK_SIZE, output_len=num_decodes
            )
            self._runner.learn(RequestId(arrival.id), Script(arrival, index))
            self._scheduler.add(arrival.to_request(index), 0.0)
        while self._step()[2] < num_running:
            pass  # until all of them decode

    def time_steps(self, num_steps: int) -> tuple[float, float]:
        """Return the seconds of ``schedule`` and of ``update`` in the median step: others use this machine as well."""
        taken = [self._step() for _ in range(num_steps)]
        return median(step[0] for step in taken), median(step[1] for step in taken)

    def _step(self) -> tuple[float, float, int]:
        """Run a step; return the seconds of ``schedule`` and ``update``, and how many requests decoded."""
        scheduler, clock, timer = self._scheduler, self._clock, time.perf_counter
        begin = timer()
        batch = scheduler.schedule(clock.now())
        scheduled = timer()
        output = self._runner.execute(batch)
        computed = timer()
        updates = scheduler.update(batch, output, clock.now())
        end = timer()
        assert len(updates) <= len(batch.chunks), "a request has two updates"
        return scheduled - begin, end - computed, batch.num_decodes
