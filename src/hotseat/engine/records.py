"""The last steps and the last ends, kept to be asked about."""

from __future__ import annotations

from collections.abc import Sequence

from hotseat.core.batch import RequestUpdate
from hotseat.core.events import EventSink, StepRecord
from hotseat.core.explain import FinishedRequest, explain_finished
from hotseat.core.request import Request, RequestId

__all__ = ["FinishedRing", "StepRing"]


class StepRing(EventSink):
    """A sink that keeps the records of the last ``capacity`` steps; read from any thread without a lock.

    Slots are replaced one by one by the thread that runs the steps. A reader takes them one by one too and leaves out
    what was overwritten meanwhile.
    """

    def __init__(self, capacity: int) -> None:
        assert capacity > 0, "a ring has at least one slot"
        self._slots: list[StepRecord | None] = [None] * capacity
        self._num_written = 0

    def since(self, step: int, limit: int | None = None) -> list[StepRecord]:
        """Return the kept records of steps after number ``step``, oldest first; with ``limit``, only the newest."""
        end, capacity = self._num_written, len(self._slots)
        records: list[StepRecord] = []
        for index in range(end - 1, max(0, end - capacity) - 1, -1):
            record = self._slots[index % capacity]
            is_older = records and record is not None and record.step >= records[-1].step
            if record is None or is_older or record.step <= step or len(records) == limit:
                break
            records.append(record)
        return records[::-1]

    def on_step(self, record: StepRecord, updates: Sequence[RequestUpdate]) -> None:
        """Keep ``record``."""
        self._slots[self._num_written % len(self._slots)] = record
        self._num_written += 1


class FinishedRing(EventSink):
    """A sink that keeps the histories of the last ``capacity`` requests; asked from any thread without a lock."""

    def __init__(self, capacity: int) -> None:
        assert capacity > 0, "a ring has at least one slot"
        self._capacity = capacity
        self._kept: dict[RequestId, FinishedRequest] = {}  # oldest first

    def get(self, request_id: RequestId) -> FinishedRequest | None:
        """Return the history of a request; ``None`` when it has not ended, or too long ago."""
        return self._kept.get(request_id)

    def ids(self) -> list[RequestId]:
        """Return the ids of all, oldest first."""
        return list(self._kept)  # one operation of the interpreter: the writer cannot come between

    def on_finished(self, request: Request, update: RequestUpdate, now: float) -> None:
        """Keep the history of ``request``."""
        assert update.finish_reason is not None, "a request ends for a reason"
        self._kept.pop(request.id, None)
        self._kept[request.id] = explain_finished(request, update.finish_reason, update.error, now)
        if len(self._kept) > self._capacity:
            del self._kept[next(iter(self._kept))]
