"""A chat in the terminal: read a line, stream the answer, keep both for the next one."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from hotseat.core.request import SamplingParams
from hotseat.errors import InvalidRequestError
from hotseat.llm import LLM

__all__ = ["ChatOptions", "Conversation", "GenerateOptions", "SamplingOptions", "chat", "sampling_params", "show"]

HELP = """\
Enter sends the line. Ctrl-C stops an answer, Ctrl-D leaves.
/clear  begin a new conversation     /help  show this     /exit  leave
"""
LEAVING = ("/exit", "/quit", "/bye")
COMMAND = re.compile(r"/[a-zA-Z?]*(\s|$)")  # a path, /etc/hosts, is none


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """Options of ``generate`` and ``chat`` that become ``SamplingParams``."""

    max_tokens: int | None = field(default=512, metadata={"help": "tokens to generate at most; none: what fits"})
    temperature: float | None = field(default=None, metadata={"help": "0 is greedy (default: the model's, else 0.6)"})
    top_p: float | None = field(
        default=None, metadata={"help": "smallest set of tokens with this probability (default: the model's, else 0.9)"}
    )
    top_k: int | None = field(default=None, metadata={"help": "so many most probable tokens; 0 is all"})
    min_p: float | None = field(default=None, metadata={"help": "tokens at least this probable, relative to the first"})
    repetition_penalty: float | None = field(default=None, metadata={"help": "above 1 avoids repetition"})
    seed: int | None = field(default=None, metadata={"help": "fixes the result"})
    stop: tuple[str, ...] = field(default=(), metadata={"help": "text that ends the answer; may be repeated"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """The system message that a conversation begins with."""

    system: str | None = field(default=None, metadata={"help": "system message"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions(ChatOptions):
    """The text to complete."""

    prompt: str | None = field(default=None, metadata={"help": "the text"})
    chat: bool = field(default=False, metadata={"help": "ask it as a question, through the model's chat template"})


# A person reads these answers: small models talk nonsense at the API's default temperature of 1.
_TERMINAL_DEFAULTS: dict[str, Any] = {"temperature": 0.6, "top_p": 0.9}


def sampling_params(llm: LLM, chosen: SamplingOptions) -> SamplingParams:
    """Return how tokens are chosen: as asked for, else as the model wants it, else as people like to read it."""
    given = {name: value for name, value in asdict(chosen).items() if value is not None or name == "max_tokens"}
    return SamplingParams(**(_TERMINAL_DEFAULTS | llm.sampling_defaults | given))


class Conversation:
    """The messages of a chat so far, and the answer to the next one."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None = None) -> None:
        self._llm = llm
        self._params = params
        self._opening = [{"role": "system", "content": system}] if system else []
        self.messages: list[dict[str, str]] = list(self._opening)

    def clear(self) -> None:
        """Forget everything but the system message."""
        self.messages = list(self._opening)

    def answer(self, text: str) -> Generator[str, None, None]:
        """Send ``text`` and yield the answer; both are remembered, the answer as far as it was read.

        Raises:
            InvalidRequestError: the conversation does not fit the model any more; ``text`` is forgotten.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        pieces: list[str] = []
        try:
            for piece in self._llm.stream_chat(asked, self._params):
                pieces.append(piece)
                yield piece
        finally:
            if pieces:
                self.messages = [*asked, {"role": "assistant", "content": "".join(pieces)}]


def show(pieces: Iterable[str]) -> bool:
    """Write ``pieces`` as they come; false when Ctrl-C ended them."""
    write, flush = sys.stdout.write, sys.stdout.flush
    try:
        for piece in pieces:
            write(piece)
            flush()
    except KeyboardInterrupt:
        return False
    finally:
        write("\n")
        flush()
    return True


def chat(conversation: Conversation, read_line: Callable[[str], str] = input) -> None:
    """Converse until the input ends.

    Raises:
        KeyboardInterrupt: Ctrl-C, when the input is no keyboard.
    """
    has_keyboard = sys.stdin.isatty()
    prompt = "> " if has_keyboard and sys.stdout.isatty() else ""
    if prompt:
        import readline  # noqa: F401  # gives input() a history and editing keys

        sys.stdout.write(HELP)
    was_interrupted = False
    while True:
        try:
            line = read_line(prompt).strip()
        except EOFError:
            break
        except KeyboardInterrupt:
            if not has_keyboard:
                raise
            if was_interrupted:
                break
            was_interrupted = True
            sys.stdout.write("\n(Ctrl-D, or Ctrl-C again, leaves)\n")
            continue
        was_interrupted = False
        if line in LEAVING:
            return
        _obey(conversation, line, has_keyboard=has_keyboard)
    if prompt:
        sys.stdout.write("\n")


def _obey(conversation: Conversation, line: str, *, has_keyboard: bool) -> None:
    if line == "/clear":
        conversation.clear()
    elif line == "/help":
        sys.stdout.write(HELP)
    elif COMMAND.match(line):
        sys.stdout.write(f"unknown command {line.split()[0]}; /help lists those there are\n")
    elif line:
        with _keys_kept() if has_keyboard else contextlib.nullcontext():
            was_stopped = not _say(conversation, line)
        if was_stopped and not has_keyboard:
            raise KeyboardInterrupt


def _say(conversation: Conversation, line: str) -> bool:
    """Show the answer to ``line``; false when Ctrl-C ended it."""
    answer = conversation.answer(line)
    try:
        if not show(answer):
            sys.stdout.write("(stopped)\n")
            return False
    except InvalidRequestError as error:
        sys.stdout.write(f"{error}\n/clear begins a new conversation\n")
    finally:
        answer.close()  # what was read of it is remembered now
    return True


@contextlib.contextmanager
def _keys_kept() -> Iterator[None]:
    """Keep the keys that are pressed meanwhile for the next prompt as they are.

    A terminal that collects lines takes Ctrl-D for itself, and the prompt would not see it.
    """
    try:
        import termios

        file = sys.stdin.fileno()
        before = termios.tcgetattr(file)
    except (ImportError, OSError, termios.error):
        yield
        return
    attributes = list(before)
    attributes[3] &= ~termios.ICANON
    termios.tcsetattr(file, termios.TCSADRAIN, attributes)
    try:
        yield
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)
