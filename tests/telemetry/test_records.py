"""Step records as JSON, and the log line of a request's end."""

from __future__ import annotations

import io
import json
import logging

import pytest

from engine.fakes import FakeRunner, make_request, make_scheduler
from hotseat.core.batch import Chunk, Deferral, Preemption
from hotseat.core.events import StepRecord
from hotseat.core.request import FinishReason, RequestId
from hotseat.engine import StepLoop, StepRing, VirtualClock
from hotseat.errors import PromptTooLongError
from hotseat.telemetry import RecordWriter, RequestLog, record_as_dict


def record(step: int) -> StepRecord:
    return StepRecord(
        step=step,
        start_s=1.5,
        duration_s=0.25,
        chunks=[
            Chunk(0, RequestId("a"), 7, 8, samples=True),
            Chunk(3, RequestId("b"), 0, 100, samples=False),
        ],
        num_decodes=1,
        prefill_totals=[300],
        admitted=[RequestId("b")],
        finished=[(RequestId("a"), FinishReason.STOP)],
        preempted=[Preemption(RequestId("c"), "blocks: a needed 1, 0 free")],
        deferred=[Deferral(RequestId("d"), "prefix of b")],
        waiting=2,
        blocks_used=9,
        blocks_cached=3,
        blocks_free=7,
        budget=512,
    )


def test_record_has_the_published_shape() -> None:
    assert json.loads(json.dumps(record_as_dict(record(4)))) == {
        "step": 4,
        "start_s": 1.5,
        "duration_s": 0.25,
        "scheduled": [
            {"id": "a", "seat": 0, "start": 7, "end": 8, "phase": "decode"},
            {"id": "b", "seat": 3, "start": 0, "end": 100, "phase": "prefill"},
        ],
        "admitted": ["b"],
        "finished": [{"id": "a", "reason": "stop"}],
        "preempted": [{"id": "c", "cause": "blocks: a needed 1, 0 free"}],
        "deferred": [{"id": "d", "why": "prefix of b"}],
        "waiting": 2,
        "blocks_used": 9,
        "blocks_cached": 3,
        "blocks_free": 7,
        "budget": 512,
        "schedule_s": 0.0,
    }


def test_writer_writes_a_line_per_step() -> None:
    file = io.StringIO()
    loop = StepLoop(make_scheduler(), FakeRunner(), clock=VirtualClock(), sinks=[RecordWriter(file)])
    for _ in loop.run([make_request("a", 5, max_tokens=3), make_request("b", 6, max_tokens=2)]):
        pass
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [line["step"] for line in lines] == list(range(len(lines)))
    assert [end for line in lines for end in line["finished"]] == [
        {"id": "b", "reason": "length"},
        {"id": "a", "reason": "length"},
    ]
    assert lines[-1]["blocks_used"] == 0


def test_ring_keeps_the_last_steps_and_answers_since() -> None:
    ring = StepRing(4)
    assert ring.since(-1) == []
    for step in range(10):
        ring.on_step(record(step), [])
    assert [item.step for item in ring.since(-1)] == [6, 7, 8, 9]
    assert [item.step for item in ring.since(7)] == [8, 9]
    assert [item.step for item in ring.since(-1, limit=1)] == [9]
    assert ring.since(9) == ring.since(50) == []


def test_each_end_leaves_one_line_with_reason_and_times(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock(10.0)
    loop = StepLoop(make_scheduler(), FakeRunner(), clock=clock, sinks=[RequestLog()])
    done, left, waiting = (make_request(name, 5, max_tokens=2) for name in ("done", "left", "waiting"))
    for request in (done, left, waiting):
        request.arrived_at = 9.0
    with caplog.at_level(logging.INFO, logger="hotseat.requests"):
        loop.add(waiting)
        loop.abort(waiting.id)
        loop.add(left)
        loop.add(done)
        loop.step()
        loop.abort(left.id)
        clock.advance(0.5)
        while loop.has_work:
            loop.step()
        with pytest.raises(PromptTooLongError):
            loop.add(make_request("long", 5000))
    lines = [entry.getMessage() for entry in caplog.records if entry.name == "hotseat.requests"]
    assert lines[:3] == [
        "waiting ended: abort; prompt 5 (0 cached), output 0, queued never, first token never, total 1.000 s",
        "left ended: abort; prompt 5 (0 cached), output 1, queued 1.000 s, first token 1.000 s, total 1.000 s",
        "done ended: length; prompt 5 (0 cached), output 2, queued 1.000 s, first token 1.000 s, total 1.500 s",
    ]
    assert lines[3].startswith("long refused: ")
    assert len(lines) == 4
