"""How step times are learned, and what a latency target makes of them."""

from __future__ import annotations

from random import Random

import pytest

from core.fake_runner import LightRunner
from core.worlds import World
from hotseat.core.batch import Batch
from hotseat.core.budget import FIRST_PREFILL, MAX_MARGIN, MIN_PREFILL, PrefillTime, StepLoad, StepTimePredictor


def true_seconds(load: StepLoad) -> float:
    """Return the step time of a made-up machine, on which decodes and prefills pay differently for their context."""
    linear = 0.005 + 0.0001 * load.num_decodes + 0.0003 * load.num_prefill_tokens
    return linear + 8e-7 * load.num_positions + 4e-7 * load.num_pairs


def pairs(start: int, size: int) -> int:
    return sum(position + 1 for position in range(start, start + size))


def random_load(random: Random) -> StepLoad:
    num_decodes, num_prefill = random.randint(0, 60), random.choice([0, random.randint(1, 300)])
    num_positions = num_decodes * random.randint(10, 1000)
    return StepLoad(num_decodes, num_prefill, num_positions, pairs(random.randint(0, 3000), num_prefill))


def trained(noise: float = 0.0) -> StepTimePredictor:
    random, predictor = Random(0), StepTimePredictor()
    for _ in range(400):
        load = random_load(random)
        predictor.observe(load, true_seconds(load) * (1 + random.uniform(-noise, noise)))
    return predictor


LOADS = (StepLoad(32, 0, 32_000, 0), StepLoad(0, 256, 0, 32_896), StepLoad(60, 100, 6_000, pairs(3000, 100)))


@pytest.mark.parametrize(("noise", "error"), [(0.0, 0.01), (0.05, 0.06)])
def test_step_times_are_learned(noise: float, error: float) -> None:
    predictor = trained(noise)
    for load in LOADS:
        assert predictor.predict(load) == pytest.approx(true_seconds(load), rel=error)
    assert predictor.error < error


def test_a_feature_that_was_never_seen_costs_nothing() -> None:
    predictor = StepTimePredictor()
    for num_decodes in range(1, 50):
        load = StepLoad(num_decodes, 0, 100 * num_decodes, 0)
        predictor.observe(load, true_seconds(load))
    assert predictor.prefill_rates() == pytest.approx((0, 0), abs=1e-12)


def test_no_coefficient_becomes_negative_when_steps_get_shorter_as_they_grow() -> None:
    predictor = StepTimePredictor()
    for size in range(1, 60):
        predictor.observe(StepLoad(size % 3, size, 50 * (size % 3), pairs(0, size)), 0.1 / size)
        assert predictor.predict(StepLoad(0, 500, 0, pairs(0, 500))) >= 0
        assert min(predictor.prefill_rates()) >= 0


def test_the_margin_is_what_all_but_a_few_steps_stay_below() -> None:
    random, predictor = Random(1), StepTimePredictor()
    ratios = []
    for _ in range(3000):
        load = random_load(random)
        seconds = true_seconds(load) * random.choice([1.0, 1.0, 1.0, 1.0, 1.2])
        if load.num_prefill_tokens and predictor.is_ready:
            ratios.append(seconds / predictor.predict(load) / predictor.margin)
        predictor.observe(load, seconds)
    assert 1.05 < predictor.margin < MAX_MARGIN
    assert 0.03 < sum(ratio > 1 for ratio in ratios) / len(ratios) < 0.07


@pytest.mark.parametrize("seconds", [5.0, 0.0001])  # a machine that stood still; a step that failed at once
def test_one_odd_step_does_not_spoil_the_fit(seconds: float) -> None:
    predictor = trained()
    for load in LOADS:
        predictor.observe(load, seconds)
    for load in LOADS:
        assert predictor.predict(load) == pytest.approx(true_seconds(load), rel=0.1)


@pytest.mark.parametrize("factor", [3.0, 0.3])
def test_a_machine_that_becomes_slower_or_faster_is_followed(factor: float) -> None:
    predictor, random = trained(), Random(2)
    for _ in range(600):
        load = random_load(random)
        predictor.observe(load, factor * true_seconds(load))
    for load in LOADS:
        assert predictor.predict(load) == pytest.approx(factor * true_seconds(load), rel=0.1)


def test_long_decode_only_phase_does_not_spoil_what_is_known_of_prefill() -> None:
    predictor = trained()
    for step in range(5000):
        load = StepLoad(32, 0, 32_000 + 32 * (step % 100), 0)
        predictor.observe(load, true_seconds(load))
    for load in LOADS:
        assert predictor.predict(load) == pytest.approx(true_seconds(load), rel=0.02)


@pytest.mark.parametrize("start", [0, 1, 700, 20_000])
@pytest.mark.parametrize(("per_token_s", "per_pair_s"), [(3e-4, 4e-7), (3e-4, 0.0), (0.0, 4e-7)])
def test_as_many_tokens_fit_as_their_time_allows(start: int, per_token_s: float, per_pair_s: float) -> None:
    size = PrefillTime(0.2, per_token_s, per_pair_s).fit(start, 10_000)
    cost_s, cost_of_one_more_s = (n * per_token_s + pairs(start, n) * per_pair_s for n in (size, size + 1))
    assert cost_s <= 0.2 * (1 + 1e-9)
    assert cost_of_one_more_s > 0.2


