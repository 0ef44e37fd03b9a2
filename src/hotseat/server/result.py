"""Collect an answer that is not streamed and write it in one piece."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from hotseat.core.batch import TokenLogprobs
from hotseat.formats import CallDelta
from hotseat.generation import OutputDelta
from hotseat.server.calls import parsed_message
from hotseat.server.logprobs import TextOffsets, TokenNames
from hotseat.server.metadata import ResponseMetadata, UsageCounter
from hotseat.server.pieces import encode_list
from hotseat.server.version import fingerprint
from hotseat.server.writers import WholeWriter
from hotseat.text import Tokenizer

__all__ = ["ResultWriter"]


@dataclass(slots=True)
class _Choice:
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[CallDelta] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class ResultWriter(WholeWriter):
    """Gather the deltas of all choices; ``write`` gives the response's body."""

    def __init__(self, metadata: ResponseMetadata, tokenizer: Tokenizer) -> None:
        self.counter = UsageCounter(metadata)
        self._metadata = metadata
        self._tokenizer = tokenizer
        self._names = TokenNames(tokenizer, as_ids=metadata.tokens_as_ids)
        self._choices = [_Choice() for _ in range(metadata.num_choices)]

    def add(self, batch: list[OutputDelta]) -> None:
        """Take what one step brought.

        Raises:
            ApiError: a choice failed, so the answer as a whole does.
        """
        for delta in batch:
            choice = self._choices[self.counter.add(delta)]
            if delta.text:
                choice.texts.append(delta.text)
            if delta.reasoning:
                choice.reasoning.append(delta.reasoning)
            if delta.calls:
                choice.calls += delta.calls
            choice.token_ids += delta.token_ids
            if delta.logprobs:
                choice.logprobs += delta.logprobs
            if delta.finish_reason is not None:
                choice.finish_reason, choice.stop_reason = delta.finish_reason, delta.stop_reason

    def write(self) -> bytes:
        """Return the body; choices that have not ended count as aborted."""
        metadata = self._metadata
        for index in self.counter.unfinished:
            self._choices[index].finish_reason = "abort"
        shape = self._chat_choice if metadata.is_chat else self._text_choice
        body = {
            "id": metadata.id,
            "object": "chat.completion" if metadata.is_chat else "text_completion",
            "created": metadata.created,
            "model": metadata.model,
            "choices": encode_list(shape(index, choice) for index, choice in enumerate(self._choices)),
            "service_tier": None,
            "system_fingerprint": fingerprint(),
            "usage": msgspec.Raw(self.counter.usage().as_json()),
        }
        if metadata.is_chat:
            body |= self._prompt_fields(0)
        return msgspec.json.encode(body)

    def _chat_choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        metadata = self._metadata
        logprobs = None
        if metadata.logprobs is not None:
            logprobs = {"content": encode_list(self._names.chat(choice.logprobs, metadata.logprobs)), "refusal": None}
        text = metadata.echo_text + "".join(choice.texts)
        message: dict[str, Any] = {"role": metadata.role, "content": text, "refusal": None}
        if metadata.is_parsed:
            message |= parsed_message(text, choice.reasoning, choice.calls, shows_reasoning=metadata.shows_reasoning)
        shaped = {"index": index, "message": message, "logprobs": logprobs}
        return shaped | self._ending(choice)

    def _text_choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        prompt = index // self._metadata.n
        text = "".join(choice.texts)
        if self._metadata.echo:
            text = self._prompt_text(prompt) + text
        shaped = {"index": index, "text": text, "logprobs": self._text_logprobs(prompt, choice)}
        return shaped | self._ending(choice) | self._prompt_fields(prompt)

    def _ending(self, choice: _Choice) -> dict[str, Any]:
        ending: dict[str, Any] = {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
        if self._metadata.return_token_ids:
            ending["token_ids"] = choice.token_ids
        return ending

    def _prompt_fields(self, prompt: int) -> dict[str, Any]:
        prompt_info = self.counter.prompts.get(prompt)
        fields: dict[str, Any] = {}
        if self._metadata.return_token_ids:
            fields["prompt_token_ids"] = prompt_info.token_ids if prompt_info else None
        if self._metadata.prompt_logprobs:
            fields["prompt_logprobs"] = (
                encode_list(self._names.prompt(prompt_info.logprobs)) if prompt_info and prompt_info.logprobs else None
            )
        return fields

    def _prompt_text(self, prompt: int) -> str:
        source = self._metadata.prompts[prompt]
        if isinstance(source, str):
            return source
        return self._tokenizer.decode(source, skip_special_tokens=self._metadata.skip_special_tokens)

    def _text_logprobs(self, prompt: int, choice: _Choice) -> Any:
        metadata = self._metadata
        if metadata.logprobs is None:
            return None
        token_ids: list[int] = []
        entries: list[TokenLogprobs | None] = []
        prompt_info = self.counter.prompts.get(prompt)
        if metadata.echo and prompt_info and prompt_info.logprobs is not None:
            token_ids += prompt_info.token_ids
            entries += prompt_info.logprobs
        token_ids += choice.token_ids
        entries += choice.logprobs
        offsets = TextOffsets(self._names, num_top=metadata.logprobs, skip_special_tokens=metadata.skip_special_tokens)
        return offsets.shape(token_ids, entries)
