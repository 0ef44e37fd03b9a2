"""Runners that spell texts, and the limits of the model that they stand for."""

from __future__ import annotations

from collections.abc import Callable

from generation.byte_tokenizer import EOS, byte_tokenizer, ids_of
from hotseat.core.request import RequestId
from hotseat.generation import ModelLimits

MAX_MODEL_LEN = 512
PROMPT = "Once"  # five tokens with the BOS


def spelling(*texts: str, num_prompt: int = 1 + len(PROMPT)) -> Callable[[RequestId, int], int]:
    """Return a runner's script: sequence i spells ``texts[i]`` and then EOS."""
    scripts = [[*ids_of(text), EOS] for text in texts]

    def script(request_id: RequestId, position: int) -> int:
        _, slash, index = request_id.rpartition("/")
        script = scripts[int(index) if slash else 0]
        return script[min(position - num_prompt, len(script) - 1)]

    return script


def limits(**options: object) -> ModelLimits:
    return ModelLimits(**({"max_model_len": MAX_MODEL_LEN, "vocab_size": byte_tokenizer().vocab_size} | options))  # type: ignore[arg-type]
