"""The scheduler's promises over whole runs of the simulator, judged by their records."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from hotseat.simulator import Arrival, Slo
from simulator.worlds import Run, heavy_tailed


def random_load(num_requests: int, rate: float) -> list[Arrival]:
    """Return requests of all kinds of lengths, urgencies, tenants and deadlines; some lose patience."""
    random, now, arrivals = Random(7), 0.0, []
    for index in range(num_requests):
        now += random.expovariate(rate)
        arrivals.append(
            Arrival(
                id=f"r{index}",
                arrival_s=now,
                prompt_len=min(3000, max(1, int(random.lognormvariate(5, 1)))),
                output_len=min(400, max(1, int(random.lognormvariate(3.5, 1)))),
                max_tokens=400,
                priority=random.choice([0, 0, 0, 1, 5]),
                tenant=random.choice("aaaaab"),
                deadline_ms=random.choice([500.0, 5000.0, 20000.0]),
                content_ids=tuple(random.choice([(), (1,), (1, 2)])),
                abort_at_s=now + 30 if random.random() < 0.02 else None,
            )
        )
    return arrivals


AGING_S = 4.0
# How much later than a request somebody may arrive and still sit down before it, in seconds: priorities span 5 levels,
# lengths from 2 to 3,400 tokens span 11. (A deadline and a fair share depend on the load, so they have no such bound.)
MAX_LEAD_S = {"fcfs": 0.0, "priority": 5 * AGING_S, "sjf": 11 * AGING_S}


def starvation_run(policy: str) -> Run:
    return Run(
        random_load(2000, rate=10.0),
        scheduling_policy=policy,
        aging_s=AGING_S,
        num_kv_blocks=6000,
        max_num_seqs=32,
        # Both let others pass for a reason of their own, with bounds of their own; tested below.
        short_prefill_share=0.0,
        max_times_passed=0,
    )


@pytest.fixture(scope="module")
def longest_wait_in_order_of_arrival() -> float:
    return max(wait for wait in waits(starvation_run("fcfs")).values())


def waits(run: Run) -> dict[str, float]:
    return {
        outcome.id: (outcome.finished_at if outcome.admitted_at is None else outcome.admitted_at) - outcome.arrived_at
        for outcome in run.outcomes.values()
    }


@pytest.mark.parametrize("policy", ["fcfs", "priority", "sjf", "fair", "deadline"])
def test_nobody_starves_under_a_policy_with_aging(policy: str, longest_wait_in_order_of_arrival: float) -> None:
    """Under a load that is too much, nobody waits much longer than the last would in order of arrival."""
    run = starvation_run(policy)
    assert run.observer.num_request_steps > 90_000
    assert len(run.outcomes) == 2000
    assert all(outcome.is_completed or outcome.reason.value == "abort" for outcome in run.outcomes.values())
    assert max(waits(run).values()) <= 1.15 * longest_wait_in_order_of_arrival + 5 * AGING_S
    latest = lead = 0.0
    for request_id in (request_id for record in run.records for request_id in record.admitted):
        outcome = run.outcomes[request_id]
        if not outcome.num_cached_tokens and not outcome.num_preemptions:  # who shares a prefix may wait for its leader
            lead = max(lead, latest - outcome.arrived_at)
            latest = max(latest, outcome.arrived_at)
    assert lead <= MAX_LEAD_S.get(policy, run.summary().duration_s)


@pytest.mark.parametrize("budget", [256, 512, 2048])
@pytest.mark.parametrize("output_len", [1, 60])
def test_short_prompts_pass_beside_a_long_one_that_is_slowed_by_at_most_a_third(budget: int, output_len: int) -> None:
    long = Arrival(id="long", arrival_s=0.0, prompt_len=30_000, output_len=10)
    short = [
        Arrival(
            id=f"short {index}",
            arrival_s=1.0 + 0.02 * index,
            prompt_len=1 + (7 * index) % (budget // 4),
            output_len=output_len,
        )
        for index in range(50)
    ]
    num_alone = Run([long], max_num_batched_tokens=budget).step_of_first_token("long") + 1
    run = Run([long, *short], max_num_batched_tokens=budget)
    for arrival in short:
        delay = run.step_of_first_token(arrival.id) - run.step_of_admission(arrival.id)
        assert delay <= 1, f"{arrival.id} has its first token {delay + 1} steps after it sat down"
    num_beside = run.step_of_first_token("long") + 1
    assert num_alone < num_beside <= num_alone * 4 / 3 + 1


def service(run: Run, until: float) -> dict[str, float]:
    """Return what each tenant was given by an instant: its prompt tokens, and twice its output tokens."""
    total: dict[str, float] = defaultdict(float)
    for record in run.records:
        if record.start_s >= until:
            break
        for chunk in record.chunks:
            tenant = run.witness.requests[chunk.request_id].tenant
            total[tenant] += 2.0 if chunk.end - chunk.start == 1 else float(chunk.end - chunk.start)
    return total


def test_fair_bounds_the_service_gap_between_a_flooding_tenant_and_another() -> None:
    random = Random(3)

    def requests(tenant: str, count: int, prompt_len: int) -> list[Arrival]:
        return [
            Arrival(
                id=f"{tenant}{index}",
                arrival_s=0.0,
                prompt_len=random.randint(prompt_len // 2, prompt_len),
                output_len=random.randint(5, 60),
                tenant=tenant,
            )
            for index in range(count)
        ]

    arrivals = requests("flood", 600, 300) + requests("calm", 150, 120)
    run = Run(arrivals, scheduling_policy="fair", num_kv_blocks=200, max_num_seqs=16, max_model_len=512)
    ends = {
        tenant: max(outcome.admitted_at or 0.0 for outcome in run.outcomes.values() if outcome.tenant == tenant)
        for tenant in ("flood", "calm")
    }
    both_wait_until = min(ends.values())
    bound = 2 * max(300, 2 * 200 * 16)  # of the VTC paper: 2 · max(longest prompt, 2 · tokens in the KV cache)
    instants = [both_wait_until * index / 20 for index in range(1, 21)]
    gaps = [abs(given["flood"] - given["calm"]) for given in (service(run, until) for until in instants)]
    assert max(gaps) <= bound
    assert gaps[-1] <= bound / 8, "in fact they stay close together"
    unfair = service(Run(arrivals, num_kv_blocks=200, max_num_seqs=16, max_model_len=512), both_wait_until)
    assert unfair["flood"] - unfair["calm"] > bound, "first come, first served shows what there is to be fair about"


def test_an_urgent_request_runs_in_the_next_step_though_all_seats_are_taken() -> None:
    crowd = [Arrival(id=f"r{index}", arrival_s=0.0, prompt_len=50, output_len=300, priority=5) for index in range(12)]
    urgent = Arrival(id="urgent", arrival_s=2.0, prompt_len=50, output_len=5, priority=0)
    options: dict[str, Any] = {"max_num_seqs": 8, "scheduling_policy": "priority"}
    run = Run([*crowd, urgent], **options)
    index = run.step_of_admission("urgent")
    before, at = run.records[index - 1], run.records[index]
    assert len(before.chunks) == 8, "all seats are taken"
    assert before.start_s < 2.0 <= at.start_s, "it sits down in the first step that begins after it came"
    assert len(at.preempted) == 1
    assert any(chunk.request_id == "urgent" and chunk.samples for chunk in at.chunks)
    victim = run.outcomes[at.preempted[0].request_id]
    assert (victim.num_output_tokens, victim.num_preemptions) == (300, 1), "the victim resumes and completes"
    undisturbed = Run(crowd, **options).outcomes
    assert {name: outcome.num_output_tokens for name, outcome in undisturbed.items()} == dict.fromkeys(undisturbed, 300)


@pytest.mark.parametrize("limit", [0, 3, 32])
def test_others_pass_a_head_that_does_not_fit_at_most_so_often(limit: int) -> None:
    holder = Arrival(id="holder", arrival_s=0.0, prompt_len=800, output_len=400)
    head = Arrival(id="head", arrival_s=0.1, prompt_len=900, output_len=5)
    others = [
        Arrival(id=f"r{index}", arrival_s=0.2 + 0.05 * index, prompt_len=16, output_len=20) for index in range(200)
    ]
    run = Run(
        [holder, head, *others],
        num_kv_blocks=100,
        max_model_len=1600,
        max_num_seqs=16,
        max_times_passed=limit,
    )
    admitted = [request_id for record in run.records for request_id in record.admitted]
    assert admitted.index("holder") == 0
    assert admitted.index("head") == limit + 1
    assert len(run.outcomes) == 202


def test_continuous_batching_has_three_times_the_goodput_of_dynamic_and_static() -> None:
    arrivals = heavy_tailed(400, rate=2.0)
    slo = Slo.parse("ttft:2000,tpot:100")
    goodput = {}
    for mode in ("continuous", "dynamic", "static"):
        run = Run(arrivals, batching=mode, max_num_seqs=32)
        summary = run.summary("ttft:2000,tpot:100")
        assert summary.all.num_completed == 400
        assert summary.all.num_met_slo == sum(map(slo.is_met_by, run.outcomes.values()))
        goodput[mode] = summary.all.goodput or 0.0
    assert goodput["continuous"] >= 3 * max(goodput["dynamic"], goodput["static"])


@pytest.mark.parametrize("policy", ["fcfs", "priority", "sjf", "fair", "deadline"])
def test_everybody_who_runs_gets_tokens_or_a_reason_in_every_step(policy: str) -> None:
    run = Run(
        random_load(300, rate=20.0),
        scheduling_policy=policy,
        num_kv_blocks=250,
        max_num_seqs=16,
        max_model_len=3500,
    )
    seated: set[str] = set()
    for record in run.records:
        seated = (seated | set(record.admitted)) - {entry.request_id for entry in record.preempted}
        named = {chunk.request_id for chunk in record.chunks} | {entry.request_id for entry in record.deferred}
        ended = {request_id for request_id, _ in record.finished}
        assert seated - ended <= named
        assert sum(chunk.end - chunk.start for chunk in record.chunks) <= record.budget
        assert record.blocks_used + record.blocks_free == 250
        seated -= ended
    for earlier, later in pairwise(run.records):
        assert earlier.step + 1 == later.step
        assert earlier.start_s + earlier.duration_s <= later.start_s + 1e-9
