"""What the server knows of the requests that it is answering."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fastapi import Request

from hotseat.server.auth import ApiKeys, Caller
from hotseat.server.config import ServerConfig
from hotseat.server.errors import ApiError
from hotseat.server.services import ServerServices

__all__ = ["Flight", "Flights", "RequestNote", "ServerContext", "context_of", "note_of", "shutting_down"]

NUM_LANDED = 256  # answers that can be asked about after their end


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """An answer that is being generated.

    ``request_ids`` are what its generations are called, one for each prompt; ``client_id`` is the client's own
    ``X-Request-Id``, which need not be unique. ``end`` ends it now: with an error, or, when there is none, with the
    finish reason ``abort``.
    """

    request_ids: Sequence[str]
    client_id: str | None
    account: str  # whose it is; see ``Caller``
    end: Callable[[ApiError | None], None]


class Landed(NamedTuple):
    """What is remembered of an answer that has ended; see ``Flight``."""

    request_ids: Sequence[str]
    client_id: str | None
    account: str


class Flights:
    """The answers under way, by the id that stands in them; each can be ended from outside."""

    def __init__(self) -> None:
        self.refuses_new = False
        self._flights: dict[str, Flight] = {}
        self._once_empty: Callable[[], None] | None = None
        self._landed: dict[str, Landed] = {}  # the last that ended, oldest first

    def __len__(self) -> int:
        return len(self._flights)

    def enter(self, answer_id: str, flight: Flight) -> None:
        """Register an answer.

        Raises:
            ApiError: 503, the server is going down.
        """
        if self.refuses_new:
            raise shutting_down()
        assert answer_id not in self._flights, f"two answers have the id {answer_id}"
        self._flights[answer_id] = flight

    def leave(self, answer_id: str) -> None:
        """Forget an answer; idempotent."""
        flight = self._flights.pop(answer_id, None)
        if flight is not None:
            self._landed[answer_id] = Landed(flight.request_ids, flight.client_id, flight.account)
            if len(self._landed) > NUM_LANDED:
                del self._landed[next(iter(self._landed))]
        self._look_if_empty()

    def refuse_new(self, once_empty: Callable[[], None]) -> None:
        """Take no answers any more, and call ``once_empty`` when the last one has left, which may be now."""
        self.refuses_new, self._once_empty = True, once_empty
        self._look_if_empty()

    def _look_if_empty(self) -> None:
        if not self._flights and self._once_empty is not None:
            once_empty, self._once_empty = self._once_empty, None
            once_empty()

    def ids(self) -> list[str]:
        """Return the ids of all answers, oldest first."""
        return list(self._flights)

    def get(self, answer_id: str) -> Flight | None:
        """Return the answer with exactly this id."""
        return self._flights.get(answer_id)

    def named(self, name: str) -> list[Flight | Landed]:
        """Return the answer with this id, or else those whose clients gave this id; the last that ended come first."""
        known: dict[str, Flight | Landed] = {**self._landed, **self._flights}
        return [known[name]] if name in known else [flight for flight in known.values() if flight.client_id == name]

    def of_sequence(self, sequence_id: str) -> Flight | Landed | None:
        """Return the answer that a sequence belongs to; its id begins with one of the answer's ``request_ids``."""
        request_id = sequence_id.partition(".")[0]
        for known in (self._flights, self._landed):
            for flight in known.values():
                if request_id in flight.request_ids:
                    return flight
        return None

    def items(self) -> list[tuple[str, Flight]]:
        """Return all answers with their ids, oldest first."""
        return list(self._flights.items())

    def end_all(self, error: ApiError) -> int:
        """End every answer with ``error``; returns how many there were."""
        flights = list(self._flights.values())
        for flight in flights:
            flight.end(error)
        return len(flights)


def shutting_down() -> ApiError:
    """Return what clients are told while the server goes down."""
    return ApiError(503, "The server is shutting down.", retry=True)


@dataclass(slots=True)
class RequestNote:
    """What the layers tell each other about one HTTP request."""

    request_id: str
    has_own_id: bool  # whether the client sent the id
    caller: Caller = field(default_factory=Caller)
    summary: str = ""  # for the line in the access log


@dataclass(slots=True)
class ServerContext:
    """All that an endpoint may need."""

    services: ServerServices
    config: ServerConfig
    api_keys: ApiKeys
    flights: Flights = field(default_factory=Flights)


def context_of(request: Request) -> ServerContext:
    """Return the context of the application that serves ``request``."""
    context = request.app.state.context
    assert isinstance(context, ServerContext), "create_app sets the context"
    return context


def note_of(request: Request) -> RequestNote:
    """Return the note of ``request``."""
    note = request.scope["hotseat.note"]
    assert isinstance(note, RequestNote), "the gate writes a note for each request"
    return note
