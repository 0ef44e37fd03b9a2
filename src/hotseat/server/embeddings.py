"""Embeddings: prompts that nothing is generated after, answered with their pooled hidden states."""

from __future__ import annotations

import base64
from array import array
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response

from hotseat.errors import InvalidRequestError
from hotseat.generation import OutputDelta, embedding_of
from hotseat.server.body import read_json
from hotseat.server.errors import ApiError, validation_error
from hotseat.server.generate import answer_prompts
from hotseat.server.metadata import ResponseMetadata, UsageCounter
from hotseat.server.schema import CompletionRequest, EmbeddingRequest
from hotseat.server.state import context_of
from hotseat.server.translate import speak_of
from hotseat.server.writers import WholeWriter

__all__ = ["router"]

router = APIRouter()

_SHARED = ("model", "user", "priority", "deadline_ms", "cache_salt", "add_special_tokens")


class EmbeddingWriter(WholeWriter):
    """Collect the embeddings of all prompts."""

    def __init__(self, body: EmbeddingRequest, metadata: ResponseMetadata) -> None:
        self.counter = UsageCounter(metadata)
        self._metadata = metadata
        self._body = body
        self._embeddings: dict[int, list[float]] = {}

    def add(self, batch: list[OutputDelta]) -> None:
        """Take what one step brought."""
        for delta in batch:
            choice = self.counter.add(delta)
            if delta.pooled is not None:
                self._embeddings[choice] = embedding_of(delta.pooled, self._body.dimensions)

    def write(self) -> bytes:
        """Return the list of embeddings.

        Raises:
            ApiError: not all are there, because the request was aborted.
        """
        if len(self._embeddings) < self._metadata.num_prompts:
            raise ApiError(409, "The request was aborted.")
        num_tokens = self.counter.usage().prompt_tokens
        body = {
            "id": self._metadata.id,
            "object": "list",
            "created": self._metadata.created,
            "model": self._metadata.model,
            "data": [
                {"object": "embedding", "index": index, "embedding": self._shaped(self._embeddings[index])}
                for index in range(self._metadata.num_prompts)
            ],
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        }
        return msgspec.json.encode(body)

    def _shaped(self, values: list[float]) -> Any:
        """Return numbers, or the base64 of little-endian float32."""
        floats = array("f", values)
        if self._body.encoding_format != "base64":
            return floats.tolist()  # the same numbers in both formats: rounded to float32
        return base64.b64encode(floats.tobytes()).decode()


@router.post("/v1/embeddings", tags=["OpenAI"])
async def create_embeddings(request: Request) -> Response:
    """Embed one or more texts, each in one vector of length 1."""
    context = context_of(request)
    body = await read_json(request, EmbeddingRequest, context.config.max_request_bytes)
    speak_of(request, body, {"prompt": "input"})
    pooling = body.pooling or context.config.pooling
    make_writer = partial(EmbeddingWriter, body)
    return await answer_prompts(request, _prompt_request(body), "embd-", make_writer, pooling=pooling)


def _prompt_request(body: EmbeddingRequest) -> CompletionRequest:
    """Return the request for completions of no tokens."""
    fields = {name: getattr(body, name) for name in _SHARED}
    further = body.model_extra or {}
    for name in ("prompt", "max_tokens", "stream", "n", "echo"):
        if further.get(name):
            raise InvalidRequestError(f"`{name}` cannot be honoured: embeddings do not have it.", param=name)
    try:
        return CompletionRequest.model_validate({**further, **fields, "prompt": body.input, "max_tokens": 0})
    except ValidationError as error:
        raise validation_error(error) from None
