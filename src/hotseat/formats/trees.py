"""Forms of calls that a grammar can hold an answer to, as nodes of a structural tag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotseat.formats.tagged import TagNotation
from hotseat.formats.values import as_json, types_of

__all__ = ["Node", "constant", "gemma_call", "json_call", "named_call", "python_call", "sequence", "tagged_call"]

Node = dict[str, Any]
MAX_DEPTH = 16


def constant(text: str) -> Node:
    """Return the form of ``text`` itself."""
    return {"type": "const_string", "value": text}


def sequence(*nodes: Node) -> Node:
    """Return the form of one after the other."""
    return {"type": "sequence", "elements": list(nodes)}


def json_call(head: str, tail: str, name: str, schema: Node) -> Node:
    """Return the form of a call with JSON arguments; ``{name}`` in ``head`` is the name as JSON."""
    return sequence(constant(head.replace("{name}", as_json(name))), _json(schema), constant(tail))


def named_call(head: str, tail: str, name: str, schema: Node) -> Node:
    """Return the form of a call with JSON arguments; ``{name}`` in ``head`` is the bare name."""
    return sequence(constant(head.replace("{name}", name)), _json(schema), constant(tail))


def tagged_call(tags: TagNotation, name: str, schema: Node) -> Node:
    """Return the form of a call with a tag for each argument, in the order of the schema."""
    gap = tags.blank
    nodes = [constant(tags.call + name + (tags.name_end or "") + gap)]
    for key, of_key, is_required in _properties(schema):
        end = tags.blank + tags.value_end
        is_text = types_of(of_key) in (set(), {"string"})
        key_end = tags.key_end if is_text or not tags.other_key_end else tags.other_key_end
        value = _text(of_key, end) if is_text else sequence(_json(of_key), constant(end))
        nodes.append(
            _optional(sequence(constant(tags.key + key + key_end + tags.blank), value, constant(gap)), is_required)
        )
    return sequence(*nodes, constant(tags.call_end))


def python_call(name: str, schema: Node) -> Node:
    """Return the form of a call in Python's notation; values are written as JSON."""
    return sequence(
        constant(f"{name}("),
        _joined(schema, lambda key, of_key: sequence(constant(f"{key}="), _json(of_key))),
        constant(")"),
    )


def gemma_call(quote: str, name: str, schema: Node) -> Node:
    """Return the form of a call in Gemma's notation."""
    return sequence(constant(f"call:{name}"), _gemma_value({"type": "object", **schema}, quote, schema, 0))


def _gemma_value(schema: Any, quote: str, root: Node, depth: int) -> Node:
    if depth > MAX_DEPTH:
        raise ValueError("the parameters are nested too deeply for this model's notation")
    if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
        found: Any = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            found = found.get(step) if isinstance(found, Mapping) else None
        return _gemma_value(found, quote, root, depth + 1)
    types = types_of(schema)
    if types == {"object"}:
        inner = _joined(
            schema, lambda key, of_key: sequence(constant(f"{key}:"), _gemma_value(of_key, quote, root, depth + 1)), ","
        )
        return sequence(constant("{"), inner, constant("}"))
    if types == {"array"}:
        item = _gemma_value(schema.get("items", {}), quote, root, depth + 1)
        more = {"type": "repeat", "element": sequence(constant(","), item)}
        return sequence(constant("["), _optional(sequence(item, more), False), constant("]"))
    if types in (set(), {"string"}):
        return sequence(constant(quote), _text(schema, quote))
    return _json(schema)


def _joined(schema: Node, write: Any, comma: str = ", ") -> Node:
    """Return the form of all required properties, then of any others, in the order of the schema."""
    properties = _properties(schema)
    required = [write(key, of_key) for key, of_key, is_required in properties if is_required]
    others = [write(key, of_key) for key, of_key, is_required in properties if not is_required]
    nodes: list[Node] = []
    for number, node in enumerate(required):
        nodes.append(sequence(constant(comma), node) if number else node)
    if required:
        return sequence(*nodes, *(_optional(sequence(constant(comma), node), False) for node in others))
    tails: list[Node] = []  # without a required one: any of them first, then those after it
    for number, node in enumerate(others):
        later = [_optional(sequence(constant(comma), other), False) for other in others[number + 1 :]]
        tails.append(sequence(node, *later))
    return {"type": "or", "elements": [*tails, constant("")]}


def _properties(schema: Node) -> list[tuple[str, Node, bool]]:
    required = schema.get("required")
    required = required if isinstance(required, list) else []
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return []
    shared: Node = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    return [
        (key, {**shared, **of_key} if isinstance(of_key, Mapping) else {}, key in required)
        for key, of_key in properties.items()
    ]


def _text(schema: Any, end: str) -> Node:
    """Return the form of a raw text and the ``end`` after it."""
    values = schema.get("enum") if isinstance(schema, Mapping) else None
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return {"type": "or", "elements": [constant(value + end) for value in values]}
    return {"type": "text_until", "text": end}


def _json(schema: Any) -> Node:
    return {"type": "json_schema", "json_schema": schema}


def _optional(node: Node, is_required: bool) -> Node:
    return node if is_required else {"type": "or", "elements": [node, constant("")]}
