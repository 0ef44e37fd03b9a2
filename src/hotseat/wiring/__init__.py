"""The composition root: turn options into objects and wire them, up to the HTTP server.

Must not know: the command line, the environment.
"""

from hotseat.models import default_cache_dir
from hotseat.wiring.components import EngineComponents, fetch, make_components, make_policy
from hotseat.wiring.engine_args import ENGINE_OPTIONS, CapacityOptions, EngineArgs, ModelOptions
from hotseat.wiring.inspect import inspect
from hotseat.wiring.supported import list_models, remove_model

__all__ = [
    "ENGINE_OPTIONS",
    "CapacityOptions",
    "EngineArgs",
    "EngineComponents",
    "ModelOptions",
    "default_cache_dir",
    "fetch",
    "inspect",
    "list_models",
    "make_components",
    "make_policy",
    "remove_model",
]
