from collections.abc import Iterator, Sequence

import pytest

from hotseat import terminal
from hotseat.core.request import SamplingParams
from hotseat.errors import InvalidRequestError
from hotseat.terminal import Conversation


class FakeLlm:
    """Answers with the number of messages, word by word; ``interrupt_at`` presses Ctrl-C before that word."""

    def __init__(self, interrupt_at: int | None = None, max_messages: int = 100) -> None:
        self.asked: list[list[dict[str, str]]] = []
        self.num_closed = 0
        self._interrupt_at = interrupt_at
        self._max_messages = max_messages

    def stream_chat(self, messages: Sequence[dict[str, str]], params: SamplingParams) -> Iterator[str]:
        self.asked.append(list(messages))
        if len(messages) > self._max_messages:
            raise InvalidRequestError("the prompt is too long", param="prompt")
        try:
            for index, word in enumerate(["I ", "heard ", str(len(messages))]):
                if index == self._interrupt_at:
                    raise KeyboardInterrupt
                yield word
        finally:
            self.num_closed += 1


def converse(llm: FakeLlm, *lines: str | type[BaseException], system: str | None = None) -> Conversation:
    """Type ``lines``, then Ctrl-D."""
    script = iter([*lines, EOFError])

    def read_line(prompt: str) -> str:
        line = next(script)
        if isinstance(line, str):
            return line
        raise line

    conversation = Conversation(llm, SamplingParams(), system)
    terminal.chat(conversation, read_line)
    return conversation


def test_answers_are_streamed_and_remembered(capsys: pytest.CaptureFixture[str]) -> None:
    llm = FakeLlm()
    conversation = converse(llm, "hello", "  ", "again")
    assert capsys.readouterr().out == "I heard 1\nI heard 3\n\n"
    assert [message["role"] for message in conversation.messages] == ["user", "assistant", "user", "assistant"]
    assert llm.asked[1] == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "I heard 1"},
        {"role": "user", "content": "again"},
    ]


def test_the_system_message_opens_every_conversation() -> None:
    llm = FakeLlm()
    converse(llm, "one", "/clear", "two", system="be kind")
    assert llm.asked[0] == [*llm.asked[1][:1], {"role": "user", "content": "one"}]
    assert llm.asked[1] == [{"role": "system", "content": "be kind"}, {"role": "user", "content": "two"}]


def test_ctrl_c_stops_an_answer_and_keeps_what_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    llm = FakeLlm(interrupt_at=2)
    conversation = converse(llm, "hello", "go on")
    assert "(stopped)" in capsys.readouterr().out
    assert conversation.messages[1] == {"role": "assistant", "content": "I heard "}
    assert llm.num_closed == 2, "a stopped answer is aborted"


def test_ctrl_c_at_the_prompt_does_not_leave(capsys: pytest.CaptureFixture[str]) -> None:
    llm = FakeLlm()
    converse(llm, KeyboardInterrupt, "hello")
    assert len(llm.asked) == 1
    assert "Ctrl-D leaves" in capsys.readouterr().out


def test_a_conversation_that_grew_too_long_says_so_and_forgets_the_last_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    conversation = converse(FakeLlm(max_messages=1), "hello", "too much")
    assert "/clear begins a new conversation" in capsys.readouterr().out
    assert len(conversation.messages) == 2
