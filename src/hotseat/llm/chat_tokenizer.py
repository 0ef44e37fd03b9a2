"""The tokenizer of a model with its chat template, as transformers' users know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotseat.errors import InvalidRequestError
from hotseat.text import ChatTemplate, Tokenizer

__all__ = ["ChatTokenizer"]


class ChatTokenizer:
    """Encode and decode texts, and render chats. Names and defaults are those of transformers' tokenizers."""

    def __init__(self, tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = chat_template

    def __len__(self) -> int:
        return self._tokenizer.vocab_size

    def __call__(self, text: str | Sequence[str], add_special_tokens: bool = True) -> dict[str, Any]:
        """Return ``input_ids`` and ``attention_mask`` of one text, or lists of them of several."""
        if isinstance(text, str):
            ids = self.encode(text, add_special_tokens)
            return {"input_ids": ids, "attention_mask": [1] * len(ids)}
        each = [self.encode(one, add_special_tokens) for one in text]
        return {"input_ids": each, "attention_mask": [[1] * len(ids) for ids in each]}

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        return self._tokenizer.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        """The id of the token that begins a text, if the model has one."""
        return self._tokenizer.bos_token_id

    @property
    def eos_token_id(self) -> int | None:
        """The id of the token that ends a text, if the model has one."""
        return self._tokenizer.eos_token_id

    @property
    def chat_template(self) -> str:
        """The template's text; empty where the model has none."""
        return self._template.source

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of ``text``.

        Raises:
            InvalidRequestError: it holds what is no character.
        """
        return self._tokenizer.encode(text, add_special_tokens)

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of ``token_ids``, control tokens included unless they are to be skipped."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._tokenizer.decode(ids, skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """Return one token for display, with U+FFFD where it is part of a character."""
        return self._tokenizer.token_text(token_id)

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **template_kwargs: Any,
    ) -> str | list[int]:
        """Return the prompt for ``conversation``, as token ids or, with ``tokenize`` false, as text.

        ``chat_template`` replaces the model's own. Raises ``InvalidRequestError`` whose ``param`` points at what is
        wrong with the messages.
        """
        for name in ("return_tensors", "padding", "truncation", "max_length", "return_dict"):
            if template_kwargs.pop(name, None):
                raise InvalidRequestError(f"{name} is not supported: a list of token ids is returned", param=name)
        template = self._template if chat_template is None else self._template.with_source(chat_template)
        text = template.render(
            conversation,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **template_kwargs,
        )
        return self._tokenizer.encode(text, add_special_tokens=False) if tokenize else text
