"""A chat in the terminal: read a line, stream the answer, keep both for the next one."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from hotseat.cli.remote import RemoteChat
from hotseat.core.request import SamplingParams
from hotseat.errors import InvalidRequestError
from hotseat.llm import LLM

__all__ = [
    "ChatOptions",
    "Conversation",
    "GenerateOptions",
    "SamplingOptions",
    "SystemOptions",
    "WordWrap",
    "chat",
    "sampling_params",
    "show",
]

HELP = """\
Enter sends the line; a line that ends with \\ goes on, and so do lines from \"\"\" to \"\"\".
Ctrl-C stops an answer, Ctrl-D leaves.
/clear  begin a new conversation     /help  show this     /exit  leave
"""
BLOCK = '"""'
BOLD, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
ERASE = "\x1b[K"  # to the end of the line
MIN_WIDTH = 20
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
class SystemOptions:
    """The system message that a conversation begins with."""

    system: str | None = field(default=None, metadata={"help": "system message"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions(SystemOptions):
    """A conversation, with a model that is loaded here or with a server."""

    url: str | None = field(default=None, metadata={"help": "talk to the server at this address; loads no model"})
    api_key: str | None = field(default=None, metadata={"help": "key, if the server wants one"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions(SystemOptions):
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

    def __init__(
        self,
        llm: LLM | RemoteChat,
        params: SamplingParams | None,
        system: str | None = None,
        count_tokens: Callable[[str], int] | None = None,
    ) -> None:
        self.count_tokens = count_tokens  # of an answer
        self._llm: Any = llm
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


class WordWrap:
    """Breaks lines between words where the terminal would break them within one.

    Words are written as they come; one that turns out not to fit is taken back and begins the next line.
    """

    def __init__(self, width: int) -> None:
        self._width = max(MIN_WIDTH, width)
        self._column = 0
        self._word = ""  # written so far

    def feed(self, text: str) -> str:
        """Return what to write."""
        out = []
        for character in text:
            if character.isspace():
                self._word = ""
                if character == "\n" or self._column < self._width:
                    out.append(character)
                    self._column = 0 if character == "\n" else self._column + 1
                continue
            if self._column >= self._width:
                fits = len(self._word) < self._width
                word = self._word if fits else ""  # a longer one is broken by the terminal
                out.append("\b" * len(word) + ERASE * bool(word) + "\n" * fits + word)
                self._word, self._column = word, len(word)
            out.append(character)
            self._word += character
            self._column += 1
        return "".join(out)


def show(pieces: Iterable[str], wrap: WordWrap | None = None) -> bool:
    """Write ``pieces`` as they come; false when Ctrl-C ended them."""
    write, flush = sys.stdout.write, sys.stdout.flush
    try:
        for piece in pieces:
            write(piece if wrap is None else wrap.feed(piece))
            flush()
    except KeyboardInterrupt:
        return False
    finally:
        write("\n")
        flush()
    return True


def chat(
    conversation: Conversation,
    read_line: Callable[[str], str] = input,
    *,
    name: str = "",
    has_colour: bool = True,
) -> None:
    """Converse until the input ends; ``name`` is the model's, shown to a person with what can be typed.

    Raises:
        KeyboardInterrupt: Ctrl-C, when the input is no keyboard.
    """
    has_keyboard = sys.stdin.isatty()
    prompt = "> " if has_keyboard and sys.stdout.isatty() else ""
    look = _Look(is_person=bool(prompt), has_colour=has_colour)
    if prompt:
        import readline  # noqa: F401  # gives input() a history and editing keys

        sys.stdout.write(look.bold(f"{name}\n" if name else "") + HELP)
    was_interrupted = False
    while True:
        try:
            line = _read_message(read_line, prompt).strip()
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
        _obey(conversation, line, look, has_keyboard=has_keyboard)
    if prompt:
        sys.stdout.write("\n")


def _read_message(read_line: Callable[[str], str], prompt: str) -> str:
    """Read a line, or several that belong together."""
    line = read_line(prompt)
    following = ". " if prompt else ""
    if line.strip().startswith(BLOCK):
        lines = [line.strip().removeprefix(BLOCK)]
        while not lines[-1].rstrip().endswith(BLOCK):
            lines.append(read_line(following))
        return "\n".join(lines).rstrip().removesuffix(BLOCK)
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(read_line(following))
    return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """The looks of a chat: plain text for a file, wrapped lines and, perhaps, colours for a person."""

    is_person: bool
    has_colour: bool

    def bold(self, text: str) -> str:
        return f"{BOLD}{text}{PLAIN}" if text and self.is_person and self.has_colour else text

    def dim(self, text: str) -> str:
        return f"{DIM}{text}{PLAIN}" if self.is_person and self.has_colour else text

    def wrap(self) -> WordWrap | None:
        return WordWrap(shutil.get_terminal_size().columns) if self.is_person else None


def _obey(conversation: Conversation, line: str, look: _Look, *, has_keyboard: bool) -> None:
    if line == "/clear":
        conversation.clear()
    elif line == "/help":
        sys.stdout.write(HELP)
    elif COMMAND.match(line):
        sys.stdout.write(f"unknown command {line.split()[0]}; /help lists those there are\n")
    elif line:
        with _keys_kept() if has_keyboard else contextlib.nullcontext():
            was_stopped = not _say(conversation, line, look)
        if was_stopped and not has_keyboard:
            raise KeyboardInterrupt


def _say(conversation: Conversation, line: str, look: _Look) -> bool:
    """Show the answer to ``line``, to a person with its speed; false when Ctrl-C ended it."""
    answer = conversation.answer(line)
    began_at = time.monotonic()
    try:
        was_whole = show(answer, look.wrap())
        answer.close()
        if look.is_person and conversation.count_tokens is not None and conversation.messages:
            count = conversation.count_tokens(conversation.messages[-1]["content"])
            speed = count / max(time.monotonic() - began_at, 1e-9)
            sys.stdout.write(look.dim(f"({count} tokens, {speed:.1f} tokens/s)\n"))
        if not was_whole:
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
