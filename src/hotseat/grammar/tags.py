"""Structural tags: free text until a trigger, then a form until the end of the tag, and free text again.

Two shapes are read: the old one of vLLM, ``{"structures": [{"begin", "schema", "end"}], "triggers": […]}``, and the
tree of xgrammar under ``format``, whose node types are in ``_NODES``. Three types are of our own: ``repeat``,
``text_until`` and ``text_except``, which the formats of calls need.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from hotseat.core.structured_outputs import Preamble

__all__ = ["TagWriter", "preamble_grammar", "tag_grammar"]

MAX_TAGS = 256
BLANKS = r"/[ \t\r\n]{0,4}/"  # between reasoning and answer


def tag_grammar(tag: Any, added_tokens: Mapping[str, int], options: Mapping[str, Any]) -> str:
    """Return the Lark grammar of a structural tag.

    Raises:
        ValueError: it has a shape that is not known.
    """
    if not isinstance(tag, dict):
        raise ValueError("it must be an object")
    writer = TagWriter(added_tokens, options)
    if "format" in tag:
        return writer.grammar(writer.node(tag["format"]))
    structures, triggers = tag.get("structures"), tag.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list) or not structures or not triggers:
        raise ValueError("it needs structures and triggers, lists that are not empty, or a format")
    tags = [
        {"begin": _text(one, "begin"), "content": _schema_node(one), "end": _text(one, "end")} for one in structures
    ]
    return writer.grammar(writer.node({"type": "triggered_tags", "triggers": triggers, "tags": tags}))


def preamble_grammar(preamble: Preamble, added_tokens: Mapping[str, int], body: str) -> str:
    """Return the Lark grammar of reasoning and, after it, the grammar with the name ``body``."""
    writer = TagWriter(added_tokens, {})
    start = f"{writer.literal(preamble.answer_open)} @{body}".strip()
    if preamble.close:
        ending = f"{writer.text_until(preamble.close)} {writer.rule(BLANKS)}"
        reasoning = ending if not preamble.open else f"{writer.literal(preamble.open)} {ending}"
        start = f"{writer.rule(reasoning)}{'?' if preamble.open else ''} {start}"
    return writer.grammar(start)


class TagWriter:
    """Writes Lark rules. Tokens that the tokenizer adds by their spelling match by id alone, never as text."""

    def __init__(self, added_tokens: Mapping[str, int], options: Mapping[str, Any]) -> None:
        self._added = sorted(added_tokens.items(), key=lambda item: -len(item[0]))
        self._options = options
        self._rules: list[str] = []

    def grammar(self, start: str) -> str:
        """Return the whole grammar, which begins with the expression ``start``."""
        return "\n".join(["%llguidance {}", f"start: {start or EMPTY}", *self._rules])

    def rule(self, body: str, attributes: str = "") -> str:
        """Add a rule and return its name."""
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body or EMPTY}")
        return name

    def literal(self, text: str) -> str:
        """Return an expression for ``text`` as the tokenizer writes it."""
        parts = []
        for piece in self._pieces(text):
            parts.append(f"<[{piece}]>" if isinstance(piece, int) else json.dumps(piece, ensure_ascii=False))
        return " ".join(parts)

    def schema(self, schema: Any) -> str:
        """Return an expression for JSON that holds to ``schema``."""
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        if not isinstance(schema, dict):
            raise ValueError("a schema must be an object")
        return self.rule("%json " + json.dumps({**schema, "x-guidance": dict(self._options)}, ensure_ascii=False))

    def text(self) -> str:
        """Return an expression for any text."""
        return r"/(.|\n)*/"

    def text_until(self, trigger: str) -> str:
        """Return an expression for any text up to and with ``trigger``."""
        pieces = self._pieces(trigger)
        if not pieces:
            raise ValueError("text needs an end")
        if isinstance(pieces[0], int):
            return self.rule(rf"/(.|\n)*/ {self.literal(trigger)}")
        head = self.rule(rf"/(.|\n)*{_escaped(pieces[0])}/", "[lazy]")
        rest = trigger[len(pieces[0]) :]
        return f"{head} {self.literal(rest)}" if rest else head

    def node(self, node: Any) -> str:
        """Return an expression for a node of xgrammar's tree."""
        if not isinstance(node, dict):
            raise ValueError("each format must be an object with a type")
        kind = node.get("type", "tag" if "begin" in node else None)
        write = _NODES.get(kind) if isinstance(kind, str) else None
        if write is None:
            raise ValueError(f"format type {str(kind)[:40]!r} is not known; there are {', '.join(_NODES)}")
        return write(self, node)

    def _pieces(self, text: str) -> list[str | int]:
        """Cut ``text`` at the added tokens in it."""
        pieces: list[str | int] = []
        plain = 0
        at = 0
        while at < len(text):
            found = next(((token, id_) for token, id_ in self._added if token and text.startswith(token, at)), None)
            if found is None:
                at += 1
                continue
            if at > plain:
                pieces.append(text[plain:at])
            pieces.append(found[1])
            at = plain = at + len(found[0])
        if plain < len(text):
            pieces.append(text[plain:])
        return pieces


