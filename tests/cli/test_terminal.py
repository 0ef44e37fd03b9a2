import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hotseat import cli
from hotseat.cli import terminal
from hotseat.cli.terminal import Conversation
from hotseat.core.request import SamplingParams
from hotseat.errors import InvalidRequestError
from server.processes import Process
from tiny_models import write_tiny_hf_model

ROOT = Path(__file__).resolve().parents[1]


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
    assert capsys.readouterr().out == "I heard 1\nI heard 3\n"
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


def test_ctrl_c_ends_all_when_nobody_is_at_the_keyboard() -> None:
    with pytest.raises(KeyboardInterrupt):
        converse(llm := FakeLlm(), "hello", KeyboardInterrupt, "never sent")
    assert len(llm.asked) == 1
    with pytest.raises(KeyboardInterrupt):
        converse(llm := FakeLlm(interrupt_at=1), "hello", "never sent")
    assert (len(llm.asked), llm.num_closed) == (1, 1)


@pytest.mark.parametrize("command", ["/exit", "/quit", "/bye"])
def test_words_that_leave(command: str) -> None:
    converse(llm := FakeLlm(), "hello", command, "never sent")
    assert len(llm.asked) == 1


@pytest.mark.parametrize("command", ["/leave", "/x", "/Clear now", "/", "/?"])
def test_an_unknown_command_is_not_sent(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    converse(llm := FakeLlm(), command)
    assert llm.asked == []
    assert capsys.readouterr().out == f"unknown command {command.split()[0]}; /help lists those there are\n"


@pytest.mark.parametrize("line", ["/etc/hosts is what?", "/2 is half", "say /exit"])
def test_a_line_that_only_looks_like_a_command_is_sent(line: str) -> None:
    converse(llm := FakeLlm(), line)
    assert llm.asked[0][0]["content"] == line


def test_a_conversation_that_grew_too_long_says_so_and_forgets_the_last_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    conversation = converse(FakeLlm(max_messages=1), "hello", "too much")
    assert "/clear begins a new conversation" in capsys.readouterr().out
    assert len(conversation.messages) == 2


CHILD = """
import fcntl, select, sys, termios
from hotseat import cli
from hotseat.cli import terminal
from hotseat.core.request import SamplingParams

fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C is a signal

class Llm:
    def stream_chat(self, messages, params):
        yield "I heard " + messages[-1]["content"]
        if messages[-1]["content"] == "wait":
            select.select([0], [], [])  # until a key is pressed
        yield "!"

before = termios.tcgetattr(0)
conversation = terminal.Conversation(Llm(), SamplingParams())
terminal.chat(conversation)
assert termios.tcgetattr(0) == before, "the terminal is left as it was found"
print("left after", len(conversation.messages))
"""


class Keyboard:
    """A chat at a terminal, and somebody who types."""

    def __init__(self) -> None:
        self._here, there = pty.openpty()
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "dumb"}
        self._child = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=there,
            stdout=there,
            stderr=there,
            env=environment,
            start_new_session=True,
        )
        os.close(there)
        self.seen = ""

    def type(self, keys: str) -> None:
        os.write(self._here, keys.encode())

    def interrupt(self, answer: str) -> None:
        """Press Ctrl-C. Python overlooks one that comes just before the prompt begins to wait, until the next one."""
        for patience_s in (5.0, 20.0):
            self.type("\x03")
            if self.comes(answer, patience_s):
                return
        raise AssertionError(f"{answer!r} did not come after {self.seen!r}")

    def wait_for(self, text: str) -> None:
        """Read until ``text`` is on the screen, after what was waited for before."""
        assert self.comes(text, 20.0), f"{text!r} did not come after {self.seen!r}"

    def comes(self, text: str, patience_s: float) -> bool:
        while text not in self.seen:
            ready, _, _ = select.select([self._here], [], [], patience_s)
            if not ready:
                return False
            try:
                self.seen += os.read(self._here, 4096).decode()
            except OSError:  # the other side is closed
                raise AssertionError(f"{text!r} did not come before the end: {self.seen!r}") from None
        self.seen = self.seen.partition(text)[2]
        return True

    def close(self) -> int:
        os.close(self._here)
        self._child.kill()
        return self._child.wait()


