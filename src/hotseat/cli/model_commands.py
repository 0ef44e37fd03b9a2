"""The commands about models on this machine: fetch, list, delete, describe."""

from __future__ import annotations

import sys

from hotseat import options
from hotseat.cli.command import LOG_OPTIONS, Command, Invocation
from hotseat.errors import ConfigError

__all__ = ["MODEL_COMMANDS"]


def _pull(invocation: Invocation) -> int:
    from hotseat import wiring

    path = wiring.fetch(options.build(wiring.ModelOptions, invocation.values), show_progress=sys.stderr.isatty())
    sys.stdout.write(f"{path}\n")
    return 0


def _models(invocation: Invocation) -> int:
    from hotseat import wiring

    sys.stdout.write(wiring.list_models(invocation.values["cache_dir"]))
    return 0


def _rm(invocation: Invocation) -> int:
    from hotseat import wiring

    name = invocation.values.get("model")
    if name is None:
        raise ConfigError("a model is missing: hotseat rm MODEL; `hotseat models` lists those that are there")
    sys.stdout.write(wiring.remove_model(name, invocation.values["cache_dir"]))
    return 0


def _inspect(invocation: Invocation) -> int:
    from hotseat import wiring

    sys.stdout.write(wiring.inspect(options.build(wiring.ModelOptions, invocation.values)))
    return 0


def _pull_options() -> dict[str, options.Option]:
    from hotseat import wiring

    known = options.collect(("model", wiring.ModelOptions))
    return {name: known[name] for name in ("model", "revision", "hf_token", "offline", "cache_dir")} | LOG_OPTIONS


def _models_options() -> dict[str, options.Option]:
    return {name: option for name, option in _pull_options().items() if name == "cache_dir"}


def _rm_options() -> dict[str, options.Option]:
    return {name: option for name, option in _pull_options().items() if name in ("model", "cache_dir")}


def _inspect_options() -> dict[str, options.Option]:
    return {name: option for name, option in _pull_options().items() if name != "offline"}


MODEL_COMMANDS: dict[str, Command] = {
    "pull": Command(
        help="fetch a model, so that later starts need no network",
        known=_pull_options,
        run=_pull,
        positional=("model",),
        log_level="info",
    ),
    "models": Command(
        help="list the models on this machine, and the architectures and tensor types that are supported",
        known=_models_options,
        run=_models,
    ),
    "rm": Command(help="delete a model from the cache", known=_rm_options, run=_rm, positional=("model",)),
    "inspect": Command(
        help="say what a model is, what memory it takes and what would be refused, without loading it",
        known=_inspect_options,
        run=_inspect,
        positional=("model",),
        log_level="warning",
    ),
}
