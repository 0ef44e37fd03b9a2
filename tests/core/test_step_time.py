"""How step times are learned, and what a latency target makes of them."""

from __future__ import annotations

from random import Random

import pytest

from core.fake_runner import LightRunner
from core.worlds import World
from hotseat.core.batch import Batch
from hotseat.core.step_time import FIRST_PREFILL, MIN_PREFILL, StepLoad, StepTimePredictor


def true_seconds(load: StepLoad) -> float:
    """Return the step time of a made-up machine."""
    return 0.004 + 0.0002 * load.num_decodes + 0.0001 * load.num_prefill_tokens + 2e-8 * load.num_attended


def trained(noise: float = 0.0) -> StepTimePredictor:
    random, predictor = Random(0), StepTimePredictor()
    for _ in range(300):
        num_decodes, num_prefill = random.randint(0, 60), random.choice([0, random.randint(1, 500)])
        load = StepLoad(
            num_decodes, num_prefill, num_decodes * random.randint(10, 3000) + num_prefill * num_prefill // 2
        )
        predictor.observe(load, true_seconds(load) * (1 + random.uniform(-noise, noise)))
    return predictor


@pytest.mark.parametrize(("noise", "error"), [(0.0, 0.01), (0.05, 0.06)])
def test_step_times_are_learned(noise: float, error: float) -> None:
    predictor = trained(noise)
    for load in (StepLoad(32, 0, 32_000), StepLoad(0, 256, 32_768), StepLoad(60, 400, 200_000)):
        assert predictor.predict(load) == pytest.approx(true_seconds(load), rel=error)
    assert predictor.error < error


def test_budget_is_what_fits_in_the_target() -> None:
    predictor = trained()
    num_tokens = predictor.prefill_budget(32, 32_000, 0, 0.040, 1000)
    assert true_seconds(StepLoad(32, num_tokens, 32_000 + num_tokens**2 // 2)) == pytest.approx(0.040, rel=0.02)
    assert predictor.prefill_budget(32, 320_000, 0, 0.040, 1000) < num_tokens
    assert predictor.prefill_budget(32, 32_000, 20_000, 0.040, 1000) < num_tokens


def test_prefill_gets_a_minimum_when_the_decodes_alone_exceed_the_target() -> None:
    assert trained().prefill_budget(60, 100_000, 0, 0.001, 1000) == MIN_PREFILL
    assert trained().prefill_budget(60, 100_000, 0, 0.001, 3) == 3


def test_first_steps_are_small_and_growth_is_bounded_by_what_was_seen() -> None:
    predictor = StepTimePredictor()
    assert predictor.prefill_budget(0, 0, 0, 10.0, 10_000) == FIRST_PREFILL
    for _ in range(10):
        predictor.observe(StepLoad(0, 100, 5000), 0.01)
    assert predictor.prefill_budget(0, 0, 0, 10.0, 10_000) == 200


def test_one_slow_step_does_not_spoil_the_fit() -> None:
    predictor = trained()
    load = StepLoad(32, 0, 32_000)
    predictor.observe(load, 5.0)
    assert predictor.predict(load) < 3 * true_seconds(load)


def test_long_decode_only_phase_does_not_spoil_what_is_known_of_prefill() -> None:
    predictor = trained()
    for step in range(5000):
        load = StepLoad(32, 0, 32_000 + 32 * (step % 100))
        predictor.observe(load, true_seconds(load))
    load = StepLoad(32, 200, 60_000)
    assert predictor.predict(load) == pytest.approx(true_seconds(load), rel=0.1)


def seconds_of(batch: Batch) -> float:
    num_attended = sum((chunk.end - chunk.start) * (chunk.start + chunk.end) // 2 for chunk in batch.chunks)
    return true_seconds(StepLoad(batch.num_decodes, batch.num_tokens - batch.num_decodes, num_attended))


def test_target_keeps_steps_short_while_long_prompts_arrive() -> None:
    world = World(is_light=True, target_itl_ms=30.0, max_num_batched_tokens=1024, num_kv_blocks=4000)
    for _ in range(16):
        world.add(100, max_tokens=400)
    now, durations = 0.0, []
    for step in range(600):
        if step % 40 == 20:
            world.add(2000, max_tokens=5)
        batch = world.scheduler.schedule(now)
        output = LightRunner().execute(batch)
        now += seconds_of(batch)
        world.scheduler.update(batch, output, now)
        if batch.num_decodes >= 16:
            durations.append(seconds_of(batch))
    durations.sort()
    assert len(durations) > 200
    assert durations[int(len(durations) * 0.99)] <= 0.030 * 1.25
    assert durations[-1] > 0.025, "the target is not used up"
    error = world.scheduler.stats().step_time_error
    assert error is not None
    assert error < 0.1
