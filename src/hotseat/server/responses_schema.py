"""Body of OpenAI's Responses API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictInt, StrictStr

from hotseat.server.schema import MAX_MESSAGES, Count, JsonBody, Many

__all__ = ["Reasoning", "ResponsesRequest", "TextOptions"]


class TextOptions(JsonBody):
    format: dict[str, Any] | None = None
    verbosity: StrictStr | None = None


class Reasoning(JsonBody):
    effort: StrictStr | None = None
    summary: StrictStr | None = None


class ResponsesRequest(JsonBody):
    """Body of ``POST /v1/responses``. Answers are not kept, so ``store`` means nothing."""

    input: StrictStr | Annotated[Many[dict[str, Any]], Field(max_length=MAX_MESSAGES)]
    model: StrictStr | None = None
    instructions: StrictStr | None = None
    max_output_tokens: Annotated[Count, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: StrictInt | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    tools: Many[dict[str, Any]] | None = None
    tool_choice: StrictStr | dict[str, Any] | None = None
    parallel_tool_calls: StrictBool | None = None
    include: Many[StrictStr] | None = None
    stream: StrictBool | None = False
    store: StrictBool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[StrictStr, Any] | None = None
    user: StrictStr | None = None
