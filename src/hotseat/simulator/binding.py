"""The resource that keeps a simulated machine from a target."""

from __future__ import annotations

import math

from hotseat.simulator.summary import Slo, Spread, Summary

__all__ = ["binding_resource"]

NEARLY_ALL = 0.95


def binding_resource(summary: Summary, alone: Summary, slo: Slo) -> str:
    """Say in words what binds in ``summary``; ``alone`` is a run of one request and nothing else."""
    group = alone.all
    parts = (("first token", group.ttft_ms, slo.ttft_s), ("token", group.tpot_ms, slo.tpot_s))
    for name, spread, bound in parts:
        if spread is not None and spread.p50 > 1000 * bound:
            return f"the speed of one step: alone, a {name} takes {_ms(spread)}, more than {1000 * bound:g} ms"
    if summary.preemptions.get("blocks") or "blocks" in summary.preemptions:
        return f"KV blocks: {sum(summary.preemptions.values())} preemptions because they ran out (num_kv_blocks)"
    if summary.busy_share >= NEARLY_ALL:
        seats = f"{100 * summary.seat_use:.0f} % of the seats taken"
        return f"computing: steps take {100 * summary.busy_share:.0f} % of the time, with {seats}"
    if summary.seat_use >= NEARLY_ALL:
        return f"seats: {100 * summary.seat_use:.0f} % are taken (max_num_seqs)"
    if summary.budget_use >= NEARLY_ALL:
        return f"the token budget: {100 * summary.budget_use:.0f} % of it is used (max_num_batched_tokens)"
    return (
        f"bursts: the machine computes {100 * summary.busy_share:.0f} % of the time, but requests that come together "
        "wait for each other"
    )


def _ms(spread: Spread) -> str:
    return f"{spread.p50:.0f} ms" if spread.p50 < math.inf else "for ever"
