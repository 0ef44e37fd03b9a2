"""Requests as lines that the simulator reads."""

from __future__ import annotations

import io
import json
from typing import Any

from engine.fakes import FakeRunner, make_request, make_scheduler, token_at
from hotseat.core.request import FinishReason, Request, RequestId
from hotseat.engine import StepLoop, VirtualClock
from hotseat.telemetry import RequestWriter


def lines_of(
    *requests: Request, ends: dict[str, FinishReason] | None = None, **options: object
) -> dict[str, dict[str, Any]]:
    """Run ``requests``, end some after the first step, and return the lines by id."""
    file = io.StringIO()
    clock = VirtualClock(2.0)
    loop = StepLoop(make_scheduler(**options), FakeRunner(), clock=clock, sinks=[RequestWriter(file, 16)])
    for request in requests:
        loop.add(request)
    loop.step()
    clock.advance(1.5)
    for request_id, reason in (ends or {}).items():
        assert loop.finish(RequestId(request_id), reason)
    while loop.has_work:
        loop.step()
    return {line["id"]: line for line in map(json.loads, file.getvalue().splitlines())}


def test_a_line_says_when_it_came_and_how_long_it_was() -> None:
    request = make_request("a", 40, max_tokens=8)
    request.priority, request.tenant, request.deadline_at = 3, "acme", 0.25
    line = lines_of(request)["a"]
    assert line.pop("prefix_ids")
    assert line == {
        "id": "a",
        "arrival_s": 0.0,
        "added_s": 2.0,
        "prompt_len": 40,
        "output_len": 8,
        "max_tokens": 8,
        "priority": 3,
        "tenant": "acme",
        "deadline_ms": 250.0,
    }


def test_equal_beginnings_have_equal_ids_and_nothing_else_does() -> None:
    shared = list(range(500, 540))
    lines = lines_of(
        make_request("a", [*shared, 1, 2, 3], max_tokens=1),
        make_request("b", [*shared, 4, 5, 6], max_tokens=1),
        make_request("c", [9, *shared], max_tokens=1),
        make_request("d", shared[16:32] + shared[:16], max_tokens=1),
    )
    ids = {name: line["prefix_ids"] for name, line in lines.items()}
    assert ids["a"] == ids["b"]
    assert len(ids["a"]) == 2
    assert len({*ids["a"], *ids["c"], *ids["d"]}) == 6


def test_a_salt_makes_other_ids() -> None:
    request = make_request("b", range(500, 540), max_tokens=1)
    request.cache_salt = "salt"
    lines = lines_of(make_request("a", range(500, 540), max_tokens=1), request)
    assert set(lines["a"]["prefix_ids"]).isdisjoint(lines["b"]["prefix_ids"])


def test_ids_go_on_over_the_answer() -> None:
    answer = [token_at(position) for position in range(20, 40)]
    lines = lines_of(make_request("a", range(500, 520), max_tokens=20))
    lines |= lines_of(make_request("b", [*range(500, 520), *answer], max_tokens=1))
    assert len(lines["a"]["prefix_ids"]) == len(lines["b"]["prefix_ids"]) == 2


def test_ids_of_two_recordings_have_nothing_in_common() -> None:
    first, second = (lines_of(make_request("a", 40))["a"]["prefix_ids"] for _ in range(2))
    assert set(first).isdisjoint(second)


def test_who_was_ended_from_outside_would_have_gone_on() -> None:
    requests = [make_request(name, 20, max_tokens=50) for name in ("left", "stopped", "stayed")]
    lines = lines_of(*requests, ends={"left": FinishReason.ABORT, "stopped": FinishReason.STOP})
    for name in ("left", "stopped"):
        assert (lines[name]["abort_at_s"], lines[name]["output_len"], lines[name]["max_tokens"]) == (3.5, 2, 50)
    assert "abort_at_s" not in lines["stayed"]


def test_who_asks_for_as_much_as_fits_says_so() -> None:
    line = lines_of(make_request("a", 20, max_tokens=None), max_model_len=32)["a"]
    assert (line["output_len"], line["max_tokens"]) == (12, 2**31 - 1)
