"""Schemas of the kinds that people write: made here by chance, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

__all__ = ["UNSUPPORTED", "schema"]

Schema = dict[str, Any]
WORDS = [
    *("name", "age", "city", "street", "email", "phone", "status", "kind", "title"),
    *("price", "count", "active", "tags", "items", "owner", "created", "note"),
]
FORMATS = ("date", "time", "date-time", "email", "uuid", "ipv4", "ipv6", "uri", "hostname", "duration")
DRAFTS = (None, "http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema")
PATTERNS = ("^[A-Z]{2}[0-9]{3}$", "^(red|green|blue)$", "^[a-z]+(-[a-z]+)*$", r"^\d{4}$", "^[0-9a-f]{8}$", "[0-9]")

# Keywords that cannot be held to, each with a schema that uses it.
UNSUPPORTED: dict[str, Schema] = {
    "uniqueItems": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    "contains": {"type": "array", "contains": {"type": "integer"}},
    "not": {"not": {"type": "string"}},
    "if": {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "dependentSchemas": {"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}},
    "propertyNames": {"type": "object", "propertyNames": {"pattern": "^a"}},
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": False},
    "$dynamicRef": {"$dynamicRef": "#x"},
}


def schema(seed: int) -> Schema:
    """Return the schema number ``seed``."""
    draw = random.Random(seed)
    made = KINDS[seed % len(KINDS)](draw)
    draft = draw.choice(DRAFTS)
    return made if draft is None else {"$schema": draft, **made}


def _text(draw: random.Random) -> Schema:
    made: Schema = {"type": "string", "maxLength": draw.randint(3, 20)}
    if draw.random() < 0.4:
        made["minLength"] = draw.randint(0, 3)
    return made


def _number(draw: random.Random) -> Schema:
    low = draw.randint(-50, 50)
    kind = draw.choice(["integer", "number"])
    made: Schema = {"type": kind, "minimum": low, "maximum": low + draw.randint(1, 1000)}
    if draw.random() < 0.3:
        made["exclusiveMaximum"] = made.pop("maximum")
    if kind == "integer" and draw.random() < 0.3:
        made["multipleOf"] = draw.choice([2, 5, 10])
        made["minimum"], made["maximum"] = 0, 100
        made.pop("exclusiveMaximum", None)
    return made


def _enum(draw: random.Random) -> Schema:
    values: list[Any] = draw.sample([*WORDS, 1, 2.5, None, True, "é😀", 'a"b', "\n"], draw.randint(1, 5))
    return {"enum": values} if draw.random() < 0.7 else {"const": values[0]}


def _format(draw: random.Random) -> Schema:
    return {"type": "string", "format": draw.choice(FORMATS)}


def _pattern(draw: random.Random) -> Schema:
    made: Schema = {"type": "string", "pattern": draw.choice(PATTERNS)}
    return made


def _simple(draw: random.Random) -> Schema:
    kinds = (_text, _number, _enum, _format, _pattern, lambda _: {"type": "boolean"}, lambda _: {"type": "null"})
    return draw.choice(kinds)(draw)


def _object(draw: random.Random, depth: int = 2) -> Schema:
    names = draw.sample(WORDS, draw.randint(1, 5))
    properties = {name: _value(draw, depth - 1) for name in names}
    made: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    required = [name for name in names if draw.random() < 0.7]
    if required:
        made["required"] = required
    if draw.random() < 0.3:
        made |= {"title": "Guest", "description": "One of them", "examples": [1]}
    return made


def _value(draw: random.Random, depth: int) -> Schema:
    if depth <= 0 or draw.random() < 0.5:
        return _simple(draw)
    return draw.choice((_object, _array, _union))(draw, depth)


def _array(draw: random.Random, depth: int = 2) -> Schema:
    made: Schema = {"type": "array", "items": _value(draw, depth - 1), "maxItems": draw.randint(1, 4)}
    if draw.random() < 0.5:
        made["minItems"] = draw.randint(0, 1)
    if draw.random() < 0.2:
        made["prefixItems"] = [_simple(draw)]
    return made


def _union(draw: random.Random, depth: int = 2) -> Schema:
    if draw.random() < 0.3:
        return {"type": ["string", "null"], "maxLength": 8}
    return {"anyOf": [_value(draw, depth - 1) for _ in range(draw.randint(2, 3))]}


def _references(draw: random.Random) -> Schema:
    name = draw.choice(["$defs", "definitions"])
    return {
        "type": "object",
        "properties": {"first": {"$ref": f"#/{name}/part"}, "second": {"$ref": f"#/{name}/part"}},
        "required": ["first"],
        "additionalProperties": False,
        name: {"part": _object(draw, 1)},
    }


def _recursive(draw: random.Random) -> Schema:
    return {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": _simple(draw),
                    "below": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["value"],
                "additionalProperties": False,
            }
        },
    }


def _tagged_union(draw: random.Random) -> Schema:
    branches = []
    for number in range(draw.randint(2, 3)):
        inner = _object(draw, 1)
        inner["properties"] = {"type": {"const": f"kind_{number}"}, **inner["properties"]}
        inner["required"] = ["type", *inner.get("required", ())]
        branches.append(inner)
    return {draw.choice(["oneOf", "anyOf"]): branches}


def _all_of(draw: random.Random) -> Schema:
    return {
        "allOf": [
            {"type": "object", "properties": {"a": _simple(draw)}, "required": ["a"]},
            {"type": "object", "properties": {"b": _simple(draw)}, "required": ["b"]},
        ]
    }


def _map(draw: random.Random) -> Schema:
    return {"type": "object", "additionalProperties": _simple(draw), "maxProperties": 3, "minProperties": 0}


def _pattern_properties(draw: random.Random) -> Schema:
    return {
        "type": "object",
        "patternProperties": {"^x_[a-z]{1,4}$": _simple(draw), "^[0-9]{2}$": _simple(draw)},
        "additionalProperties": False,
    }


KINDS: tuple[Callable[[random.Random], Schema], ...] = (
    _object,
    lambda draw: _object(draw, 3),
    _array,
    _union,
    _references,
    _recursive,
    _tagged_union,
    _all_of,
    _map,
    _pattern_properties,
    _simple,
)
