"""Collect an answer that is not streamed and write it in one piece."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from hotseat.core.batch import TokenLogprobs
from hotseat.server.answer import Answer, NumberedDelta, Tally
from hotseat.server.logprobs import TextOffsets, TokenNames
from hotseat.server.version import fingerprint
from hotseat.text import Tokenizer

__all__ = ["ResultWriter"]


@dataclass(slots=True)
class _Choice:
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class ResultWriter:
    """Gather the deltas of all choices; ``write`` gives the response's body."""

    def __init__(self, answer: Answer, tokenizer: Tokenizer) -> None:
        self.tally = Tally(answer)
        self._answer = answer
        self._tokenizer = tokenizer
        self._names = TokenNames(tokenizer, as_ids=answer.tokens_as_ids)
        self._choices = [_Choice() for _ in range(answer.num_choices)]

    def add(self, batch: list[NumberedDelta]) -> None:
        """Take what one step brought.

        Raises:
            ApiError: a choice failed, so the answer as a whole does.
        """
        for item in batch:
            choice = self._choices[self.tally.add(item)]
            delta = item.delta
            if delta.text:
                choice.texts.append(delta.text)
            choice.token_ids += delta.token_ids
            if delta.logprobs:
                choice.logprobs += delta.logprobs
            if delta.finish_reason is not None:
                choice.finish_reason, choice.stop_reason = delta.finish_reason, delta.stop_reason

    def write(self) -> bytes:
        """Return the body; choices that have not ended count as aborted."""
        answer = self._answer
        for index in self.tally.unfinished:
            self._choices[index].finish_reason = "abort"
        shape = self._chat_choice if answer.is_chat else self._text_choice
        body = {
            "id": answer.id,
            "object": "chat.completion" if answer.is_chat else "text_completion",
            "created": answer.created,
            "model": answer.model,
            "choices": [shape(index, choice) for index, choice in enumerate(self._choices)],
            "service_tier": None,
            "system_fingerprint": fingerprint(),
            "usage": msgspec.Raw(self.tally.usage().as_json()),
        }
        if answer.is_chat:
            body |= self._prompt_fields(0)
        return msgspec.json.encode(body)

    def _chat_choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        answer = self._answer
        logprobs = None
        if answer.logprobs is not None:
            logprobs = {"content": self._names.chat(choice.logprobs, answer.logprobs), "refusal": None}
        message = {"role": answer.role, "content": answer.echo_text + "".join(choice.texts), "refusal": None}
        shaped = {"index": index, "message": message, "logprobs": logprobs}
        return shaped | self._ending(choice)

    def _text_choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        prompt = index // self._answer.n
        text = "".join(choice.texts)
        if self._answer.echo:
            text = self._prompt_text(prompt) + text
        shaped = {"index": index, "text": text, "logprobs": self._text_logprobs(prompt, choice)}
        return shaped | self._ending(choice) | self._prompt_fields(prompt)

    def _ending(self, choice: _Choice) -> dict[str, Any]:
        ending: dict[str, Any] = {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
        if self._answer.return_token_ids:
            ending["token_ids"] = choice.token_ids
        return ending

    def _prompt_fields(self, prompt: int) -> dict[str, Any]:
        facts = self.tally.prompts.get(prompt)
        fields: dict[str, Any] = {}
        if self._answer.return_token_ids:
            fields["prompt_token_ids"] = facts.token_ids if facts else None
        if self._answer.prompt_logprobs:
            fields["prompt_logprobs"] = self._names.prompt(facts.logprobs) if facts and facts.logprobs else None
        return fields

    def _prompt_text(self, prompt: int) -> str:
        source = self._answer.prompts[prompt]
        if isinstance(source, str):
            return source
        return self._tokenizer.decode(source, skip_special_tokens=self._answer.skip_special_tokens)

    def _text_logprobs(self, prompt: int, choice: _Choice) -> Any:
        answer = self._answer
        if answer.logprobs is None:
            return None
        token_ids: list[int] = []
        entries: list[TokenLogprobs | None] = []
        facts = self.tally.prompts.get(prompt)
        if answer.echo and facts and facts.logprobs is not None:
            token_ids += facts.token_ids
            entries += facts.logprobs
        token_ids += choice.token_ids
        entries += choice.logprobs
        offsets = TextOffsets(self._names, num_top=answer.logprobs, skip_special_tokens=answer.skip_special_tokens)
        return offsets.shape(token_ids, entries)
