"""Prompts as vLLM's users write them, and what is said of those that cannot be taken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from hotseat.errors import InvalidRequestError

__all__ = ["Prompt", "TextPrompt", "TokensPrompt", "read_prompt", "read_prompts", "refuse_lora"]


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt as token ids."""

    prompt_token_ids: list[int]


Prompt: TypeAlias = str | Sequence[int] | TextPrompt | TokensPrompt | Mapping[str, Any]


def read_prompts(prompts: Any, prompt_token_ids: Any = None) -> list[str | list[int]]:
    """Return all prompts of a call: one, or several of any kind.

    Raises:
        InvalidRequestError: one is no prompt.
    """
    if prompts is None and prompt_token_ids is not None:
        prompts = prompt_token_ids
    is_one = isinstance(prompts, str | Mapping) or not isinstance(prompts, Iterable) or _is_ids(prompts)
    return [read_prompt(prompt) for prompt in ([prompts] if is_one else prompts)]


def read_prompt(prompt: object) -> str | list[int]:
    """Return a text or token ids.

    Raises:
        InvalidRequestError: it is neither, or has parts that are no text.
    """
    if isinstance(prompt, str):
        return prompt
    if _is_ids(prompt):
        return list(prompt)  # type: ignore[call-overload, no-any-return]
    if isinstance(prompt, Mapping):
        for name in ("multi_modal_data", "prompt_embeds", "encoder_prompt"):
            if prompt.get(name) is not None:
                raise InvalidRequestError(f"{name} is not supported: prompts are text or token ids", param="prompts")
        if isinstance(text := prompt.get("prompt"), str) and prompt.get("prompt_token_ids") is None:
            return text
        if isinstance(ids := prompt.get("prompt_token_ids"), Sequence) and not isinstance(ids, str):
            return list(ids)
    raise InvalidRequestError(
        "a prompt is a text, token ids, {'prompt': text} or {'prompt_token_ids': [integers]}", param="prompts"
    )


def refuse_lora(lora_request: object) -> None:
    """Refuse what asks for an adapter.

    Raises:
        InvalidRequestError: it is not ``None``.
    """
    if lora_request is not None:
        raise InvalidRequestError(
            "lora_request is not supported: merge the adapter into the model first", param="lora_request"
        )


def _is_ids(prompt: object) -> bool:
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str | bytes)
        and bool(prompt)
        and all(type(token_id) is int for token_id in prompt)
    )
