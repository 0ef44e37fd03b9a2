"""State of the server: requests in flight, recently finished ones, and the context of each HTTP request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fastapi import Request

from hotseat.server.auth import ApiKeys, Caller
from hotseat.server.config import ServerConfig
from hotseat.server.errors import ApiError
from hotseat.server.services import ServerServices

__all__ = [
    "InFlightRequest",
    "InFlightRequests",
    "RequestContext",
    "ServerContext",
    "context_of",
    "request_context_of",
    "shutting_down",
]

NUM_RECENT = 256  # answers that can be asked about after their end


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightRequest:
    """An answer that is being generated.

    ``client_id`` is the client's own ``X-Request-Id``, which need not be unique. ``end`` ends it now: with an error,
    or, when there is none, with the finish reason ``abort``.
    """

    client_id: str | None
    account: str  # of the caller that sent it; see ``Caller``
    end: Callable[[ApiError | None], None]


class RecentlyFinished(NamedTuple):
    """An answer that has ended; see ``InFlightRequest``."""

    client_id: str | None
    account: str


class InFlightRequests:
    """The answers in flight, by the id that stands in them; each can be ended from outside."""

    def __init__(self) -> None:
        self.refuses_new = False
        self._in_flight: dict[str, InFlightRequest] = {}
        self._once_empty: Callable[[], None] | None = None
        self._recent: dict[str, RecentlyFinished] = {}  # the last that ended, oldest first

    def __len__(self) -> int:
        return len(self._in_flight)

    def enter(self, answer_id: str, entry: InFlightRequest) -> None:
        """Register an answer.

        Raises:
            ApiError: 503, the server is going down.
        """
        if self.refuses_new:
            raise shutting_down()
        assert answer_id not in self._in_flight, f"two answers have the id {answer_id}"
        self._in_flight[answer_id] = entry

    def leave(self, answer_id: str) -> None:
        """Forget an answer; idempotent."""
        entry = self._in_flight.pop(answer_id, None)
        if entry is not None:
            self._recent[answer_id] = RecentlyFinished(entry.client_id, entry.account)
            if len(self._recent) > NUM_RECENT:
                del self._recent[next(iter(self._recent))]
        self._look_if_empty()

    def refuse_new(self, once_empty: Callable[[], None]) -> None:
        """Take no answers any more, and call ``once_empty`` when the last one has left, which may be now."""
        self.refuses_new, self._once_empty = True, once_empty
        self._look_if_empty()

    def _look_if_empty(self) -> None:
        if not self._in_flight and self._once_empty is not None:
            once_empty, self._once_empty = self._once_empty, None
            once_empty()

    def get(self, answer_id: str) -> InFlightRequest | None:
        """Return the answer with exactly this id."""
        return self._in_flight.get(answer_id)

    def named(self, name: str) -> dict[str, InFlightRequest | RecentlyFinished]:
        """Return the answer with this id, or else those whose clients gave this id; the last that ended come first."""
        known: dict[str, InFlightRequest | RecentlyFinished] = {**self._recent, **self._in_flight}
        if name in known:
            return {name: known[name]}
        return {answer_id: entry for answer_id, entry in known.items() if entry.client_id == name}

    def of_sequence(self, sequence_id: str) -> InFlightRequest | RecentlyFinished | None:
        """Return the answer that a sequence belongs to; its id is the answer's and a suffix, see ``Generator``."""
        name = sequence_id.rpartition(".")[0]
        for answer_id in (name, name.rpartition("-p")[0]):
            found = self._in_flight.get(answer_id) or self._recent.get(answer_id)
            if found is not None:
                return found
        return None

    def items(self) -> list[tuple[str, InFlightRequest]]:
        """Return all answers with their ids, oldest first."""
        return list(self._in_flight.items())

    def end_all(self, error: ApiError) -> int:
        """End every answer with ``error``; returns how many there were."""
        in_flight = list(self._in_flight.values())
        for entry in in_flight:
            entry.end(error)
        return len(in_flight)


def shutting_down() -> ApiError:
    """Return the error for requests that come while the server goes down."""
    return ApiError(503, "The server is shutting down.", retry=True)


@dataclass(slots=True)
class RequestContext:
    """Data about one HTTP request, shared by middleware, endpoint and response."""

    request_id: str
    has_own_id: bool  # whether the client sent the id
    caller: Caller = field(default_factory=Caller)
    summary: str = ""  # for the line in the access log
    field_names: Mapping[str, str] = field(default_factory=dict)  # the client's for fields of chats; see ``speak_of``


@dataclass(slots=True)
class ServerContext:
    """The objects that endpoints share."""

    services: ServerServices
    config: ServerConfig
    api_keys: ApiKeys
    in_flight: InFlightRequests = field(default_factory=InFlightRequests)


def context_of(request: Request) -> ServerContext:
    """Return the context of the application that serves ``request``."""
    context = request.app.state.context
    assert isinstance(context, ServerContext), "create_app sets the context"
    return context


def request_context_of(request: Request) -> RequestContext:
    """Return the request context of ``request``."""
    request_context = request.scope["hotseat.request_context"]
    assert isinstance(request_context, RequestContext), "the middleware makes one for each request"
    return request_context
