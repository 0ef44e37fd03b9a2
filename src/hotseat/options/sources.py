"""Values of options from keywords, a YAML file and the environment, each checked by name and type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hotseat.errors import ConfigError
from hotseat.options.option import ENVIRONMENT_PREFIX, Option

__all__ = ["from_environment", "from_file", "from_keywords", "misspelt_variables", "unknown_option"]

NEAR = 0.75  # how much two names have in common when one of them may be a slip; below are Kubernetes' own variables


def from_keywords(options: Mapping[str, Option], values: Mapping[str, object], where: str) -> dict[str, Any]:
    """Check ``values`` by name; ``where`` says in messages whose they are.

    Raises:
        ConfigError: a name is unknown (the message has the nearest known one), or a value is of a wrong type.
    """
    checked = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name not in options:
            raise unknown_option(str(key), options, where)
        checked[name] = options[name].check(value)
    return checked


def from_file(options: Mapping[str, Option], path: str) -> dict[str, Any]:
    """Read a flat YAML file whose keys are names of flags.

    Raises:
        ConfigError: it cannot be read, is no flat mapping, or has an unknown key or a value of a wrong type.
    """
    values: dict[str, Any] = {}
    for line, key, value in _yaml_lines(path):
        where = f"{path}, line {line}"
        name, wanted = key.replace("-", "_"), value
        if name not in options and name.startswith("no_") and isinstance(value, bool):
            name, wanted = name.removeprefix("no_"), not value  # as the flag is written
        if name not in options:
            raise ConfigError(f"{where}: {unknown_option(key, options, '')}")
        if name in values:
            raise ConfigError(f"{where}: {key} is in the file twice")
        try:
            values[name] = options[name].check(wanted)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    return values


def _yaml_lines(path: str) -> Iterator[tuple[int, str, Any]]:
    """Yield line, key and value of each entry of a flat mapping."""
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
        root, content = yaml.compose(text, Loader=yaml.SafeLoader), yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path!r} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        raise ConfigError(f"{path}{line}: this is not YAML: {getattr(error, 'problem', None) or error}") from None
    if content is None:
        return
    if not isinstance(content, dict) or not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{path}: there must be `flag: value` lines")
    for key_node, _ in root.value:
        key = yaml.SafeLoader("").construct_object(key_node)
        yield key_node.start_mark.line + 1, str(key), content[key]


def from_environment(
    options: Mapping[str, Option], environment: Mapping[str, str], prefix: str = ENVIRONMENT_PREFIX
) -> dict[str, Any]:
    """Return what the variables that begin with ``prefix`` say; an empty variable says nothing."""
    values: dict[str, Any] = {}
    for name, option in options.items():
        text = environment.get(prefix + name.upper(), "")
        # Kubernetes sets HOTSEAT_PORT=tcp://… in every pod beside a service that is named hotseat.
        if not text or (name == "port" and text.startswith("tcp://")):
            continue
        try:
            values[name] = (
                tuple(option.parse(part) for part in text.split(",")) if option.is_sequence else option.parse(text)
            )
        except ConfigError as error:
            raise ConfigError(f"{prefix}{name.upper()}: {error}") from None
    return values


def misspelt_variables(
    known: Iterable[str], environment: Mapping[str, str], prefix: str = ENVIRONMENT_PREFIX
) -> Iterator[tuple[str, str]]:
    """Yield the variables that name no option, but nearly one, with the variable that may be meant."""
    names = {prefix + name.upper() for name in (*known, "config")}
    bare = {name.removeprefix(prefix): name for name in names}
    for variable in environment:
        if variable.startswith(prefix) and variable not in names:
            near = get_close_matches(variable.removeprefix(prefix).upper(), bare, n=1, cutoff=NEAR)
            if near:
                yield variable, bare[near[0]]


def unknown_option(name: str, known: Iterable[str], where: str) -> ConfigError:
    """Return the error for ``name``, which names the nearest option there is."""
    wanted = name.lstrip("-").replace("-", "_")
    near = get_close_matches(wanted, list(known), n=1, cutoff=NEAR)
    style = (lambda text: "--" + text.replace("_", "-")) if name.startswith("--") else str
    hint = f"; did you mean {style(near[0])}?" if near else ""
    return ConfigError(f"unknown option {name}{' ' + where if where else ''}{hint}")
