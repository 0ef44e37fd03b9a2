"""Talk to a model in a terminal: read a line, stream the answer, remember both."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable

from hotseat.core.request import SamplingParams
from hotseat.errors import InvalidRequestError
from hotseat.llm import LLM

__all__ = ["Conversation", "chat", "show"]

HELP = """\
Enter sends the line. Ctrl-C stops an answer, Ctrl-D leaves.
/clear  begin a new conversation        /help  show this
"""


class Conversation:
    """What was said so far, and what comes next."""

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
    """Converse until the input ends."""
    if sys.stdin.isatty():
        import readline  # noqa: F401  # gives input() a history and editing keys

        sys.stdout.write(HELP)
    while True:
        try:
            line = read_line("> ").strip()
        except EOFError:
            sys.stdout.write("\n")
            return
        except KeyboardInterrupt:
            sys.stdout.write("\n(Ctrl-D leaves)\n")
            continue
        if line == "/clear":
            conversation.clear()
        elif line == "/help":
            sys.stdout.write(HELP)
        elif line:
            _say(conversation, line)


def _say(conversation: Conversation, line: str) -> None:
    answer = conversation.answer(line)
    try:
        if not show(answer):
            sys.stdout.write("(stopped)\n")
    except InvalidRequestError as error:
        sys.stdout.write(f"{error}\n/clear begins a new conversation\n")
    finally:
        answer.close()  # what was read of it is remembered now
