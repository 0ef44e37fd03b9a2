"""The tokens that end a turn, as far as a vocabulary and a chat template tell.

Many files name only the end of a text as EOS, and a chat model that is not stopped at the end of its turn runs on into
the user's next one.
"""

from __future__ import annotations

from hotseat.errors import InvalidRequestError
from hotseat.text.chat_template import ChatTemplate
from hotseat.text.token_bytes import TURN_ENDS
from hotseat.text.tokenizer import Tokenizer

__all__ = ["turn_end_ids"]

# Vocabularies in which <|end|> ends a message of a turn, and not the turn.
_ENDS_ONLY_A_MESSAGE = (("<|return|>", "<|call|>"), ("<|flush|>", "<|calls|>"))
_ANSWER, _THOUGHT, _CALLED = "Aq1", "Rq7", "Cq9"
_USER = {"role": "user", "content": "x"}
_CALL = {"id": "abcdefghi", "type": "function", "function": {"name": _CALLED, "arguments": {}}}


def turn_end_ids(tokenizer: Tokenizer, template: ChatTemplate) -> frozenset[int]:
    """Return the ids of control tokens that end an answer, to be joined with those that the model itself lists.

    They are the EOS, the tokens that many families end turns with, by their spelling, and what the template writes
    behind an answer.
    """
    ids = {token_id for text in TURN_ENDS if (token_id := tokenizer.special_id(text)) is not None}
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    written = _written_behind_an_answer(tokenizer, template)
    if written is not None:
        ids.add(written)
        observation = tokenizer.special_id("<|observation|>")
        if written == tokenizer.special_id("<|user|>") and observation is not None:
            ids.add(observation)  # GLM names whoever is next instead of an end; that is a tool behind a call
    if any(
        tokenizer.special_id(a) is not None and tokenizer.special_id(b) is not None for a, b in _ENDS_ONLY_A_MESSAGE
    ):
        ids -= {tokenizer.special_id("<|end|>")}
    return frozenset(ids)


def _written_behind_an_answer(tokenizer: Tokenizer, template: ChatTemplate) -> int | None:
    """Return the control token that follows an answer at once in a rendered chat.

    It is ``None`` where there is none, and where the same token also stands behind a thought or before a call: then it
    ends a part of a turn only.
    """
    behind = _text_behind(template, _ANSWER, {"content": _ANSWER}, _USER)
    ids = tokenizer.encode(behind.lstrip()[:200], add_special_tokens=False)
    if not ids or not tokenizer.is_special(ids[0]) or ids[0] == tokenizer.bos_token_id:
        return None
    end = tokenizer.token_text(ids[0])
    thought = _text_behind(template, _THOUGHT, {"content": _ANSWER, "reasoning_content": _THOUGHT})
    before_call, called, _ = _text_behind(template, _ANSWER, {"content": _ANSWER, "tool_calls": [_CALL]}).partition(
        _CALLED
    )
    inside = end in thought.partition(_ANSWER)[0] or (called and end in before_call)
    return None if inside else ids[0]


def _text_behind(template: ChatTemplate, mark: str, answer: dict[str, object], *further: dict[str, str]) -> str:
    """Return the text behind ``mark`` in a rendered chat; nothing when the template refuses the chat or omits it."""
    try:
        rendered = template.render([_USER, {"role": "assistant", **answer}, *further], add_generation_prompt=False)
    except InvalidRequestError:
        return ""
    return rendered.rpartition(mark)[2] if mark in rendered else ""
