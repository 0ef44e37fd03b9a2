"""Turn a model on disk or on a hub into a ``DecoderSpec`` and its weights.

Must not know: requests, batches, kernels, HTTP.
"""

from hotseat.models.cached import CachedModel, cached_models, remove_cached
from hotseat.models.catalog import DEFAULT_MODEL, CatalogModel, cached_path, default_cache_dir, ensure_model
from hotseat.models.dequantize import SUPPORTED_KINDS
from hotseat.models.families import FAMILIES
from hotseat.models.file_bytes import LOAD_FORMATS, LoadFormat
from hotseat.models.inspection import Inspection, inspect_model
from hotseat.models.load import load
from hotseat.models.loaded import GenerationConfig, LoadedModel, TokenizerSource
from hotseat.models.rope import SUPPORTED_ROPE_TYPES
from hotseat.models.spec import DecoderSpec, ExpertsSpec, LayerSpec, RopeSpec, is_matrix, layer_slots, slot_shapes
from hotseat.models.weights import Weights, WeightTensor

__all__ = [
    "DEFAULT_MODEL",
    "FAMILIES",
    "LOAD_FORMATS",
    "SUPPORTED_KINDS",
    "SUPPORTED_ROPE_TYPES",
    "CachedModel",
    "CatalogModel",
    "DecoderSpec",
    "ExpertsSpec",
    "GenerationConfig",
    "Inspection",
    "LayerSpec",
    "LoadFormat",
    "LoadedModel",
    "RopeSpec",
    "TokenizerSource",
    "WeightTensor",
    "Weights",
    "cached_models",
    "cached_path",
    "default_cache_dir",
    "ensure_model",
    "inspect_model",
    "is_matrix",
    "layer_slots",
    "load",
    "remove_cached",
    "slot_shapes",
]
