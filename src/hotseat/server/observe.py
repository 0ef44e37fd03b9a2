"""Endpoints that show and change the engine's state: steps, explanations, aborts, the prefix cache."""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from secrets import token_bytes
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from hotseat.core.events import StepRecord
from hotseat.core.request import RequestId
from hotseat.server.auth import Caller
from hotseat.server.body import check_content_type, read_json
from hotseat.server.errors import ApiError
from hotseat.server.schema import AbortRequest
from hotseat.server.state import ServerContext, context_of, request_context_of
from hotseat.server.version import hotseat_version
from hotseat.telemetry import record_as_dict

__all__ = ["router"]

MAX_STEPS = 4096
ABORTS_AT_ONCE = 256
MIN_SEARCHED = 128  # answers asked at a time for those in a status
_PSEUDONYM_KEY = token_bytes(32)

router = APIRouter()


@router.get("/v1/steps", tags=["Observe"])
async def steps(request: Request, since: int = -1, limit: Annotated[int, Query(ge=1, le=MAX_STEPS)] = 256) -> Response:
    """Return the records of steps after number ``since``, oldest first, the newest ``limit`` at most.

    ``next`` is what to send as ``since`` the next time; ``stats`` are the numbers of this moment.
    """
    context = context_of(request)
    caller = request_context_of(request).caller
    records = context.services.engine.step_records(since, limit)
    body = {
        "next": records[-1].step if records else since,
        "steps": [_visible(_record(record), context, caller) for record in records],
        "stats": _stats(context),
    }
    return Response(msgspec.json.encode(body), media_type="application/json")


@router.get("/v1/requests", tags=["Observe"])
async def requests(
    request: Request,
    after: str = "",
    limit: Annotated[int, Query(ge=1, le=1024)] = 256,
    status: Literal["waiting", "running"] | None = None,
) -> Response:
    """List the answers in flight, oldest first, each with the state of its sequences.

    Answers that began after the one with the id ``after``, ``limit`` at most, with ``status`` those with a sequence in
    that status; where there may be more, ``next`` is what to send as ``after`` the next time.
    """
    context, caller = context_of(request), request_context_of(request).caller
    entries = [(id_, entry) for id_, entry in context.in_flight.items() if caller.may_see(entry.account)]
    begin = next((at + 1 for at, (id_, _) in enumerate(entries) if id_ == after), 0)
    data: list[dict[str, Any]] = []
    size = limit if status is None else max(limit, MIN_SEARCHED)
    while begin < len(entries) and len(data) < limit:
        page = entries[begin : begin + size]
        states = [await context.services.generator.explain(id_) for id_, _ in page]
        await asyncio.sleep(0)  # an answer may come without a pause: let others in between two pages
        for (id_, entry), sequences in zip(page, states, strict=True):
            begin += 1
            if status is None or any(one.status.value == status for one in sequences):
                data.append({"id": id_, "client_request_id": entry.client_id, "sequences": sequences})
            if len(data) == limit:
                break
    body = {"object": "list", "data": data, "next": data[-1]["id"] if data and begin < len(entries) else None}
    return Response(msgspec.json.encode(body), media_type="application/json")


@router.get("/v1/requests/{request_id:path}/explain", tags=["Observe"])
async def explain(request: Request, request_id: str) -> Response:
    """Return the state of a request and what it waits for, or the history of one of the last that ended.

    ``request_id`` is an answer's id or the client's ``X-Request-Id``, which may stand for several sequences, or one
    sequence's id from a step record.
    """
    context, caller = context_of(request), request_context_of(request).caller
    services = context.services
    named = {id_: one for id_, one in context.in_flight.named(request_id).items() if caller.may_see(one.account)}
    explanations: list[Any] = [one for id_ in named for one in await services.generator.explain(id_)]
    if not explanations and _may_see_sequence(context, caller, request_id):
        own_id = RequestId(request_id)
        single = services.engine.finished(own_id) or await services.engine.explain(own_id)
        explanations = [] if single is None else [single]
    if not explanations:
        message = f"No request with the id `{request_id[:200]}` is waiting or running, or among the last that ended."
        raise ApiError(404, message, "request_id")
    client_id = next(iter(named.values())).client_id if named else None
    body = {"request_id": request_id, "client_request_id": client_id, "sequences": explanations}
    return Response(msgspec.json.encode(body), media_type="application/json")


