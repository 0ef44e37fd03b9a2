"""Options as fields of configuration dataclasses: their types, defaults and help, and how a value is checked."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hotseat.errors import ConfigError

__all__ = ["ENVIRONMENT_PREFIX", "Option", "build", "collect"]

ENVIRONMENT_PREFIX = "HOTSEAT_"
WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_UNITS = {"s": "SECONDS", "ms": "MILLISECONDS", "bytes": "BYTES", "dir": "DIRECTORY"}

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A field of a configuration dataclass, as users see it."""

    name: str
    kinds: tuple[type, ...]  # what a value may be, most particular first; (tuple, X) is a sequence of X
    is_optional: bool  # None is a value too
    default: object  # dataclasses.MISSING: the program works it out
    help: str
    choices: tuple[str, ...]
    group: str
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)  # other words for some of the values
    is_hidden: bool = False  # known, but not in the help
    short: str = ""  # a flag of one letter
    metavar: str = ""  # what stands for the value in the help

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def is_sequence(self) -> bool:
        return self.kinds[0] is tuple

    @property
    def is_boolean(self) -> bool:
        return self.kinds == (bool,)

    def parse(self, text: str) -> Any:
        """Read one value as it is written on a command line or in the environment."""
        text = self.aliases.get(text, text)
        if self.is_optional and text.lower() in ("none", "null"):
            return None
        for kind in self.kinds[1:] if self.is_sequence else self.kinds:
            try:
                return _parse_as(kind, text)
            except ValueError:
                continue
        raise ConfigError(f"{self.name} must be {self.describe_kinds()}, not {text!r}")

    def check(self, value: object) -> Any:
        """Take a value that comes from YAML or Python; an int is a float too, a list is a sequence."""
        if isinstance(value, str):
            value = self.aliases.get(value, value)
        if value is None and self.is_optional:
            return None
        if self.is_sequence:
            values = [value] if isinstance(value, str) or not isinstance(value, Sequence) else value
            return tuple(self._check_one(item, self.kinds[1:], value) for item in values)
        return self._check_one(value, self.kinds, value)

    def _check_one(self, item: object, kinds: Iterable[type], whole: object) -> Any:
        for kind in kinds:
            if kind is float and isinstance(item, int) and not isinstance(item, bool):
                return float(item)
            if isinstance(item, kind) and (kind is bool or not isinstance(item, bool)):
                return item
            if kind is Path and isinstance(item, str):
                return Path(item).expanduser()
        raise ConfigError(f"{self.name} must be {self.describe_kinds()}, not {whole!r}")

    def describe_kinds(self) -> str:
        words = {int: "an integer", float: "a number", bool: "true or false", str: "a text", dict: "a JSON object"}
        named = " or ".join(words.get(kind, kind.__name__) for kind in self.kinds if kind is not tuple)
        return f"a sequence, each {named}" if self.is_sequence else named


def _parse_as(kind: type, text: str) -> object:
    if kind is bool:
        if text.lower() not in WORDS:
            raise ValueError
        return WORDS[text.lower()]
    if kind is dict:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError
        return value
    return Path(text).expanduser() if kind is Path else kind(text)


def collect(*groups: tuple[str, type]) -> dict[str, Option]:
    """Return the options of some dataclasses by name. A name that occurs again belongs to the first group."""
    options: dict[str, Option] = {}
    for group, cls in groups:
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            if not field.metadata.get("is_option", True):  # the program works it out
                continue
            kinds, is_optional = _kinds(hints[field.name])
            default = field.default
            if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            options.setdefault(
                field.name,
                Option(
                    name=field.name,
                    kinds=kinds,
                    is_optional=is_optional,
                    default=default,
                    help=field.metadata.get("help", ""),
                    choices=tuple(field.metadata.get("choices", ())),
                    group=group,
                    aliases=field.metadata.get("aliases", {}),
                    short=field.metadata.get("short", ""),
                    is_hidden=field.metadata.get("hidden", False),
                    metavar=field.metadata.get("metavar") or _metavar(field.name, kinds),
                ),
            )
    return options


def _kinds(hint: object) -> tuple[tuple[type, ...], bool]:
    """Return the types that an annotation allows, and whether ``None`` is allowed too."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        parts = typing.get_args(hint)
        kinds = tuple(kind for part in parts if part is not types.NoneType for kind in _kinds(part)[0])
        return kinds, types.NoneType in parts
    if origin is tuple or origin is Sequence:
        return (tuple, *_kinds(typing.get_args(hint)[0])[0]), False
    if origin is typing.Literal:
        return (str,), False
    if origin in (dict, Mapping):
        return (dict,), False
    assert isinstance(hint, type), f"an option cannot be annotated with {hint!r}"
    return (hint,), False


def _metavar(name: str, kinds: tuple[type, ...]) -> str:
    """Return what stands for a value in the help: its unit, its kind, or else the last word of the name."""
    last = name.rpartition("_")[2]
    if last in _UNITS:
        return _UNITS[last]
    if Path in kinds or last.endswith("file"):
        return "FILE"
    return "N" if set(kinds) <= {int, float} else last.upper()


def build(cls: type[T], values: Mapping[str, Any], **computed: Any) -> T:
    """Make a configuration object of the ``values`` that are its fields, and of what was ``computed``."""
    assert dataclasses.is_dataclass(cls), f"{cls} is no configuration"
    names = {field.name for field in dataclasses.fields(cls)}
    chosen = {name: value for name, value in values.items() if name in names}
    return typing.cast(T, cls(**(chosen | computed)))
