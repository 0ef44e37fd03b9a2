"""Endpoints to look into the engine and to step in: steps, explanations, aborts, the prefix cache."""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from secrets import token_bytes
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from hotseat.core.events import StepRecord
from hotseat.core.request import RequestId
from hotseat.server.auth import Caller
from hotseat.server.body import read_json
from hotseat.server.errors import ApiError
from hotseat.server.schema import AbortRequest
from hotseat.server.services import ServerServices
from hotseat.server.state import Flight, Landed, ServerContext, context_of, note_of
from hotseat.telemetry import record_as_dict

__all__ = ["router"]

MAX_STEPS = 4096
_PSEUDONYM_KEY = token_bytes(32)

router = APIRouter()


@router.get("/v1/steps", tags=["Observe"])
async def steps(request: Request, since: int = -1, limit: Annotated[int, Query(ge=1, le=MAX_STEPS)] = 256) -> Response:
    """Return the records of steps after number ``since``, oldest first, the newest ``limit`` at most.

    ``next`` is what to send as ``since`` the next time; ``stats`` are the numbers of this moment.
    """
    context = context_of(request)
    caller = note_of(request).caller
    records = context.services.engine.step_records(since, limit)
    body = {
        "next": records[-1].step if records else since,
        "steps": [_visible(_record(record), context, caller) for record in records],
        "stats": _stats(context),
    }
    return Response(msgspec.json.encode(body), media_type="application/json")


@router.get("/v1/requests", tags=["Observe"])
async def requests(request: Request) -> Response:
    """List the answers under way, oldest first, each with what it runs on or waits for."""
    context = context_of(request)
    data = [
        {"id": id_, "client_request_id": flight.client_id, "sequences": await _sequences(context.services, flight)}
        for id_, flight in context.flights.items()
        if note_of(request).caller.may_see(flight.account)
    ]
    return Response(msgspec.json.encode({"object": "list", "data": data}), media_type="application/json")


@router.get("/v1/requests/{request_id:path}/explain", tags=["Observe"])
async def explain(request: Request, request_id: str) -> Response:
    """Say where a request is and what it waits for, or what became of one of the last that ended.

    ``request_id`` is an answer's id or the client's ``X-Request-Id``, which may stand for several sequences, or one
    sequence's id from a step record.
    """
    context, caller = context_of(request), note_of(request).caller
    services = context.services
    flights = [flight for flight in context.flights.named(request_id) if caller.may_see(flight.account)]
    explanations = [one for flight in flights for one in await _sequences(services, flight)]
    if not explanations and _may_see_sequence(context, caller, request_id):
        own_id = RequestId(request_id)
        single = services.engine.finished(own_id) or await services.engine.explain(own_id)
        explanations = [] if single is None else [single]
    if not explanations:
        message = f"No request with the id `{request_id[:200]}` is waiting or running, or among the last that ended."
        raise ApiError(404, message, "request_id")
    client_id = flights[0].client_id if flights else None
    body = {"request_id": request_id, "client_request_id": client_id, "sequences": explanations}
    return Response(msgspec.json.encode(body), media_type="application/json")


@router.post("/abort_requests", tags=["Observe"])
async def abort_requests(request: Request) -> Response:
    """End requests by their ids, which must match exactly; their clients get the finish reason ``abort``.

    Requests of other API keys are not found, but by an admin key.
    """
    context, caller = context_of(request), note_of(request).caller
    body = await read_json(request, AbortRequest, context.config.max_request_bytes)
    were_found = await asyncio.gather(*(_abort(context, caller, request_id) for request_id in body.request_ids))
    found = dict(zip(body.request_ids, were_found, strict=True))
    return JSONResponse({"aborted": [i for i in found if found[i]], "not_found": [i for i in found if not found[i]]})


@router.post("/reset_prefix_cache", tags=["Observe"])
async def reset_prefix_cache(request: Request) -> Response:
    """Forget all cached blocks; refused while some are in use. Needs an admin key where there are keys."""
    _require_admin(request)
    was_reset = await context_of(request).services.engine.reset_prefix_cache()
    if not was_reset:
        raise ApiError(409, "Blocks are in use by running requests; nothing was reset.", retry=True)
    return JSONResponse({"reset": True})


async def _sequences(services: ServerServices, flight: Flight | Landed) -> list[Any]:
    return [one for own_id in flight.request_ids for one in await services.generator.explain(own_id)]


def _require_admin(request: Request) -> None:
    if not note_of(request).caller.is_admin:
        raise ApiError(403, "Only an admin may do this: send a key that was given as --admin-api-key.")


def _may_see_sequence(context: ServerContext, caller: Caller, sequence_id: str) -> bool:
    if caller.is_admin:
        return True
    flight = context.flights.of_sequence(sequence_id)
    return flight is not None and caller.may_see(flight.account)


def _visible(record: dict[str, Any], context: ServerContext, caller: Caller) -> dict[str, Any]:
    """Return a record line in which other callers' sequences have names that nothing else knows."""
    if caller.is_admin:
        return record

    def shown(sequence_id: str) -> str:
        return sequence_id if _may_see_sequence(context, caller, sequence_id) else _pseudonym(sequence_id)

    changed: dict[str, Any] = {"admitted": [shown(sequence_id) for sequence_id in record["admitted"]]}
    for key in ("scheduled", "finished", "preempted", "deferred"):
        changed[key] = [item | {"id": shown(item["id"])} for item in record[key]]
    for item in changed["deferred"] + changed["preempted"]:
        for reason in {"why", "cause"} & item.keys():  # may name the sequence that it waits for
            item[reason] = item[reason].partition(":")[0]
    return record | changed


def _pseudonym(sequence_id: str) -> str:
    """Return a name that stays the same while the process lives, so that others can be told apart."""
    return "other-" + blake2b(sequence_id.encode(), key=_PSEUDONYM_KEY, digest_size=6).hexdigest()


async def _abort(context: ServerContext, caller: Caller, request_id: str) -> bool:
    flight = context.flights.get(request_id)
    if flight is not None:
        if caller.may_see(flight.account):
            flight.end(None)
        return caller.may_see(flight.account)
    if not _may_see_sequence(context, caller, request_id):
        return False
    engine = context.services.engine
    is_known = await engine.explain(RequestId(request_id)) is not None
    if is_known:
        engine.abort(RequestId(request_id))
    return is_known


def _record(record: StepRecord) -> dict[str, Any]:
    """Return a record line, and with each chunk how many tokens are known of its request."""
    shaped = record_as_dict(record)
    for entry, chunk in zip(shaped["scheduled"], record.scheduled(), strict=True):
        entry["total"] = chunk.total
    return shaped


def _stats(context: ServerContext) -> dict[str, Any]:
    stats = context.services.engine.stats()
    health = context.services.engine.health()
    return {
        "model": context.services.model.served_names[0],
        "max_model_len": context.services.model.max_model_len,
        "max_num_seqs": context.services.max_num_seqs,
        "num_running": stats.num_running,
        "num_waiting": stats.num_waiting,
        "alive": health.alive,
        "reason": health.reason,
        "now_s": context.services.engine.clock.now(),
    }
