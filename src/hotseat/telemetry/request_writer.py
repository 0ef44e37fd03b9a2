"""Requests as JSON lines that ``hotseat simulate`` reads: what came when, and what it shared, but not what it said.

Content is named by a keyed hash of each full block and all blocks before it, so equal beginnings have equal ids and
nothing can be read out of them: the key is drawn at the start and kept nowhere.
"""

from __future__ import annotations

import array
import hashlib
import json
import os
from typing import Any

from hotseat.core.batch import RequestUpdate
from hotseat.core.events import EventSink
from hotseat.core.request import FinishReason, Request, RequestId
from hotseat.telemetry.records import TextSink

__all__ = ["RequestWriter"]

ID_BYTES = 6  # of a block's id: exact as a JSON number everywhere
AS_MANY_AS_FIT = 2**31 - 1  # max_tokens of a request that names none


class RequestWriter(EventSink):
    """An event sink that writes a line when a request ends. The file is closed by its owner."""

    def __init__(self, file: TextSink, block_size: int) -> None:
        self._file = file
        self._block_size = block_size
        self._key = os.urandom(16)
        self._added_s: dict[RequestId, float] = {}

    def on_arrived(self, request: Request, now: float) -> None:
        self._added_s[request.id] = now

    def on_finished(self, request: Request, update: RequestUpdate, now: float) -> None:
        line = self._line(request, update, now)
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def _line(self, request: Request, update: RequestUpdate, now: float) -> dict[str, Any]:
        num_output = len(request.output_token_ids)
        asked = request.params.max_tokens
        line: dict[str, Any] = {
            "id": request.id,
            "arrival_s": request.arrived_at,
            "added_s": self._added_s.pop(request.id),
            "prompt_len": len(request.prompt_token_ids),
            "output_len": num_output,
            "max_tokens": AS_MANY_AS_FIT if asked is None else asked,
            "priority": request.priority,
            "tenant": request.tenant,
        }
        if request.deadline_at is not None:
            line["deadline_ms"] = (request.deadline_at - request.arrived_at) * 1000
        if not _ended_by_itself(update):
            # It would have gone on: one token more than it got before it was aborted is enough to say so.
            line["output_len"] = num_output + 1
            line["max_tokens"] = max(line["max_tokens"], num_output + 1)
            if update.finish_reason is not FinishReason.TIMEOUT:
                line["abort_at_s"] = now
        line["prefix_ids"] = self._content_ids(request)
        return line

    def _content_ids(self, request: Request) -> list[int]:
        """Return an id for each full block of prompt and output."""
        tokens, size = request.token_ids(), self._block_size
        digest = request.cache_salt.encode()
        ids = []
        for start in range(0, len(tokens) - size + 1, size):
            block = array.array("q", tokens[start : start + size]).tobytes()
            digest = hashlib.blake2b(digest + block, digest_size=ID_BYTES, key=self._key).digest()
            ids.append(int.from_bytes(digest))
        return ids


def _ended_by_itself(update: RequestUpdate) -> bool:
    """Tell whether the length or a token ended the request, rather than an abort or a time-out."""
    if update.finish_reason is FinishReason.LENGTH:
        return True
    return update.finish_reason is FinishReason.STOP and bool(update.new_token_ids)
