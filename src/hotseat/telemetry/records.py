"""Step records as JSON: one line per step, the same for a run and for its simulation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from hotseat.core.batch import RequestUpdate
from hotseat.core.events import EventSink, StepRecord

__all__ = ["RecordWriter", "TextSink", "record_as_dict"]


class TextSink(Protocol):
    """A destination of lines of text."""

    def write(self, text: str, /) -> object: ...


def record_as_dict(record: StepRecord) -> dict[str, Any]:
    """Return ``record`` in the shape of a record line: plain dicts, lists, strings and numbers."""
    return {
        "step": record.step,
        "start_s": record.start_s,
        "duration_s": record.duration_s,
        "scheduled": [
            {"id": item.request_id, "seat": item.seat, "start": item.start, "end": item.end, "phase": item.phase}
            | ({"drafts": item.num_drafts, "accepted": item.num_accepted} if item.num_drafts else {})
            for item in record.scheduled()
        ],
        "admitted": list(record.admitted),
        "finished": [{"id": request_id, "reason": reason.value} for request_id, reason in record.finished],
        "preempted": [{"id": request_id, "cause": cause} for request_id, cause in record.preempted],
        "deferred": [{"id": request_id, "why": why} for request_id, why in record.deferred],
        "waiting": record.waiting,
        "blocks_used": record.blocks_used,
        "blocks_cached": record.blocks_cached,
        "blocks_free": record.blocks_free,
        "budget": record.budget,
        "schedule_s": record.schedule_s,
    }


class RecordWriter(EventSink):
    """An event sink that writes each step as a line of JSON. The file is closed by its owner."""

    def __init__(self, file: TextSink) -> None:
        self._file = file

    def on_step(self, record: StepRecord, updates: Sequence[RequestUpdate]) -> None:
        self._file.write(json.dumps(record_as_dict(record), separators=(",", ":")) + "\n")
