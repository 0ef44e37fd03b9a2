"""Time whole steps, through the same loop, scheduler and runner that serve, and say where their time goes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from hotseat.core.batch import Batch, RequestUpdate, StepOutput
from hotseat.core.config import SchedulerConfig
from hotseat.core.request import Request, RequestId, SamplingParams
from hotseat.core.scheduler import Scheduler
from hotseat.engine import MonotonicClock, StepLoop
from hotseat.errors import ConfigError
from hotseat.models import LoadedModel
from hotseat.roofline.config import StepBenchOptions
from hotseat.roofline.limits import LimitMeter, Limits, arithmetic_of
from hotseat.roofline.parts import Path, Sample, StepPoint, StepSize, step_size
from hotseat.roofline.pins import Pins
from hotseat.roofline.points import rounded
from hotseat.roofline.tables import format_steps
from hotseat.runner.config import RunnerConfig
from hotseat.runner.dtype_choice import choose_dtype
from hotseat.runner.native import NativeRunner, default_threads, resolve_isa
from hotseat.simulator import LearnedCost, StepLog, calibrate

__all__ = ["StepTimes", "measure"]

_BLOCK = 16  # tokens
_WARM_STEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """All points and the limits of the machine."""

    threads: int
    limits: Limits
    points: list[StepPoint]
    cost: LearnedCost | None = None  # of all steps, where it is asked for

    def report(self, statistic: str) -> tuple[str, dict[str, Any]]:
        """Return the tables and what goes into the JSON file."""
        points = []
        for point in self.points:
            chosen, limit_s = point.chosen(statistic), point.limit_s(self.limits, statistic)
            points.append(
                {
                    "kind": point.kind,
                    "size": point.size,
                    "context": point.context,
                    "dtype": point.path.dtype,
                    "kv_dtype": point.path.kv_dtype,
                    "isa": point.path.isa,
                    "weight_bytes": point.path.weight_bytes,
                    "tokens_per_s": point.tokens_per_s(statistic),
                    "limit_s": limit_s,
                    "share": round(limit_s / chosen.total_s, 4),
                    "chosen": asdict(chosen) | {"loop_s": chosen.loop_s},
                    "samples_s": rounded([sample.total_s for sample in point.samples]),
                }
            )
        text = format_steps(self.points, self.limits, self.threads, statistic)
        return text, {"threads": self.threads, "limits": asdict(self.limits), "points": points}


def measure(model: LoadedModel, options: StepBenchOptions) -> StepTimes:
    """Measure the steps of ``model``.

    Raises:
        ConfigError: the machine does not have the instruction set, or a sequence is longer than the model can.
    """
    longest = max([options.context + options.num_steps, *(length + 1 for length in options.prefills)])
    if longest > model.spec.max_position_embeddings:
        raise ConfigError(f"a sequence of {longest} tokens is longer than {model.spec.max_position_embeddings}")
    threads, isa = options.threads or default_threads(), resolve_isa(options.isa)
    chosen = [choose_dtype(model.spec, model.weights) if name == "auto" else name for name in options.dtypes]
    configs = [_runner_config(options, dtype, isa, threads) for dtype in chosen]
    pins = Pins(enabled=options.pin)
    dtypes = sorted({name for config in configs for name in (config.kv_dtype, arithmetic_of(config.weight_dtype))})
    meter = pins.start(lambda: LimitMeter(isas=[isa], dtypes=dtypes, threads=threads))
    points: list[StepPoint] = []
    log = StepLog()
    for config in configs:
        runner = pins.start(partial(NativeRunner, model.spec, model.weights, config))
        with pins.held():
            points += _measure_path(model, runner, config, options, meter, log)
        runner.close()
    cost = None if options.step_cost is None else calibrate(log.records)
    return StepTimes(threads=threads, limits=meter.limits(), points=points, cost=cost)


def _runner_config(options: StepBenchOptions, dtype: str, isa: str, threads: int) -> RunnerConfig:
    seats = max(options.batches, default=1)
    length = max([options.context + 4 * options.num_steps, *(length + 1 for length in options.prefills)])
    blocks_of_batch = seats * (-(-(options.context + 4 * options.num_steps) // _BLOCK) + 1)
    return RunnerConfig(
        dtype=dtype,
        kv_cache_dtype=options.kv_cache_dtype,
        isa=isa,
        threads=threads,
        block_size=_BLOCK,
        num_kv_blocks=max(blocks_of_batch, length // _BLOCK + 2) + 8,
        max_num_seqs=seats,
        max_num_batched_tokens=max(options.max_num_batched_tokens, seats),
        max_model_len=length,
    )


def _measure_path(
    model: LoadedModel,
    runner: NativeRunner,
    config: RunnerConfig,
    options: StepBenchOptions,
    meter: LimitMeter,
    log: StepLog,
) -> list[StepPoint]:
    """Measure all points of one dtype, in turns."""
    path = Path(
        spec=model.spec,
        dtype=config.weight_dtype,
        kv_dtype=config.kv_dtype,
        isa=config.isa,
        weight_bytes=runner.weight_bytes,
    )
    world = _World(runner, config, options, model.spec.vocab_size, log)
    decodes = [StepPoint(kind="decode", size=size, context=options.context, path=path) for size in options.batches]
    prefills = [StepPoint(kind="prefill", size=size, context=size // 2, path=path) for size in options.prefills]
    for _ in range(options.num_rounds):
        meter.measure_arithmetic()
        for point in decodes:
            world.bytes_per_s = meter.measure_memory()
            point.samples += world.decode(point.size)
        for point in prefills:
            world.bytes_per_s = meter.measure_memory()
            point.samples.append(world.prefill(point.size))
        if options.step_cost is not None:
            world.mix()
    return decodes + prefills


class _TimedRunner:
    """A runner that remembers how long its last step took, and what it had to do."""

    def __init__(self, runner: NativeRunner) -> None:
        self.batch = Batch(step=-1, chunks=[])
        self.seconds = 0.0
        self.native_s: dict[str, float] = {}
        self.num_experts = 0
        self._runner = runner

    def execute(self, batch: Batch) -> StepOutput:
        self._runner.time_steps(True)
        begin = time.perf_counter()
        output = self._runner.execute(batch)
        self.seconds = time.perf_counter() - begin
        self.native_s = self._runner.step_seconds()
        self.num_experts = self._runner.num_experts_read
        self.batch = batch
        return output

    def close(self) -> None:
        self._runner.close()


class _TimedScheduler(Scheduler):
    """A scheduler that adds up how long it takes."""

    seconds = 0.0

    def schedule(self, now: float) -> Batch:
        begin = time.perf_counter()
        batch = super().schedule(now)
        self.seconds += time.perf_counter() - begin
        return batch

    def update(self, batch: Batch, output: StepOutput, now: float) -> list[RequestUpdate]:
        begin = time.perf_counter()
        updates = super().update(batch, output, now)
        self.seconds += time.perf_counter() - begin
        return updates


class _World:
    """Scheduler, runner and loop, and requests that never end by themselves."""

    def __init__(
        self, runner: NativeRunner, config: RunnerConfig, options: StepBenchOptions, vocab_size: int, log: StepLog
    ) -> None:
        self.bytes_per_s = 0.0  # that memory gives at this time
        self._options = options
        self._vocab_size = vocab_size
        self._random = random.Random(0)
        self._num_requests = 0
        self._runner = _TimedRunner(runner)
        self._scheduler = _TimedScheduler(
            SchedulerConfig(
                max_model_len=config.max_model_len,
                num_kv_blocks=config.num_kv_blocks,
                block_size=config.block_size,
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                enable_prefix_caching=False,
                watermark=0.0,
            )
        )
        self._loop = StepLoop(self._scheduler, self._runner, clock=MonotonicClock(), sinks=[log])

    def mix(self) -> None:
        """Run requests of many lengths with as many seats taken as there are, then ever fewer."""
        seats, longest = self._scheduler.config.max_num_seqs, self._options.context
        for index in range(2 * seats):
            self._add(max(1, longest * (1 + index * 7 % 16) // 16), max_tokens=8 + index * 5 % 40)
        while self._loop.request_ids:
            self._loop.step()
        self._end()

    def decode(self, num_requests: int) -> Iterator[Sample]:
        """Yield decode steps of ``num_requests`` requests, half of them before they reach the mean length."""
        steps = self._options.num_steps
        prompt_len = max(1, self._options.context - steps // 2)
        for length in self._staggered(prompt_len, num_requests):
            self._add(length)
        while self._runner.batch.num_decodes < num_requests:
            assert self._loop.has_work, "a request ended before all of them decoded"
            self._loop.step()
        for _ in range(_WARM_STEPS):
            self._loop.step()
        for _ in range(steps):
            sample, _ = self._step()
            yield sample
        self._end()

    def _staggered(self, prompt_len: int, num_requests: int) -> list[int]:
        """Return lengths of prompts, prefilled one after the other, that have decoded up to the same length in the end.

        While prompt ``i`` is prefilled, the ``i`` before it decode and take their part of the budget.
        """
        lengths: list[int] = []
        num_steps = 0.0  # that the prompts behind take
        for index in reversed(range(num_requests)):
            lengths.insert(0, max(1, round(prompt_len - num_steps)))
            num_steps += lengths[0] / max(1, self._scheduler.config.max_num_batched_tokens - index)
        return lengths

    def prefill(self, length: int) -> Sample:
        """Compute a prompt up to its first token."""
        self._add(length)
        samples: list[Sample] = []
        has_token = False
        while not has_token:
            sample, has_token = self._step()
            samples.append(sample)
        self._end()
        kinds = samples[0].native_s
        return Sample(
            total_s=sum(sample.total_s for sample in samples),
            scheduling_s=sum(sample.scheduling_s for sample in samples),
            runner_s=sum(sample.runner_s for sample in samples),
            native_s={kind: sum(sample.native_s[kind] for sample in samples) for kind in kinds},
            sizes=tuple(size for sample in samples for size in sample.sizes),
            bytes_per_s=self.bytes_per_s,
        )

    def _step(self) -> tuple[Sample, bool]:
        """Run a step; return where its time went, and whether it gave a token."""
        scheduler, runner = self._scheduler, self._runner
        scheduler.seconds = 0.0
        begin = time.perf_counter()
        updates = self._loop.step()
        total_s = time.perf_counter() - begin
        assert self._loop.failure is None, self._loop.failure
        size: StepSize = step_size(runner.batch, runner.num_experts)
        sample = Sample(
            total_s=total_s,
            scheduling_s=scheduler.seconds,
            runner_s=runner.seconds - sum(runner.native_s.values()),
            native_s=runner.native_s,
            sizes=(size,),
            bytes_per_s=self.bytes_per_s,
        )
        return sample, any(update.new_token_ids for update in updates)

    def _add(self, prompt_len: int, max_tokens: int | None = None) -> None:
        self._num_requests += 1
        self._loop.add(
            Request(
                id=RequestId(f"r{self._num_requests}"),
                prompt_token_ids=self._random.choices(range(self._vocab_size), k=prompt_len),
                params=SamplingParams(temperature=self._options.temperature, max_tokens=max_tokens, ignore_eos=True),
                arrived_at=self._loop.clock.now(),
                seed=self._num_requests,
            )
        )

    def _end(self) -> None:
        for request_id in self._loop.request_ids:
            self._loop.abort(request_id)
        while self._loop.has_work:
            self._loop.step()
