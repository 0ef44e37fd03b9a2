"""The loop in virtual time: what comes when, what ends how, and that the books of the observer agree with it."""

from __future__ import annotations

import pytest

from hotseat.core.request import FinishReason
from hotseat.simulator import Arrival, StepCost
from simulator.worlds import Run, heavy_tailed

ONE_SECOND = StepCost(base_s=1.0, per_token_s=0.0, per_context_token_s=0.0)


def test_a_lone_request_takes_one_step_a_token() -> None:
    run = Run([Arrival(id="r", arrival_s=2.5, prompt_len=10, output_len=4)], ONE_SECOND)
    outcome = run.outcomes["r"]
    assert (outcome.arrived_at, outcome.first_token_at, outcome.finished_at) == (2.5, 3.5, 6.5)
    assert (outcome.ttft_s, outcome.tpot_s, outcome.e2e_s) == (1.0, 1.0, 4.0)
    assert (outcome.num_output_tokens, outcome.reason) == (4, FinishReason.LENGTH)


def test_who_arrives_during_a_step_is_in_the_next_one() -> None:
    arrivals = [
        Arrival(id="a", arrival_s=0.0, prompt_len=10, output_len=5),
        Arrival(id="b", arrival_s=1.5, prompt_len=10, output_len=1),
    ]
    run = Run(arrivals, ONE_SECOND)
    assert run.outcomes["b"].admitted_at == 2.0
    assert run.outcomes["b"].first_token_at == 3.0


def test_time_jumps_over_idle_spans() -> None:
    arrivals = [Arrival(id=f"r{at}", arrival_s=at, prompt_len=1, output_len=1) for at in (0.0, 1e6)]
    run = Run(arrivals, ONE_SECOND)
    assert run.outcomes["r1000000.0"].finished_at == 1e6 + 1
    assert run.observer.num_steps == 2


def test_an_abort_wins_over_the_step_that_is_being_computed() -> None:
    run = Run([Arrival(id="r", arrival_s=0.0, prompt_len=10, output_len=9, abort_at_s=2.5)], ONE_SECOND)
    outcome = run.outcomes["r"]
    assert (outcome.reason, outcome.num_output_tokens) == (FinishReason.ABORT, 2)
    assert run.records[-1].blocks_used == 0


def test_those_that_are_aborted_at_one_instant_end_by_their_rank() -> None:
    ranks = {"a": 2, "b": 0, "c": 1}
    arrivals = [
        Arrival(id=id_, arrival_s=0.0, prompt_len=10, output_len=9, abort_at_s=2.5, abort_rank=rank)
        for id_, rank in ranks.items()
    ]
    ends = [request_id for record in Run(arrivals, ONE_SECOND).records for request_id, _ in record.finished]
    assert ends == ["b", "c", "a"]


def test_a_waiting_request_can_be_aborted_and_a_finished_one_cannot() -> None:
    arrivals = [
        Arrival(id="runs", arrival_s=0.0, prompt_len=10, output_len=5, abort_at_s=5.5),
        Arrival(id="waits", arrival_s=0.0, prompt_len=10, output_len=5, abort_at_s=1.0),
    ]
    run = Run(arrivals, ONE_SECOND, max_num_seqs=1)
    assert run.outcomes["waits"].reason is FinishReason.ABORT
    assert run.outcomes["waits"].admitted_at is None
    assert run.outcomes["runs"].reason is FinishReason.LENGTH


def test_what_can_never_fit_is_refused_and_the_others_go_on() -> None:
    lengths = {"ok": 100, "longer than a sequence": 1000, "longer than the cache": 700, "ok too": 10}
    arrivals = [Arrival(id=name, arrival_s=0.0, prompt_len=n, output_len=2) for name, n in lengths.items()]
    run = Run(arrivals, ONE_SECOND, max_model_len=800, num_kv_blocks=40)
    assert set(run.outcomes) == {"ok", "ok too"}
    assert {refusal.id: refusal.kind for refusal in run.observer.refusals} == {
        "longer than a sequence": "too long",
        "longer than the cache": "too long",
    }
    summary = run.summary("ttft:100000")
    assert summary.refused == {"too long": 2}
    assert "1000 tokens" in summary.refusals[0]["error"]
    assert summary.all.slo_attainment == 0.5


def test_a_full_queue_refuses_and_the_clock_goes_on() -> None:
    arrivals = [Arrival(id=f"r{index}", arrival_s=0.0, prompt_len=10, output_len=3) for index in range(5)]
    run = Run(arrivals, ONE_SECOND, max_num_seqs=1, max_num_queued_reqs=2)
    assert run.summary().refused == {"queue full": 2}
    assert run.summary().all.num_completed == 3


def test_a_request_that_outgrows_the_longest_sequence_is_cut_and_counted() -> None:
    run = Run([Arrival(id="r", arrival_s=0.0, prompt_len=10, output_len=100)], ONE_SECOND, max_model_len=32)
    assert run.outcomes["r"].num_output_tokens == 22
    assert run.summary().all.num_cut == 1


def test_a_request_that_asks_for_more_than_it_says_ends_by_itself() -> None:
    run = Run([Arrival(id="r", arrival_s=0.0, prompt_len=10, output_len=7, max_tokens=500)], ONE_SECOND)
    outcome = run.outcomes["r"]
    assert (outcome.reason, outcome.num_output_tokens, outcome.is_cut) == (FinishReason.STOP, 7, False)


