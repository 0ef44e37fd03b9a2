"""Splitting of an answer, while it comes, into reasoning, content and calls.

What is told does not depend on how the text is cut into pieces: text is held back only while it may be the beginning
of a marker. Arguments in JSON are handed on as the model wrote them, byte for byte; where they end is found by the
rules of JSON, so a marker within a string is a part of the string.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hotseat.formats.notation import OutputFormat
from hotseat.formats.parts import CallDelta, ParsedText, PartsWriter
from hotseat.formats.readers import CallReader, News, Outcome
from hotseat.formats.values import SPACE, partial

__all__ = ["OutputParser"]


class _State(enum.Enum):
    START = "start"  # nothing but blanks so far, or since the reasoning ended
    REASONING = "reasoning"
    CONTENT = "content"
    CALLS = "calls"


class OutputParser:
    """Splits one answer. ``tools`` are the schemas of the parameters by name; none: no call is looked for.

    ``in_reasoning``: the prompt has opened it already. What follows the call number ``max_calls`` is left out.
    """

    def __init__(
        self,
        output_format: OutputFormat,
        *,
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        in_reasoning: bool = False,
        max_calls: int | None = None,
    ) -> None:
        self._max_calls = max_calls
        self._format = output_format.tools if tools is not None else None
        self._tools = tools or {}
        self._open, self._close = output_format.reasoning or ("", "")
        self._state = _State.REASONING if in_reasoning else _State.START
        self._buffer = ""
        self._held = ""  # what announced the calls; content again if none comes
        self._reader: CallReader | None = None
        self._skips_newlines = in_reasoning
        self._num_calls = self._num_ended = 0
        self._writer = PartsWriter()
        self._steps: dict[_State, Callable[[], bool]] = {
            _State.START: self._start,
            _State.REASONING: self._reason,
            _State.CONTENT: self._write,
            _State.CALLS: self._read_calls,
        }

    @property
    def is_reasoning(self) -> bool:
        """Tell whether the reasoning goes on, as far as is known."""
        return self._state is _State.REASONING

    @property
    def is_done(self) -> bool:
        """Tell whether no more is wanted: the last call that was asked for is complete."""
        return self._max_calls is not None and self._num_ended >= self._max_calls

    def feed(self, text: str) -> ParsedText:
        """Return what ``text``, and what was held back before it, turned out to be."""
        self._buffer += text
        while self._buffer and not self.is_done and self._steps[self._state]():
            pass
        return self._writer.take()

    def finish(self) -> ParsedText:
        """Return what is left at the end of the answer."""
        buffer, state = self._buffer, self._state
        self._buffer = ""
        if self.is_done:
            return self._writer.take()
        if state is _State.REASONING:
            self._writer.reasoning(buffer)
        elif state is _State.CALLS and self._reader is not None:
            news = self._reader.finish(buffer)
            if news:
                self._tell(news)
            elif self._held:
                self._writer.content(self._held + buffer)
        elif buffer.strip() or not self._num_calls:
            self._writer.content(buffer)
        return self._writer.take()

    def _go(self, state: _State, buffer: str) -> bool:
        self._state, self._buffer = state, buffer
        return True

    def _go_to_calls(self, held: str, buffer: str) -> bool:
        assert self._format is not None, "calls need tools"
        self._reader, self._held = self._format.reader(self._tools), held
        return self._go(_State.CALLS, buffer)

    # One for each state: use up some of the buffer and return True, or wait for more text

    def _start(self) -> bool:
        text = self._buffer.lstrip(SPACE)
        if self._open:
            if text.startswith(self._open):
                self._skips_newlines = True
                return self._go(_State.REASONING, text[len(self._open) :])
            if self._open.startswith(text):
                return False
        if self._skips_newlines:  # after the reasoning
            if not text:
                return False
            self._buffer = text
        if self._format is not None and self._format.begins is not None:
            begins = self._format.begins(text)
            if begins is None:
                return False
            if begins:
                return self._go_to_calls("", text)
        return self._go(_State.CONTENT, self._buffer)

    def _reason(self) -> bool:
        if self._skips_newlines:
            self._buffer = self._buffer.lstrip("\n")
            self._skips_newlines = not self._buffer
        at = self._buffer.find(self._close)
        if at >= 0:
            self._writer.reasoning(self._buffer[:at])
            self._open, self._skips_newlines = "", True
            return self._go(_State.START, self._buffer[at + len(self._close) :])
        cut = len(self._buffer) - partial(self._buffer, self._close)
        self._writer.reasoning(self._buffer[:cut])
        self._buffer = self._buffer[cut:]
        return False

    def _write(self) -> bool:
        if self._format is None or not self._format.begin:
            self._writer.content(self._buffer)
            self._buffer = ""
            return False
        begin = self._format.begin
        at = self._buffer.find(begin)
        cut = at if at >= 0 else len(self._buffer) - partial(self._buffer, begin)
        text = self._buffer[:cut].rstrip(SPACE)  # blanks before a call are no content
        self._writer.content(text)
        if at >= 0:
            return self._go_to_calls(self._buffer[len(text) : at + len(begin)], self._buffer[at + len(begin) :])
        self._buffer = self._buffer[len(text) :]
        return False

    def _read_calls(self) -> bool:
        assert self._reader is not None, "calls have a reader"
        reading = self._reader.read(self._buffer)
        used, self._buffer = self._buffer[: reading.size], self._buffer[reading.size :]
        if reading.news:
            self._held = ""
            self._tell(reading.news)
        elif self._held:
            self._held += used
        elif reading.is_text:
            self._writer.content(used)
        self._num_ended += reading.ends_call
        if reading.is_text or reading.outcome is Outcome.END:
            self._writer.content(self._held)
            self._held = ""
        if reading.outcome is Outcome.END:
            self._state = _State.CONTENT
        return reading.outcome is not Outcome.MORE

    def _tell(self, news: Sequence[News]) -> None:
        for name, arguments in news:
            self._num_calls += name is not None
            self._writer.call(CallDelta(self._num_calls - 1, name, arguments))
