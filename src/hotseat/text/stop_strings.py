"""Stop strings in a stream of text, with nothing held back but what may still become one."""

from __future__ import annotations

from collections.abc import Sequence

from hotseat.errors import InvalidRequestError

__all__ = ["StopStrings"]


class StopStrings:
    """Cut a stream of text at the first stop string.

    The stop that ends the stream is the one whose last character comes first; of several that end at the same
    character, the one that starts first (the longest). The cut is before it, or after it when ``include`` is set. How
    the stream is split into deltas changes nothing.

    Held back is exactly the longest end of the text that is a true beginning of a stop string; with ``include``, where
    that text is sent in any case, nothing.
    """

    __slots__ = ("_held", "_include", "_matched", "_matchers")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """Raise InvalidRequestError for an empty stop string, which would match everywhere."""
        if any(not stop for stop in stops):
            raise InvalidRequestError("a stop string must not be empty", param="stop")
        self._matchers = [_Matcher(stop) for stop in dict.fromkeys(stops)]
        self._include = include
        self._held = ""
        self._matched: str | None = None

    def feed(self, delta: str) -> tuple[str, str | None]:
        """Take more text; return what may be sent now and, once one is found, the stop string.

        After a match all further text is dropped.
        """
        if self._matched is not None:
            return "", self._matched
        first: tuple[int, int, str] | None = None  # end in delta, minus length, stop
        for matcher in self._matchers:
            end = matcher.feed(delta)
            if end is not None:
                found = (end, -len(matcher.stop), matcher.stop)
                first = found if first is None else min(first, found)
        if first is not None:
            return self._cut(delta, *first)
        text = self._held + delta
        keep = 0 if self._include else max((matcher.matched for matcher in self._matchers), default=0)
        cut = len(text) - keep
        self._held = text[cut:]
        return text[:cut], None

    def flush(self) -> str:
        """End the stream and return the text that was held back; nothing after a match."""
        held, self._held = self._held, ""
        return held

    def _cut(self, delta: str, end: int, minus_length: int, stop: str) -> tuple[str, str]:
        self._matched = stop
        text = self._held + delta
        end += len(self._held)
        self._held = ""
        return text[: end if self._include else end + minus_length], stop


class _Matcher:
    """One stop string, and how much of it the end of the text matches.

    Nothing is prepared, so a long stop costs no more than a short one until the text begins to match it.
    """

    __slots__ = ("matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0

    def feed(self, delta: str) -> int | None:
        """Take more text; return where in ``delta`` the first occurrence of the stop ends, if one ends there."""
        stop = self.stop
        if not self.matched and stop[0] not in delta:
            return None
        # The longest beginning of the stop that the text ended with: no occurrence can begin before it.
        text = stop[: self.matched] + delta
        start = text.find(stop)
        if start >= 0:
            return start + len(stop) - self.matched
        start = max(0, len(text) - len(stop) + 1)
        while (start := text.find(stop[0], start)) >= 0 and not stop.startswith(text[start:]):
            start += 1
        self.matched = 0 if start < 0 else len(text) - start
        return None