def test_a_request_may_ask_for_no_token_at_all() -> None:
    run = Run([Arrival(id="r", arrival_s=0.0, prompt_len=10, output_len=0)], ONE_SECOND)
    outcome = run.outcomes["r"]
    assert (outcome.num_output_tokens, outcome.ttft_s, outcome.tpot_s) == (0, 1.0, None)


def test_a_shared_prefix_is_hit_block_by_block() -> None:
    arrivals = [
        Arrival(id="first", arrival_s=0.0, prompt_len=100, output_len=1, content_ids=(1, 2, 3)),
        Arrival(id="second", arrival_s=5.0, prompt_len=100, output_len=1, content_ids=(1, 2, 4)),
        Arrival(id="other", arrival_s=6.0, prompt_len=100, output_len=1, content_ids=(2, 1)),
    ]
    run = Run(arrivals, ONE_SECOND)
    cached = {name: outcome.num_cached_tokens for name, outcome in run.outcomes.items()}
    assert cached == {"first": 0, "second": 32, "other": 0}


def test_a_content_id_of_512_tokens_is_32_blocks_of_16() -> None:
    shared = {"prompt_len": 1030, "output_len": 1, "content_ids": (5, 6, 7), "content_block": 512}
    arrivals = [Arrival(id=f"r{at}", arrival_s=at, content_is_prompt=True, **shared) for at in (0.0, 9.0)]
    assert Run(arrivals, ONE_SECOND).outcomes["r9.0"].num_cached_tokens == 1024


def test_the_next_turn_of_a_chat_hits_the_answer_too() -> None:
    arrivals = [
        Arrival(id="turn 1", arrival_s=0.0, prompt_len=20, output_len=30, content_ids=(1, 2, 3)),
        Arrival(id="turn 2", arrival_s=90.0, prompt_len=70, output_len=5, content_ids=(1, 2, 3, 4)),
    ]
    assert Run(arrivals, ONE_SECOND).outcomes["turn 2"].num_cached_tokens == 48


def test_dynamic_batching_waits_for_its_delay_and_static_for_a_full_batch() -> None:
    arrivals = [Arrival(id=f"r{at}", arrival_s=at, prompt_len=10, output_len=2) for at in (0.0, 1.0, 7.0)]
    dynamic = Run(arrivals, ONE_SECOND, batching="dynamic", max_delay_ms=3000, batch_size=2)
    assert [dynamic.outcomes[f"r{at}"].admitted_at for at in (0.0, 1.0, 7.0)] == [1.0, 1.0, 10.0]
    static = Run(arrivals, ONE_SECOND, batching="static", batch_size=2)
    # Nobody comes after the third, so its batch of one starts then.
    assert [static.outcomes[f"r{at}"].admitted_at for at in (0.0, 1.0, 7.0)] == [1.0, 1.0, 7.0]


def test_a_waiting_batch_is_given_up_when_its_clients_are() -> None:
    arrivals = [
        Arrival(id="impatient", arrival_s=0.0, prompt_len=10, output_len=2, abort_at_s=4.0),
        Arrival(id="late", arrival_s=50.0, prompt_len=10, output_len=2),
    ]
    run = Run(arrivals, ONE_SECOND, batching="static", batch_size=2)
    assert run.outcomes["impatient"].finished_at == 4.0
    assert run.outcomes["late"].finished_at == 52.0


def test_a_queue_timeout_ends_who_waits_too_long() -> None:
    arrivals = [
        Arrival(id="runs", arrival_s=0.0, prompt_len=10, output_len=20),
        Arrival(id="waits", arrival_s=0.0, prompt_len=10, output_len=20),
    ]
    run = Run(arrivals, ONE_SECOND, max_num_seqs=1, queue_timeout_s=5.0)
    assert run.outcomes["waits"].reason is FinishReason.TIMEOUT
    assert run.summary("ttft:1000").all.num_timed_out == 1


def test_a_run_is_the_same_every_time() -> None:
    arrivals = heavy_tailed(60, rate=4.0)
    first, second = (Run(arrivals, num_kv_blocks=600, max_num_seqs=16) for _ in range(2))
    assert first.records == second.records
    assert first.observer.outcomes == second.observer.outcomes


@pytest.mark.parametrize("aborts", [False, True])
def test_gaps_between_tokens_are_counted_over_preemptions_and_aborts(aborts: bool) -> None:
    """Each token after the first closes one gap, and a request's gaps add up to the time from its first to its last."""
    arrivals = [
        Arrival(
            id=f"r{index}",
            arrival_s=0.03 * index,
            prompt_len=30,
            output_len=40,
            abort_at_s=0.03 * index + 0.5 if aborts and index % 3 == 0 else None,
        )
        for index in range(30)
    ]
    run = Run(arrivals, max_model_len=80, num_kv_blocks=16, max_num_seqs=8, watermark=0.0)
    outcomes = run.outcomes.values()
    assert run.summary().all.num_preemptions > 5
    assert any(outcome.reason is FinishReason.ABORT for outcome in outcomes) is aborts
    num_gaps = sum(count for _, count in run.observer.gaps)
    assert num_gaps == sum(max(0, outcome.num_output_tokens - 1) for outcome in outcomes)
    if not aborts:
        total = sum(seconds * count for seconds, count in run.observer.gaps)
        spans = [outcome.finished_at - (outcome.first_token_at or 0.0) for outcome in outcomes]
        assert total == pytest.approx(sum(spans))
        assert max(seconds for seconds, _ in run.observer.gaps) > 10 * min(seconds for seconds, _ in run.observer.gaps)
