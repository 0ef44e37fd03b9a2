"""Bodies of Anthropic's Messages API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictInt, StrictStr

from hotseat.server.schema import MAX_MESSAGES, Count, JsonBody, Many

__all__ = ["AnthropicMessage", "CountTokensRequest", "MessagesRequest", "OutputConfig", "Thinking", "ToolChoice"]

Blocks = Many[dict[str, Any]]


class AnthropicMessage(JsonBody):
    role: Literal["user", "assistant", "system"]  # "system" in the middle joins the one at the head
    content: StrictStr | Blocks


class ToolChoice(JsonBody):
    type: Literal["auto", "any", "tool", "none"]
    name: StrictStr | None = None
    disable_parallel_tool_use: StrictBool | None = None


class Thinking(JsonBody):
    """``budget_tokens`` is taken as advice: nothing cuts the reasoning but ``max_tokens``."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[StrictInt, Field(ge=1)] | None = None


class OutputConfig(JsonBody):
    format: dict[str, Any] | None = None
    effort: StrictStr | None = None


class Metadata(JsonBody):
    user_id: StrictStr | None = None


class AnthropicTool(JsonBody):
    name: StrictStr
    type: StrictStr | None = None
    description: StrictStr | None = None
    input_schema: dict[str, Any] | None = None
    strict: StrictBool | None = None


class CountTokensRequest(JsonBody):
    """Body of ``POST /v1/messages/count_tokens``."""

    model: StrictStr | None = None
    messages: Annotated[Many[AnthropicMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: StrictStr | Blocks | None = None
    tools: Many[AnthropicTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountTokensRequest):
    """Body of ``POST /v1/messages``."""

    max_tokens: Annotated[Count, Field(ge=1)]
    stream: StrictBool | None = False
    stop_sequences: Many[StrictStr] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: StrictInt | None = None
    metadata: Metadata | None = None
    service_tier: StrictStr | None = None
