"""The Jinja environment of chat templates: transformers' own, with limits on what a template may do.

A template is code that comes with a model. Jinja's sandbox keeps it from Python's internals, files and modules. The
limits here keep it from running for ever and from filling the memory: every pass of a loop, call and filter is counted,
and so are the characters that it makes.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

__all__ = ["TemplateLimitError", "metered", "template_environment"]

_METERED = "hotseat_metered"
_JOINED = "hotseat_joined"


class TemplateLimitError(jinja2.TemplateError):
    """A template did more than a chat can need."""


class _Meter(threading.local):
    """The steps and characters left to the rendering in this thread; ``metered`` fills it up."""

    steps = 0
    chars = 0
    longest = 0

    def spend(self, steps: int = 1, chars: int = 0) -> None:
        self.steps -= steps
        self.chars -= chars
        if self.steps < 0:
            raise TemplateLimitError("it runs too long for a chat")
        if self.chars < 0 or chars > self.longest:
            raise TemplateLimitError("it makes too much text for a chat")


_meter = _Meter()
_STEPS_OF_A_CALL = 10  # a recursive macro takes that much longer than a pass of a loop
_COPIES = 250  # that a template may make of the longest prompt: some build it anew with every message


def metered(template: jinja2.Template, values: Mapping[str, Any], max_steps: int, max_chars: int) -> Iterator[str]:
    """Render with a full meter: at most ``max_steps`` passes, calls and filters, and no value above ``max_chars``."""
    _meter.steps, _meter.chars, _meter.longest = max_steps, _COPIES * max_chars, max_chars
    yield from template.generate(values)


def template_environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    """Return the environment that transformers gives to chat templates; ``now`` is the clock of ``strftime_now``."""
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.filters = {name: _count(name, filter_) for name, filter_ in environment.filters.items()}
    environment.filters[_METERED] = _passes
    environment.filters[_JOINED] = _joined
    del environment.globals["lipsum"]  # makes any amount of text, and none that a chat needs
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _GuardedNamespace
    return environment


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with the meter in loops, calls, filters and operators that make text."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _MeteredLoops().visit(super()._parse(source, name, filename))
        return tree

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        name = getattr(function, "__name__", "")
        growth = name in _GROWING and _growth(name, getattr(function, "__self__", None), [*args, *kwargs.values()])
        _meter.spend(_STEPS_OF_A_CALL, growth)
        result = super().call(context, function, *args, **kwargs)
        _meter.spend(0, _size(result))
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator != "+":  # which at most doubles what is there
            _meter.spend(1, _growth(operator, left, [right]))
        result = self.binop_table[operator](left, right)
        _meter.spend(1, _size(result))
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def format_(*args: Any, **kwargs: Any) -> str:
            _meter.spend(1, _growth("format", value.__self__, [*args, *kwargs.values()]))
            return wrapped(*args, **kwargs)

        return format_


class _MeteredLoops(NodeTransformer):
    """Wrap what is looped over, and what ``~`` joins, in filters that count."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802  (Jinja's name for it)
        """Count the passes of the loop."""
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, _METERED, [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        """Count the characters that are joined."""
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes), _JOINED, [], [], None, None, lineno=node.lineno)


def _passes(iterable: Iterable[Any]) -> Iterator[Any]:
    for item in iterable:
        _meter.spend()
        yield item


def _joined(parts: list[Any]) -> str:
    text = "".join(map(str, parts))
    _meter.spend(1, len(text))
    return text


def _count(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    """Let a filter spend for what it works on and for what it makes."""
    skipped = 0 if getattr(filter_, "jinja_pass_arg", None) is None else 1  # the context, for some

    def counted(*args: Any, **kwargs: Any) -> Any:
        subject, *rest = args[skipped:] or (None,)
        if isinstance(subject, Iterator):
            subject = list(_passes(subject)) if name == "join" else _passes(subject)
            args = (*args[:skipped], subject, *rest)
        steps = 1 + (len(subject) if isinstance(subject, list | tuple | dict) else 0)
        _meter.spend(steps, name in _GROWING and _growth(name, subject, [*rest, *kwargs.values()]))
        result = filter_(*args, **kwargs)
        _meter.spend(0, _size(result))
        return result

    counted.__dict__.update(getattr(filter_, "__dict__", {}))  # pass_context and its like are marks on the function
    return counted


# Functions, methods and filters whose arguments are numbers of characters or of items to make.
_WIDTHS = frozenset(
    ("center", "ljust", "rjust", "zfill", "expandtabs", "indent", "wordwrap", "batch", "slice", "tojson", "to_bytes")
)
_GROWING = _WIDTHS | {"format", "format_map", "replace", "translate", "join"}
_FORMAT_WIDTH = re.compile(r"%[^a-zA-Z%]*?(\d+)|\{[^{}]*?:[^{}]*?(\d+)")


def _growth(name: str, subject: Any, arguments: list[Any]) -> int:
    """Return about how many characters or items a call can make out of nothing, so that they are spent beforehand."""
    if name == "%" and arguments and isinstance(arguments[0], tuple):
        arguments = list(arguments[0])
    numbers = [argument for argument in arguments if isinstance(argument, int) and argument > 0]
    longest = max(map(_size, arguments), default=0)
    if name == "*":
        return max(_size(subject) * sum(numbers), longest * subject if isinstance(subject, int) else 0)
    if name == "**":
        return sum(numbers) * subject.bit_length() if isinstance(subject, int) else 0
    if name in _WIDTHS:
        lines = subject.count("\n") + subject.count("\t") + 1 if isinstance(subject, str) else 1
        return sum(numbers) * lines + longest * lines
    if name in ("format", "format_map", "%") and isinstance(subject, str):
        widths = sum(int((old or new)[:9]) for old, new in _FORMAT_WIDTH.findall(subject))
        return widths + sum(numbers) * subject.count("*") + (subject.count("{") + subject.count("%")) * longest
    if name == "translate":
        return _size(subject) * max(
            (_size(value) for one in arguments if isinstance(one, dict) for value in one.values()), default=0
        )
    if name == "replace" and isinstance(subject, str) and len(arguments) >= 2 and isinstance(arguments[0], str):
        return subject.count(arguments[0]) * _size(arguments[1])
    if name == "join":
        separator, items = (subject, arguments[:1]) if isinstance(subject, str) else ("", [])
        if not items:  # the filter: the separator comes second
            separator, items = next((a for a in arguments if isinstance(a, str)), ""), [subject]
        return len(separator) * sum(_size(item) for item in items)
    return 0


def _size(value: Any) -> int:
    kind = type(value)
    if kind is str or kind is list:  # nearly always, and quicker to ask
        return len(value)
    return len(value) if isinstance(value, Sized) else 0


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which models were not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


class _Dict:
    """``dict`` of templates: a function, and not the type with all that can be reached through it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """Return a dictionary of the given keys."""
        return dict.fromkeys(*args)


class _GuardedNamespace(Namespace):
    """Jinja's ``namespace()`` without attributes that begin with an underscore, which could shadow Python's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_free(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_free(name)
        super().__setitem__(name, value)


def _check_free(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no attribute {name!r}")


class _GenerationTag(Extension):
    """``{% generation %} … {% endgeneration %}`` marks what the assistant wrote, for training; here it is just text."""

    tags = {"generation"}  # noqa: RUF012  (Jinja reads it from the class)

    def parse(self, parser: Parser) -> nodes.Node:
        """Read the tag as a block with a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller: Macro) -> str:
        return caller()
