from __future__ import annotations

import itertools
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hotseat.errors import InvalidRequestError
from hotseat.text import StopStrings

# Few letters make many near misses; overlaps and self-overlaps are the hard part.
texts = st.text(alphabet="ab\n🌶", max_size=30)
stop_sets = st.lists(st.text(alphabet="ab\n🌶", min_size=1, max_size=5), max_size=4)


def first_stop(text: str, stops: list[str]) -> tuple[int, int, str] | None:
    """The definition, by trying every place: the earliest end, then the earliest start."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return end - len(longest), end, longest
    return None


def longest_open_end(text: str, stops: list[str]) -> int:
    """How many characters at the end of ``text`` may still become a stop, by trying every length."""
    return max(
        (length for stop in stops for length in range(len(stop)) if length == 0 or text.endswith(stop[:length])),
        default=0,
    )


def split(text: str, cuts: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    return [text[start:end] for start, end in itertools.pairwise(edges)]


@given(text=texts, stops=stop_sets, cuts=st.lists(st.integers(0, 30)), include=st.booleans())
@settings(max_examples=1500, deadline=None)
@example(text="aabaaab", stops=["aaab", "ab"], cuts=list(range(8)), include=False)
def test_text_is_cut_at_the_first_completed_stop_however_it_is_split(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    stream = StopStrings(stops, include=include)
    sent, matched = "", None
    for delta in split(text, cuts):
        part, matched = stream.feed(delta)
        sent += part
        if matched is not None:
            break
    sent += stream.flush()
    expected = first_stop(text, stops)
    if expected is None:
        assert (sent, matched) == (text, None)
    else:
        start, end, stop = expected
        assert (sent, matched) == (text[: end if include else start], stop)


@given(text=texts, stops=stop_sets, cuts=st.lists(st.integers(0, 30)))
@settings(max_examples=1000, deadline=None)
def test_exactly_what_may_become_a_stop_is_held_back(text: str, stops: list[str], cuts: list[int]) -> None:
    stream = StopStrings(stops)
    fed = sent = ""
    for delta in split(text, cuts):
        part, matched = stream.feed(delta)
        if matched is not None:
            return
        fed += delta
        sent += part
        assert sent == fed[: len(fed) - longest_open_end(fed, stops)]


@given(text=texts, stops=stop_sets)
@settings(max_examples=300, deadline=None)
def test_nothing_is_held_back_when_the_stop_is_part_of_the_answer(text: str, stops: list[str]) -> None:
    stream = StopStrings(stops, include=True)
    for character in text:
        part, matched = stream.feed(character)
        assert part == character
        if matched is not None:
            assert stream.feed("more") == ("", matched)
            break
    assert stream.flush() == ""


def test_stop_that_crosses_tokens_never_leaks() -> None:
    stream = StopStrings(["DEFGHIJ"])
    assert [stream.feed(delta) for delta in ["ABC", "D", "EF", "GHI", "JKL"]] == [
        ("ABC", None),
        ("", None),
        ("", None),
        ("", None),
        ("", "DEFGHIJ"),
    ]
    assert stream.flush() == ""


def test_text_after_the_stop_is_dropped() -> None:
    stream = StopStrings(["five", "three"])
    assert stream.feed("one two three four five") == ("one two ", "three")
    assert stream.feed(" six") == ("", "three")
    assert stream.flush() == ""


def test_long_stop_delays_no_text_that_cannot_become_it() -> None:
    stream = StopStrings(["x" * 1000])
    assert stream.feed("hello </think> ") == ("hello </think> ", None)


def test_false_start_is_sent_as_soon_as_it_is_one() -> None:
    stream = StopStrings(["\n\nUser:"])
    assert stream.feed("a\n\nUse") == ("a", None)
    assert stream.feed("ful") == ("\n\nUseful", None)


def test_held_text_comes_out_at_the_end() -> None:
    stream = StopStrings(["\n\nUser:"])
    assert stream.feed("a\n\nUse") == ("a", None)
    assert stream.flush() == "\n\nUse"
    assert stream.flush() == ""


def test_without_stops_everything_passes() -> None:
    stream = StopStrings([])
    assert stream.feed("text") == ("text", None)
    assert stream.flush() == ""


def test_empty_stop_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="must not be empty") as caught:
        StopStrings(["ok", ""])
    assert caught.value.param == "stop"


def test_long_self_similar_stop_costs_no_more_than_its_text() -> None:
    """A search that starts over at every character would make ten billion comparisons here."""
    stream = StopStrings(["a" * 100_000 + "b"])
    for _ in range(110):
        assert stream.feed("a" * 1000)[1] is None
    assert len(stream.flush()) == 100_000


def test_stop_of_any_length_needs_no_preparation() -> None:
    stop = "a" * 3_000_000 + "b"
    tracemalloc.start()
    try:
        stream = StopStrings([stop])
        assert stream.feed("text") == ("text", None)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
