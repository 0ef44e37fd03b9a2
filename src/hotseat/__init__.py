"""Serve language models with continuous batching: the batch is re-formed at every step.

from hotseat import LLM, SamplingParams
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotseat.core.request import SamplingParams, StructuredOutputsParams
    from hotseat.llm import LLM, CompletionOutput, Logprob, RequestOutput

__all__ = [
    "LLM",
    "CompletionOutput",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]

__version__ = "0.1.0"

_HOME = {
    "CompletionOutput": "hotseat.llm",
    "LLM": "hotseat.llm",
    "Logprob": "hotseat.llm",
    "RequestOutput": "hotseat.llm",
    "SamplingParams": "hotseat.core.request",
    "StructuredOutputsParams": "hotseat.core.request",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for, so that ``import hotseat`` itself costs nothing."""
    if name not in _HOME:
        raise AttributeError(f"module 'hotseat' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
