"""The form of an answer, from whichever of its many fields a client sends."""

from __future__ import annotations

from typing import Any

from hotseat.core.request import StructuredOutputsParams
from hotseat.errors import InvalidRequestError
from hotseat.server.schema import GenerationRequest

__all__ = ["structured_outputs"]

# Fields that say the same as one field of structured_outputs: vLLM's old ones, llama.cpp's and SGLang's.
_ALIASES = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
    "json_schema": "json",
    "grammar": "grammar",
    "regex": "regex",
    "ebnf": "grammar",
}


def structured_outputs(body: GenerationRequest) -> StructuredOutputsParams | None:
    """Return the form that the answer must have, or ``None`` when it is free.

    Raises:
        InvalidRequestError: it is asked for in two ways, or a field is wrong; ``param`` names the field.
    """
    formatted = _of_response_format(body.response_format)
    sent = [name for name in ("structured_outputs", *_ALIASES) if getattr(body, name) is not None]
    if body.guided_json_object is False:
        sent.remove("guided_json_object")
    if len(sent) > 1:
        names = " and ".join(f"`{name}`" for name in sent)
        raise InvalidRequestError(f"Send one of {names}: an answer has one form.", param=sent[1])
    other = _of_field(body, sent[0]) if sent else None
    return formatted or other


def _of_field(body: GenerationRequest, name: str) -> StructuredOutputsParams:
    value = getattr(body, name)
    if name == "structured_outputs":
        return StructuredOutputsParams.from_values(value)
    values = {_ALIASES[name]: value}
    if body.guided_whitespace_pattern is not None:
        values["whitespace_pattern"] = body.guided_whitespace_pattern
    return StructuredOutputsParams.from_values(values, name)


def _of_response_format(wanted: dict[str, Any] | None) -> StructuredOutputsParams | None:
    if wanted is None:
        return None
    kind = wanted.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = wanted.get("schema")  # llama.cpp's
        if schema is not None:
            return _of_schema(schema)
        return StructuredOutputsParams(json_object=True, param="response_format")
    if kind == "json_schema":
        inner = wanted.get("json_schema")
        if not isinstance(inner, dict) or inner.get("schema") is None:
            raise InvalidRequestError(
                'response_format of type "json_schema" needs a json_schema with a schema in it.',
                param="response_format",
            )
        return _of_schema(inner["schema"])
    if kind == "structural_tag":
        return StructuredOutputsParams.from_values({"structural_tag": wanted}, "response_format")
    raise InvalidRequestError(
        f'response_format must have the type "text", "json_object", "json_schema" or "structural_tag", '
        f"not {str(kind)[:60]!r}.",
        param="response_format",
    )


def _of_schema(schema: Any) -> StructuredOutputsParams:
    return StructuredOutputsParams.from_values({"json": schema}, "response_format")
