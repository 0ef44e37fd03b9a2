"""Events of a stream: constant bytes around the JSON-escaped text, nothing built per token."""

from __future__ import annotations

import msgspec

from hotseat.generation import OutputDelta
from hotseat.server.calls import parsed_deltas
from hotseat.server.errors import ApiError
from hotseat.server.logprobs import TextOffsets, TokenNames
from hotseat.server.metadata import ResponseMetadata, UsageCounter
from hotseat.server.version import fingerprint
from hotseat.server.writers import StreamWriter
from hotseat.text import Tokenizer

__all__ = ["DONE", "ChunkWriter"]

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


class ChunkWriter(StreamWriter):
    """Turn batches of deltas into chunks of completions, the bytes of one write each."""

    def __init__(self, metadata: ResponseMetadata, tokenizer: Tokenizer) -> None:
        self.counter = UsageCounter(metadata)
        self._metadata = metadata
        self._tokenizer = tokenizer
        self._names = TokenNames(tokenizer, as_ids=metadata.tokens_as_ids)
        self._begun: set[int] = set()
        self._is_over = False
        self._early: list[OutputDelta] = []  # of prompts of which nothing is known yet
        self._offsets: dict[int, TextOffsets] = {}
        kind = b"chat.completion.chunk" if metadata.is_chat else b"text_completion"
        self._head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[{"index":' % (
            _encode(metadata.id),
            kind,
            metadata.created,
            _encode(metadata.model),
        )
        self._text_open, self._text_close = (b',"delta":{"content":', b"}") if metadata.is_chat else (b',"text":', b"")
        self._no_usage = b',"usage":null' if metadata.include_usage else b""
        self._plain_tail = self._text_close + b',"logprobs":null,"finish_reason":null}]' + self._no_usage + b"}\n\n"
        self._fingerprint = b',"system_fingerprint":' + _encode(fingerprint())
        self._is_plain = not (
            metadata.logprobs is not None
            or metadata.return_token_ids
            or metadata.continuous_usage
            or metadata.is_parsed
        )

    def write(self, batch: list[OutputDelta]) -> bytes:
        """Return the events for what one step brought; empty when there is nothing to tell.

        Raises:
            ApiError: a choice failed; the stream must end with an error event.
        """
        events: list[bytes] = []
        for delta in batch:
            if delta.prompt not in self.counter.prompts and delta.prompt_token_ids is None:
                self._early.append(delta)  # another of the prompt's sequences will tell about the prompt
                continue
            choice = self.counter.add(delta)
            if choice in self._begun and self._is_plain and delta.finish_reason is None:
                if delta.text:
                    events += (self._head, b"%d" % choice, self._text_open, _encode(delta.text), self._plain_tail)
                continue
            events += self._rare_chunks(choice, delta)
            if self._early and delta.prompt_token_ids is not None:
                early, self._early = self._early, []
                events.append(self.write(early))
        if not self.counter.unfinished and not self._is_over:
            self._is_over = True
            events += self._ending()
        return b"".join(events)

    def _rare_chunks(self, choice: int, delta: OutputDelta) -> list[bytes]:
        """Return the first and the last chunk of a choice, and those with more than text."""
        events: list[bytes] = []
        if choice not in self._begun:
            self._begun.add(choice)
            events += self._opening(choice, delta)
            if self._metadata.echo and self._metadata.max_tokens == 0 and delta.finish_reason is not None:
                return events  # the echo was all
        return events + self._full_chunk(choice, delta)

    def write_abort(self) -> bytes:
        """Return the end of a stream whose unfinished choices were aborted."""
        events: list[bytes] = []
        for choice in sorted(self.counter.unfinished):
            if choice not in self._begun and self._metadata.is_chat:
                events += self._role_chunk(choice)
            events += (self._head, b"%d" % choice, b',"delta":{}' if self._metadata.is_chat else b',"text":""')
            events += (b',"logprobs":null,"finish_reason":"abort"}]', self._no_usage, b"}\n\n")
        self.counter.unfinished.clear()
        return b"".join([*events, *self._ending()])

    def write_error(self, error: ApiError) -> bytes:
        """Return an event with the error, and the end."""
        return b"data: " + error.body() + b"\n\n" + DONE

    def _ending(self) -> list[bytes]:
        if not self._metadata.include_usage:
            return [DONE]
        head = self._head.removesuffix(b'{"index":')
        return [head, b'],"usage":', self.counter.usage().as_json(), b"}\n\n", DONE]

    def _opening(self, choice: int, delta: OutputDelta) -> list[bytes]:
        """Return what precedes the first generated text of a choice."""
        metadata = self._metadata
        if metadata.is_chat:
            return self._role_chunk(choice)
        if not metadata.echo:
            return []
        prompt = metadata.prompts[delta.prompt]
        prompt_info = self.counter.prompts[delta.prompt]
        skip = metadata.skip_special_tokens
        text = prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt, skip_special_tokens=skip)
        logprobs = b"null"
        if metadata.logprobs is not None and prompt_info.logprobs is not None:
            logprobs = _encode(self._offsets_of(choice).shape(prompt_info.token_ids, prompt_info.logprobs))
        ends = delta.finish_reason if metadata.max_tokens == 0 else None
        return [
            *(self._head, b"%d" % choice, self._text_open, _encode(text), self._text_close),
            *(b',"logprobs":', logprobs, b',"finish_reason":', _encode(ends), b',"stop_reason":null'),
            *self._token_ids(delta, is_first=True, is_echo=True),
            *(b"}]", self._usage(choice), b"}\n\n"),
        ]

    def _role_chunk(self, choice: int) -> list[bytes]:
        metadata = self._metadata
        prompt_info = self.counter.prompts.get(choice // metadata.n)
        delta = {"role": metadata.role, "content": metadata.echo_text}
        ids = (
            b',"prompt_token_ids":' + _encode(prompt_info.token_ids)
            if metadata.return_token_ids and prompt_info
            else b""
        )
        usage = self._usage(choice) if prompt_info else self._no_usage
        return [
            *(self._head, b"%d" % choice, b',"delta":', _encode(delta), b',"logprobs":null,"finish_reason":null}]'),
            *(ids, usage, b"}\n\n"),
        ]

    def _full_chunk(self, choice: int, delta: OutputDelta) -> list[bytes]:
        """Return a chunk with all that was asked for; it may be the choice's last."""
        metadata = self._metadata
        is_last = delta.finish_reason is not None
        if metadata.is_parsed:
            return self._parsed_chunks(choice, delta)
        if not (delta.text or is_last or (delta.token_ids and not self._is_plain)):
            return []
        if metadata.is_chat and not delta.text and is_last:
            payload = b',"delta":{}'
        else:
            payload = self._text_open + _encode(delta.text) + self._text_close
        chunk = [self._head, b"%d" % choice, payload, b',"logprobs":', self._logprobs(choice, delta)]
        chunk += (b',"finish_reason":', _encode(delta.finish_reason), b',"stop_reason":', _encode(delta.stop_reason))
        is_first = not metadata.is_chat and not metadata.echo and self._is_first(choice, delta)
        chunk += self._token_ids(delta, is_first=is_first)
        chunk += (b"}]", self._usage(choice))
        if is_last:
            chunk.append(self._fingerprint)
        chunk.append(b"}\n\n")
        return chunk

    def _parsed_chunks(self, choice: int, delta: OutputDelta) -> list[bytes]:
        """Return a chunk for each part of a delta: reasoning, content, calls; the end has one of its own."""
        parts = parsed_deltas(delta, shows_reasoning=self._metadata.shows_reasoning)
        if not parts and delta.token_ids and (delta.logprobs or self._metadata.return_token_ids):
            parts = [{"content": ""}]  # text that is held back, whose tokens are told of all the same
        chunks: list[bytes] = []
        for number, part in enumerate(parts):
            chunks += (self._head, b"%d" % choice, b',"delta":', _encode(part))
            if number == 0:
                chunks += (b',"logprobs":', self._logprobs(choice, delta), b',"finish_reason":null')
                chunks += self._token_ids(delta, is_first=False)
            else:
                chunks.append(b',"logprobs":null,"finish_reason":null')
            chunks += (b"}]", self._usage(choice), b"}\n\n")
        if delta.finish_reason is None:
            return chunks
        chunks += (self._head, b"%d" % choice, b',"delta":{},"logprobs":null')
        chunks += (b',"finish_reason":', _encode(delta.finish_reason), b',"stop_reason":', _encode(delta.stop_reason))
        return [*chunks, b"}]", self._usage(choice), self._fingerprint, b"}\n\n"]

    def _is_first(self, choice: int, delta: OutputDelta) -> bool:
        return self.counter.completion_tokens[choice] == len(delta.token_ids)

    def _token_ids(self, delta: OutputDelta, *, is_first: bool, is_echo: bool = False) -> list[bytes]:
        if not self._metadata.return_token_ids:
            return []
        parts = [b',"token_ids":', _encode([] if is_echo else delta.token_ids)]
        if is_first:
            parts += (b',"prompt_token_ids":', _encode(self.counter.prompts[delta.prompt].token_ids))
        return parts

    def _logprobs(self, choice: int, delta: OutputDelta) -> bytes:
        num_top, entries = self._metadata.logprobs, delta.logprobs
        if num_top is None or not entries:
            return b"null"
        if self._metadata.is_chat:
            return b'{"content":' + _encode(self._names.chat(entries, num_top)) + b"}"
        return _encode(self._offsets_of(choice).shape(delta.token_ids, entries))

    def _offsets_of(self, choice: int) -> TextOffsets:
        offsets = self._offsets.get(choice)
        if offsets is None:
            skip, num_top = self._metadata.skip_special_tokens, self._metadata.logprobs or 0
            offsets = TextOffsets(self._names, num_top=num_top, skip_special_tokens=skip)
            self._offsets[choice] = offsets
        return offsets

    def _usage(self, choice: int) -> bytes:
        if not self._metadata.continuous_usage:
            return self._no_usage
        return b',"usage":' + self.counter.usage(choice).as_json()