def test_time_that_was_taken_is_not_given_twice() -> None:
    time = PrefillTime(0.1, 0.001, 0.0)
    assert time.take(0, 60) == 60
    assert time.take(500, 60) == 40
    assert time.take(0, 60) == 0


def test_prefill_gets_a_minimum_when_the_decodes_alone_exceed_the_target() -> None:
    time = PrefillTime(-0.1, 0.001, 0.0)
    assert time.take(0, 10) == 10
    assert time.take(0, 10) == MIN_PREFILL - 10
    assert time.take(0, 10) == 0


def seconds_of(batch: Batch) -> float:
    decodes, prefills = batch.chunks[: batch.num_decodes], batch.chunks[batch.num_decodes :]
    num_tokens = batch.num_tokens - batch.num_decodes
    num_pairs = sum(pairs(chunk.start, chunk.end - chunk.start) for chunk in prefills)
    return true_seconds(StepLoad(len(decodes), num_tokens, sum(chunk.end for chunk in decodes), num_pairs))


def test_first_steps_are_small_and_growth_is_bounded_by_what_was_seen() -> None:
    world = World(is_light=True, target_itl_ms=1e6, max_num_batched_tokens=2048, num_kv_blocks=4000)
    world.add(2000, max_tokens=2)
    now, sizes = 0.0, []
    for _ in range(8):
        batch = world.scheduler.schedule(now)
        now += seconds_of(batch)
        sizes.append(batch.num_tokens)
        world.scheduler.update(batch, LightRunner().execute(batch), now)
    assert sizes[:7] == [FIRST_PREFILL] * 4 + [2 * FIRST_PREFILL, 4 * FIRST_PREFILL, 8 * FIRST_PREFILL]


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_target_keeps_steps_short_while_short_and_long_prompts_arrive(noise: float) -> None:
    world = World(is_light=True, target_itl_ms=60.0, max_num_batched_tokens=512, num_kv_blocks=4000)
    for _ in range(8):
        world.add(100, max_tokens=3000)
    now, durations, random = 0.0, [], Random(3)
    for step in range(1500):
        if step % 60 == 20:
            world.add(3000, max_tokens=5)
        if step % 7 == 0:
            world.add(random.randint(20, 150), max_tokens=10)
        batch = world.scheduler.schedule(now)
        duration_s = seconds_of(batch) * random.uniform(1 - noise, 1 + noise)
        now += duration_s
        world.scheduler.update(batch, LightRunner().execute(batch), now)
        if step > 100:
            durations.append(duration_s)
    durations.sort()
    assert durations[int(len(durations) * 0.95)] <= 0.060 * 1.03
    assert durations[int(len(durations) * 0.99)] <= 0.060 * 1.15
    assert durations[len(durations) // 2] > 0.045, "the target is not used up"
    error = world.scheduler.stats().step_time_error
    assert error is not None
    assert error < 0.1


def test_a_short_prompt_beside_a_long_one_is_paid_by_its_own_position() -> None:
    world = World(is_light=True, target_itl_ms=60.0, max_num_batched_tokens=512, num_kv_blocks=4000)
    world.add(3500, "long", max_tokens=5)
    now, seen = 0.0, 0
    for step in range(60):
        if step % 4 == 0:
            world.add(40, max_tokens=1)
        batch = world.scheduler.schedule(now)
        chunks = {chunk.request_id: chunk.end - chunk.start for chunk in batch.chunks}
        now += seconds_of(batch)
        world.scheduler.update(batch, LightRunner().execute(batch), now)
        if step > 10 and "long" in chunks and len(chunks) > 1 and seconds_of(batch) > 0.03:
            seen += 1
            assert seconds_of(batch) <= 0.060 * 1.05
    assert seen > 3


def test_whoever_sits_down_when_the_time_is_up_is_named() -> None:
    world = World(is_light=True, target_itl_ms=60.0, max_num_batched_tokens=512, num_kv_blocks=4000, max_num_seqs=64)
    random, now, num_named = Random(4), 0.0, 0
    for _ in range(3000):
        for _ in range(random.choice([0, 0, 1, 3])):
            if world.scheduler.num_waiting < 20:
                world.add(random.choice([1, 5, 30, 200, 900]), max_tokens=random.randint(1, 40))
        batch = world.scheduler.schedule(now)
        now += seconds_of(batch) if batch.chunks else 0.001
        chunks = {chunk.request_id for chunk in batch.chunks}
        named = [deferral.request_id for deferral in batch.deferred]
        assert len(named) == len(set(named))
        running = {request_id for request_id in batch.admitted_ids if request_id not in chunks}
        assert running <= set(named)
        num_named += len(running)
        world.scheduler.update(batch, LightRunner().execute(batch), now)
