"""The result of loading a model: everything that a runner, a tokenizer and a sampler need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from hotseat.models.file_bytes import FileBytes
from hotseat.models.spec import DecoderSpec
from hotseat.models.weights import Weights

__all__ = ["GenerationConfig", "LoadedModel", "TokenizerSource", "token_ids"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSource:
    """The source of the tokenizer.

    ``tokenizer.json``: a file at ``path``; ``config`` is the content of tokenizer_config.json (empty when absent).
    ``gguf``: ``metadata`` holds the file's ``tokenizer.*`` pairs and ``general.architecture`` under their own names, as
    plain Python values.
    """

    kind: Literal["tokenizer.json", "gguf"]
    path: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """The model's own defaults for generation; ``None`` where it has none."""

    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model that is ready to be given to a runner; its weights are mostly views of ``files``."""

    name: str
    spec: DecoderSpec
    weights: Weights
    tokenizer_source: TokenizerSource
    chat_template: str | None
    generation_config: GenerationConfig
    path: Path
    files: tuple[FileBytes, ...] = ()

    def without_weights(self) -> LoadedModel:
        """Return what is left when a runner has packed the weights: nothing that holds on to the files.

        Raises:
            ModelError: a file was written to since it was opened, so that the weights may be of two models.
        """
        for file in self.files:
            file.check_unchanged()
        return replace(self, weights={}, files=())


def token_ids(values: Iterable[object], vocab_size: int) -> tuple[int, ...]:
    """Return those values that are ids of the vocabulary, each once: no other could ever be sampled."""
    return tuple(dict.fromkeys(value for value in values if type(value) is int and 0 <= value < vocab_size))
