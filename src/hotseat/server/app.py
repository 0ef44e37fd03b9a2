"""Put the application together."""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from hotseat.errors import HotseatError
from hotseat.server import anthropic, api_page, embeddings, generate, info, observe, page, responses, tokens
from hotseat.server.auth import ApiKeys
from hotseat.server.config import ServerConfig
from hotseat.server.errors import ApiError, handle_error
from hotseat.server.middleware import RequestMiddleware
from hotseat.server.openapi import describe
from hotseat.server.services import ServerServices
from hotseat.server.state import ServerContext
from hotseat.server.version import hotseat_version

__all__ = ["create_app"]


def create_app(services: ServerServices, config: ServerConfig) -> FastAPI:
    """Return the ASGI application; ``services.engine`` must be running when the first request comes."""
    context = ServerContext(services, config, ApiKeys(config.api_key, config.admin_api_key, config.api_key_file))
    # FastAPI's pages load their scripts from elsewhere; /docs is ours.
    app = FastAPI(title="Hotseat", version=hotseat_version(), docs_url=None, redoc_url=None)
    app.state.context = context
    app.openapi = partial(describe, app)  # type: ignore[method-assign]
    for room in (generate, responses, anthropic, embeddings, tokens, info, observe, page, api_page):
        app.include_router(room.router)
    for kind in (ApiError, HotseatError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, handle_error)
    app.add_middleware(RequestMiddleware, context=context)
    if config.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    return app