@router.post("/abort_requests", tags=["Observe"])
async def abort_requests(request: Request) -> Response:
    """End requests by their ids, which must match exactly; their clients get the finish reason ``abort``.

    Requests of other API keys are not found, but by an admin key.
    """
    context, caller = context_of(request), request_context_of(request).caller
    body = await read_json(request, AbortRequest, context.config.max_request_bytes)
    found: dict[str, bool] = {}
    for count, request_id in enumerate(body.request_ids, 1):
        found[request_id] = _abort(context, caller, request_id)
        if count % ABORTS_AT_ONCE == 0:
            await asyncio.sleep(0)  # let others in between
    answer = {"aborted": [i for i in found if found[i]], "not_found": [i for i in found if not found[i]]}
    return Response(msgspec.json.encode(answer), media_type="application/json")


@router.post("/reset_prefix_cache", tags=["Observe"])
async def reset_prefix_cache(request: Request) -> Response:
    """Forget all cached blocks; 409 says that those in use by running requests stay cached for them.

    Takes JSON alone, as other requests that change something. Needs an admin key where there are keys.
    """
    check_content_type(request)
    _require_admin(request)
    was_reset = await context_of(request).services.engine.reset_prefix_cache()
    if not was_reset:
        raise ApiError(409, "Cached blocks were forgotten, but those that running requests use stay.", retry=True)
    return JSONResponse({"reset": True})


def _require_admin(request: Request) -> None:
    if not request_context_of(request).caller.is_admin:
        raise ApiError(403, "Only an admin may do this: send a key that was given as --admin-api-key.")


def _may_see_sequence(context: ServerContext, caller: Caller, sequence_id: str) -> bool:
    if caller.is_admin:
        return True
    entry = context.in_flight.of_sequence(sequence_id)
    return entry is not None and caller.may_see(entry.account)


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


def _abort(context: ServerContext, caller: Caller, request_id: str) -> bool:
    entry = context.in_flight.get(request_id)
    if entry is not None:
        if caller.may_see(entry.account):
            entry.end(None)
        return caller.may_see(entry.account)
    if not _may_see_sequence(context, caller, request_id):
        return False
    engine = context.services.engine
    is_known = engine.is_known(RequestId(request_id))
    if is_known:
        engine.abort(RequestId(request_id))
    return is_known


def _record(record: StepRecord) -> dict[str, Any]:
    """Return a record line, and with each chunk how many tokens are known of its request.

    The page asks for every step, so chunks are shaped here in one go instead of changed afterwards.
    """
    shaped = record_as_dict(record._replace(chunks=[], num_decodes=0, prefill_totals=[]))
    decodes, prefills = record.chunks[: record.num_decodes], record.chunks[record.num_decodes :]
    shaped["scheduled"] = [
        {"id": own_id, "seat": seat, "start": start, "end": end, "phase": "decode", "total": end}
        for seat, own_id, start, end, _, _ in decodes
    ] + [
        {"id": own_id, "seat": seat, "start": start, "end": end, "phase": "prefill", "total": total}
        for (seat, own_id, start, end, _, _), total in zip(prefills, record.prefill_totals, strict=True)
    ]
    return shaped


def _stats(context: ServerContext) -> dict[str, Any]:
    services = context.services
    stats, health, now = services.engine.stats(), services.engine.health(), services.engine.clock.now()
    return {
        "version": hotseat_version(),
        "model": services.model.served_names[0],
        "dtype": services.dtype,
        "policy": services.policy if stats.policy_error is None else f"fcfs, as {services.policy} failed",
        "uptime_s": None if services.started_s is None else now - services.started_s,
        "max_model_len": services.model.max_model_len,
        "max_num_seqs": services.max_num_seqs,
        "num_running": stats.num_running,
        "num_waiting": stats.num_waiting,
        "alive": health.alive,
        "reason": health.reason,
        "now_s": now,
    }
