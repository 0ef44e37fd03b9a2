"""Endpoints that tell about the server: its models, health, load, metrics and version."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from hotseat.server.generate import check_model
from hotseat.server.state import ServerContext, context_of, shutting_down
from hotseat.server.version import hotseat_version

__all__ = ["router"]

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

router = APIRouter()


@router.get("/v1/models", tags=["OpenAI"])
async def list_models(request: Request) -> Response:
    """List the served model under each of its names."""
    context = context_of(request)
    cards = [_model_card(name, context) for name in context.services.model.served_names]
    return JSONResponse({"object": "list", "data": cards})


@router.get("/v1/models/{name:path}", tags=["OpenAI"])
async def show_model(request: Request, name: str) -> Response:
    """Show one model; names may contain slashes."""
    context = context_of(request)
    return JSONResponse(_model_card(check_model(name, context), context))


@router.get("/health", tags=["Server"])
@router.head("/health", include_in_schema=False)
async def health(request: Request) -> Response:
    """Answer 200 while the engine is alive and makes progress, else 503 with the reason; for liveness probes.

    ``policy_error`` is the fault of a scheduling policy of the operator's own that was replaced by fcfs.
    """
    engine = context_of(request).services.engine
    state = engine.health()
    body = {
        "status": "ok" if state.alive else "unhealthy",
        "reason": state.reason,
        "stalled_for_s": state.stalled_for_s,
        "policy_error": engine.stats().policy_error,
    }
    return JSONResponse(body, 200 if state.alive else 503)


@router.get("/ready", tags=["Server"])
@router.head("/ready", include_in_schema=False)
async def ready(request: Request) -> Response:
    """Answer 200 while new requests are taken, else 503; for readiness probes."""
    context = context_of(request)
    state = context.services.engine.health()
    reason = shutting_down().message if context.in_flight.refuses_new else state.reason
    is_ready = state.alive and not context.in_flight.refuses_new
    return JSONResponse({"status": "ready" if is_ready else "not ready", "reason": reason}, 200 if is_ready else 503)


@router.get("/version", tags=["Server"])
async def version(request: Request) -> Response:
    """Tell which Hotseat this is, and what it promises about the bits of answers."""
    services = context_of(request).services
    return JSONResponse({"version": hotseat_version(), "determinism": dict(services.determinism)})


@router.get("/load", tags=["Server"])
async def load(request: Request) -> Response:
    """Tell how busy the server is; ``server_load`` counts the requests that are being answered."""
    context = context_of(request)
    stats = context.services.engine.stats()
    body = {
        "server_load": len(context.in_flight),
        "num_requests_running": stats.num_running,
        "num_requests_waiting": stats.num_waiting,
        "max_num_seqs": context.services.max_num_seqs,
    }
    return JSONResponse(body)


@router.get("/metrics", tags=["Server"])
@router.head("/metrics", include_in_schema=False)
async def metrics(request: Request) -> Response:
    """Metrics in Prometheus' text format."""
    return Response(context_of(request).services.render_metrics(), media_type=METRICS_TYPE)


def _model_card(name: str, context: ServerContext) -> dict[str, Any]:
    model = context.services.model
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "hotseat",
        "root": model.root or model.served_names[0],
        "parent": None,
        "max_model_len": model.max_model_len,
        "permission": [],
    }
