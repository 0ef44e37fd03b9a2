"""Serve language models with continuous batching: the batch is re-formed at every step.

from hotseat import LLM, SamplingParams
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotseat.core.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
    from hotseat.llm import (
        LLM,
        AsyncLLM,
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        EngineArgs,
        Logprob,
        RequestMetrics,
        RequestOutput,
        TextPrompt,
        TokensPrompt,
    )

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "Logprob",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]

__version__ = "0.1.0"

_CORE, _LLM = "hotseat.core.sampling_params", "hotseat.llm"
_HOME = {
    "LLM": _LLM,
    "AsyncLLM": _LLM,
    "CompletionOutput": _LLM,
    "EmbeddingOutput": _LLM,
    "EmbeddingRequestOutput": _LLM,
    "EngineArgs": _LLM,
    "Logprob": _LLM,
    "RequestMetrics": _LLM,
    "RequestOutput": _LLM,
    "RequestOutputKind": _CORE,
    "SamplingParams": _CORE,
    "StructuredOutputsParams": _CORE,
    "TextPrompt": _LLM,
    "TokensPrompt": _LLM,
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
