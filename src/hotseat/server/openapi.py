"""The description of the API at ``/openapi.json``: bodies that the endpoints read themselves, and every status."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from hotseat.server.anthropic_schema import CountTokensRequest, MessagesRequest
from hotseat.server.errors import ANTHROPIC_PATH
from hotseat.server.responses_schema import ResponsesRequest
from hotseat.server.schema import (
    AbortRequest,
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    JsonBody,
    TokenizeRequest,
)

__all__ = ["describe"]

_BODIES: dict[str, type[JsonBody]] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountTokensRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/abort_requests": AbortRequest,
}
_ANY = (400, 401, 403, 408, 431, 500, 501, 503)
_WITH_BODY = (404, 413)  # 404: no such model
_STATUSES: dict[str, tuple[int, ...]] = {
    "/v1/completions": (504,),
    "/v1/chat/completions": (504,),
    "/v1/responses": (504,),
    "/v1/embeddings": (409, 504),
    "/v1/messages": (504,),
    "/v1/models/{name}": (404,),
    "/v1/requests/{request_id}/explain": (404,),
    "/reset_prefix_cache": (409,),
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"], "description": "the field that is meant"},
                "code": {"type": ["string", "integer", "null"]},
            },
        }
    },
}
_ANTHROPIC_ERROR = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}
_PROBES = ("/health", "/ready")  # their 503 has a body of its own


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the description of ``app``; made once, at the first call."""
    if app.openapi_schema is None:
        app.openapi_schema = _described(app)
    return app.openapi_schema


def _described(app: FastAPI) -> dict[str, Any]:
    description = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas = description.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own errors, which no endpoint gives
        schemas.pop(name, None)
    schemas["Error"] = _ERROR
    schemas["AnthropicError"] = _ANTHROPIC_ERROR
    for path, operations in description["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            body = _BODIES.get(path)
            if body is not None:
                reference = _add_schema(schemas, body)
                operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": reference}}}
            _add_errors(operation["responses"], (*_ANY, *_STATUSES.get(path, ()), *(_WITH_BODY if body else ())), path)
    return description


def _add_schema(schemas: dict[str, Any], model: type[JsonBody]) -> dict[str, str]:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(schema.pop("$defs", {}))
    schemas[model.__name__] = schema
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _add_errors(responses: dict[str, Any], statuses: Iterable[int], path: str) -> None:
    name = "AnthropicError" if path.startswith(ANTHROPIC_PATH) else "Error"
    for status in sorted(set(statuses)):
        schema = {} if path in _PROBES else {"$ref": f"#/components/schemas/{name}"}
        responses[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {"application/json": {"schema": schema}},
        }
