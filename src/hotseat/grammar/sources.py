"""The text of a grammar in llguidance's language, from what a client asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hotseat.core.structured_outputs import StructuredOutputsParams
from hotseat.grammar.tags import preamble_grammar, tag_grammar

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

__all__ = ["GrammarSource", "json_options", "source_of"]

BODY = "body"  # the name of the form within a grammar that has reasoning before it
MAX_DEPTH = 64  # of a schema
DEFAULT_WHITESPACE = r"[ \n\t\r]{1,8}"  # unbounded, small models go on with blanks until max_tokens
_SCOPED = re.compile(r"^\s*\w+\s*\[[^\]\n]*\b(max_tokens|temperature)\b", re.MULTILINE)


class GrammarSource(NamedTuple):
    """A grammar as text."""

    kind: str  # the word for it in errors
    text: str
    lenient: str | None = None  # the same of a schema, unknown words left out


def source_of(params: StructuredOutputsParams, added_tokens: Mapping[str, int]) -> GrammarSource:
    """Return the grammar of ``params``; whether it is sound, compiling tells.

    Raises:
        InvalidRequestError: it is not JSON where it must be, or cannot be translated.
    """
    source = _source_of(params, added_tokens)
    if params.preamble is None:
        return source
    head = preamble_grammar(params.preamble, added_tokens, BODY)
    lenient = None if source.lenient is None else _after(head, source.lenient)
    return GrammarSource(source.kind, _after(head, source.text), lenient)


def _after(head: str, text: str) -> str:
    """Return a grammar that begins with ``head``, in which the grammar ``text`` has the name BODY."""
    inner = json.loads(text)["grammars"] if text.startswith("{") else [{"lark_grammar": text}]
    inner[0]["name"] = BODY
    return json.dumps({"grammars": [{"lark_grammar": head}, *inner]})


def _source_of(params: StructuredOutputsParams, added_tokens: Mapping[str, int]) -> GrammarSource:
    from llguidance import LLMatcher

    if params.json is not None or params.json_object:
        return _schema_source(params)
    if params.regex is not None:
        return GrammarSource("regex", LLMatcher.grammar_from_regex(params.regex))
    if params.choice is not None:
        text = "start: " + " | ".join(json.dumps(one, ensure_ascii=False) for one in params.choice)
        return GrammarSource("choice", LLMatcher.grammar_from_lark(text))
    if params.grammar is not None:
        return GrammarSource("grammar", LLMatcher.grammar_from_lark(_as_lark(params, params.grammar)))
    assert params.structural_tag is not None, "one of the kinds is set"
    tag = _parse(params, "structural_tag", params.structural_tag)
    try:
        text = tag_grammar(tag, added_tokens, json_options(params))
    except ValueError as error:
        raise params.error(f"the structural_tag cannot be used: {error}") from None
    return GrammarSource("structural_tag", LLMatcher.grammar_from_lark(text))


def json_options(params: StructuredOutputsParams) -> JsonCompileOptions:
    """Return llguidance's options for the JSON that ``params`` ask for."""
    if params.disable_any_whitespace:
        return {"whitespace_flexible": False, "coerce_one_of": True}
    return {"whitespace_pattern": params.whitespace_pattern or DEFAULT_WHITESPACE, "coerce_one_of": True}


def _schema_source(params: StructuredOutputsParams) -> GrammarSource:
    from llguidance import LLMatcher

    schema = {"type": "object"} if params.json_object else _parse(params, "json", params.json or "")
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        raise params.error("json must be a JSON schema, which is an object")
    if params.disable_additional_properties:
        schema = _closed(schema)
    options = json_options(params)
    try:
        strict = LLMatcher.grammar_from_json_schema(schema, overrides=options)
        lenient = LLMatcher.grammar_from_json_schema(schema, overrides={**options, "lenient": True})
    except (ValueError, OverflowError, RecursionError) as error:
        raise params.error(f"the json schema cannot be used: {error}") from None
    return GrammarSource("json schema", strict, lenient)


def _parse(params: StructuredOutputsParams, name: str, text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise params.error(f"{name} is not JSON: {error}") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level if isinstance(outer, dict | list) for inner in _inner(outer)]
        if not level:
            return value
    raise params.error(f"{name} is nested more than {MAX_DEPTH} deep")


def _inner(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def _closed(schema: Any) -> Any:
    """Return a copy in which no object has properties that its schema does not name."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    if "properties" in closed and "additionalProperties" not in closed:
        closed["additionalProperties"] = False
    return closed


def _as_lark(params: StructuredOutputsParams, text: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        lark: str = any_to_lark(text)
    except (Exception, RecursionError) as error:  # the library's own types, and what its parser stumbles over
        raise params.error(f"the grammar cannot be read: {str(error)[:300]}") from None
    scoped = _SCOPED.search(lark)
    if scoped:
        raise params.error(f"the grammar cannot be used: {scoped[1]} is not supported in it")
    return lark