@pytest.fixture
def keyboard() -> Iterator[Keyboard]:
    keyboard = Keyboard()
    yield keyboard
    keyboard.close()


def test_ctrl_d_during_an_answer_leaves_after_it(keyboard: Keyboard) -> None:
    keyboard.wait_for("> ")
    keyboard.type("wait\n")
    keyboard.wait_for("I heard wait")
    keyboard.type("\x04")
    keyboard.wait_for("!")
    keyboard.wait_for("left after 2")


def test_a_line_that_is_typed_during_an_answer_is_sent_after_it(keyboard: Keyboard) -> None:
    keyboard.wait_for("> ")
    keyboard.type("wait\n")
    keyboard.wait_for("I heard wait")
    keyboard.type("more\n")
    keyboard.wait_for("I heard more!")
    keyboard.wait_for("> ")
    keyboard.type("\x04")
    keyboard.wait_for("left after 4")


def test_ctrl_c_stops_an_answer_and_keeps_what_was_said(keyboard: Keyboard) -> None:
    keyboard.wait_for("> ")
    keyboard.type("wait\n")
    keyboard.wait_for("I heard wait")
    keyboard.type("\x03")
    keyboard.wait_for("(stopped)")
    keyboard.wait_for("> ")
    keyboard.type("\x04")
    keyboard.wait_for("left after 2")


def test_ctrl_c_at_the_prompt_leaves_when_it_comes_twice(keyboard: Keyboard) -> None:
    keyboard.wait_for("> ")
    keyboard.interrupt("Ctrl-C again, leaves")
    keyboard.wait_for("> ")
    keyboard.type("hello\n")
    keyboard.wait_for("I heard hello!")
    keyboard.wait_for("> ")
    keyboard.interrupt("Ctrl-C again, leaves")
    keyboard.wait_for("> ")
    keyboard.interrupt("left after 2")


def test_lines_that_go_on_are_one_message() -> None:
    llm = FakeLlm()
    converse(llm, "one \\", "two", '"""first', "second", 'third"""', '"""short"""')
    assert [asked[-1]["content"] for asked in llm.asked] == ["one \ntwo", "first\nsecond\nthird", "short"]


@pytest.mark.parametrize("cut", [1, 3, 7, 100])
def test_lines_are_broken_between_words_however_the_pieces_are_cut(cut: int) -> None:
    text = "The quick brown fox jumps over the lazy dog.\nAnd a-word-that-is-longer-than-the-line-itself follows it."
    wrap = terminal.WordWrap(20)
    shown = ""
    for part in re.split(r"(\x08|\x1b\[K)", "".join(wrap.feed(text[at : at + cut]) for at in range(0, len(text), cut))):
        shown = shown[:-1] if part == "\b" else shown if part == "\x1b[K" else shown + part
    assert shown.split() == text.split()
    lines = shown.split("\n")
    assert all(len(line.rstrip()) <= 20 for line in lines if "a-word" not in line)  # that the terminal breaks
    assert lines[0].strip() == "The quick brown fox"


def test_a_chat_with_a_server_streams_remembers_and_says_what_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_tiny_hf_model(tmp_path / "tiny")
    server = Process("hotseat", "serve", str(model), "--port", "0", "--runner", "reference", "--api-key", "k")
    try:
        lines = iter(["hello", "x " * 5000])

        def type_line(prompt: str = "") -> str:
            try:
                return next(lines)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr("builtins.input", type_line)
        monkeypatch.setattr("hotseat.cli.terminal.chat.__defaults__", (type_line,))
        words = ["chat", "--url", server.url, "--max-tokens", "5", "--temperature", "0"]
        assert cli.main(words) == 2
        assert "key" in capsys.readouterr().err
        assert cli.main([*words, "--api-key", "k"]) == 0
        assert "/clear begins a new conversation" in capsys.readouterr().out
    finally:
        server.kill()
    assert cli.main(words) == 2
    assert "no answer from" in capsys.readouterr().err
