"""Checks of options and model before a port is taken or anything is loaded."""

from __future__ import annotations

from pathlib import Path

from hotseat.core.policies import policy_for
from hotseat.errors import ModelError
from hotseat.models.load import locate
from hotseat.wiring.components import make_policy
from hotseat.wiring.engine_args import EngineArgs

__all__ = ["precheck"]


def precheck(args: EngineArgs) -> None:
    """Check the options, and that a model that is named by a path is there.

    Raises:
        ConfigError: an option is wrong whatever the model.
        ModelError: there is no such file or directory, or it is none of a model.
    """
    config = args.provisional_configs()
    if make_policy(config) is None:
        policy_for(config)
    model = args.model.model
    if model is None or not (Path(model).expanduser().exists() or model.startswith(("/", ".", "~"))):
        return  # fetched later, if need be
    path, _ = locate(model)
    if path.is_dir():
        if not (path / "config.json").is_file() and not any(path.glob("*.gguf")):
            raise ModelError(f"{path} has neither a config.json nor a GGUF file")
        return
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{path} is not a GGUF file; a model is a GGUF file, a Hugging Face directory or a hub id")
