"""One line in the log for the end of each request, so that a hang and a cancel do not look alike."""

from __future__ import annotations

import logging

from hotseat.core.batch import RequestUpdate
from hotseat.core.events import EventSink
from hotseat.core.request import Request

__all__ = ["RequestLog"]

logger = logging.getLogger("hotseat.requests")


class RequestLog(EventSink):
    """An event sink that logs ends and refusals at INFO to ``hotseat.requests``."""

    def on_rejected(self, request: Request, error: Exception, now: float) -> None:
        logger.info("%s refused: %s", request.id, error)

    def on_finished(self, request: Request, update: RequestUpdate, now: float) -> None:
        assert update.finish_reason is not None, "a request ends for a reason"
        logger.info(
            "%s ended: %s%s; prompt %d (%d cached), output %d, queued %s, first token %s, total %s%s",
            request.id,
            update.finish_reason.value,
            f" ({update.error})" if update.error else "",
            len(request.prompt_token_ids),
            request.num_cached_tokens,
            len(request.output_token_ids),
            _since(request.arrived_at, request.admitted_at),
            _since(request.arrived_at, request.first_token_at),
            _since(request.arrived_at, now),
            f", preempted {request.num_preemptions} times" if request.num_preemptions else "",
        )


def _since(start: float, instant: float | None) -> str:
    return "never" if instant is None else f"{instant - start:.3f} s"