EMPTY = '""'


def _escaped(text: str) -> str:
    return "".join(char if char.isalnum() or ord(char) > 127 else f"\\x{ord(char):02x}" for char in text)


def _text(node: Mapping[str, Any], name: str) -> str:
    value = node.get(name, "") if isinstance(node, dict) else None
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text")
    return value


def _items(node: Mapping[str, Any], name: str) -> list[Any]:
    value = node.get(name)
    if not isinstance(value, list) or not value or len(value) > MAX_TAGS:
        raise ValueError(f"{name} must be a list of 1 to {MAX_TAGS}")
    return value


def _schema_node(structure: Any) -> dict[str, Any]:
    if not isinstance(structure, dict):
        raise ValueError("each of structures must be an object")
    return {"type": "json_schema", "json_schema": structure.get("schema", {})}


def _sequence(writer: TagWriter, node: Mapping[str, Any]) -> str:
    return " ".join(f"({writer.node(one)})" for one in _items(node, "elements"))


def _either(writer: TagWriter, node: Mapping[str, Any]) -> str:
    return writer.rule(" | ".join(f"({writer.node(one)})" for one in _items(node, "elements")))


def _tag(writer: TagWriter, node: Mapping[str, Any]) -> str:
    begin, end = writer.literal(_text(node, "begin")), writer.literal(_text(node, "end"))
    return writer.rule(f"{begin} {writer.node(node.get('content'))} {end}".strip())


def _triggered(writer: TagWriter, node: Mapping[str, Any]) -> str:
    tags, triggers = _items(node, "tags"), _items(node, "triggers")
    branches = []
    for trigger in triggers:
        if not isinstance(trigger, str) or not trigger:
            raise ValueError("each trigger must be text that is not empty")
        rests = []
        for tag in tags:
            begin = _text(tag, "begin")
            if begin.startswith(trigger):
                rests.append(_tag(writer, {**tag, "begin": begin[len(trigger) :]}))
        if not rests:
            raise ValueError(f"no tag begins with the trigger {trigger[:60]!r}")
        branches.append(f"{writer.text_until(trigger)} {writer.rule(' | '.join(rests))}")
    calls = writer.rule(" | ".join(branches))
    if node.get("stop_after_first"):
        return calls if node.get("at_least_one") else f"({calls} | {writer.text()})"
    return f"{calls}{'+' if node.get('at_least_one') else '*'} {writer.text()}"


def _repeat(writer: TagWriter, node: Mapping[str, Any]) -> str:
    most = node.get("max")
    element = writer.rule(writer.node(node.get("element")))
    return f"{element}{{0,{most}}}" if isinstance(most, int) else f"{element}*"


def _text_except(writer: TagWriter, node: Mapping[str, Any]) -> str:
    """Any text that does not begin, after blanks, with one of some characters."""
    first = _escaped(_text(node, "first"))
    return writer.rule(rf"/\s*([^\s{first}](.|\n)*)?/")


_NODES: dict[str, Callable[[TagWriter, Mapping[str, Any]], str]] = {
    "sequence": _sequence,
    "or": _either,
    "tag": _tag,
    "triggered_tags": _triggered,
    "repeat": _repeat,
    "text_until": lambda writer, node: writer.text_until(_text(node, "text")),
    "text_except": _text_except,
    "any_text": lambda writer, _: writer.text(),
    "const_string": lambda writer, node: writer.literal(_text(node, "value")) or EMPTY,
    "regex": lambda writer, node: "/" + _text(node, "pattern").replace("/", "\\x2f") + "/",
    "json_schema": lambda writer, node: writer.schema(node.get("json_schema", node.get("schema"))),
}
