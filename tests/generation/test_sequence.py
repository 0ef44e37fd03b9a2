"""One sequence: tokens in, deltas out, stop strings cut."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generation.byte_tokenizer import EOS, byte_tokenizer, ids_of
from hotseat.core.batch import RequestUpdate, TokenLogprobs
from hotseat.core.request import FinishReason, Request, RequestId, SamplingParams
from hotseat.generation import OutputDelta, SequenceOutput

TOKENIZER = byte_tokenizer()


def update(
    token_ids: Sequence[int], reason: FinishReason | None = None, *, stop_token_id: int | None = None
) -> RequestUpdate:
    return RequestUpdate(
        request_id=RequestId("a"),
        new_token_ids=list(token_ids),
        logprobs=[TokenLogprobs(token_id, -0.1, 1, []) for token_id in token_ids],
        finish_reason=reason,
        stop_token_id=stop_token_id,
    )


def output_of(**params: object) -> SequenceOutput:
    request = Request(
        id=RequestId("a"),
        prompt_token_ids=[],
        params=SamplingParams(**params),  # type: ignore[arg-type]
        arrived_at=0.0,
    )
    return SequenceOutput(request, TOKENIZER)


def run(text: str, reason: FinishReason = FinishReason.LENGTH, *, size: int = 1, **params: object) -> list[OutputDelta]:
    """Feed ``text`` byte by byte, ``size`` bytes an update, and end with ``reason``."""
    output = output_of(**({"max_tokens": None} | params))
    ids = ids_of(text)
    parts = [ids[start : start + size] for start in range(0, len(ids), size)] or [[]]
    deltas = [output.feed(update(part)) for part in parts[:-1]]
    deltas.append(output.feed(update(parts[-1], reason)))
    return [delta for delta in deltas if delta is not None]


def text_of(deltas: Sequence[OutputDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def test_deltas_concatenate_to_the_text_and_no_character_is_broken() -> None:
    deltas = run("naïve 天気 🌶!")
    assert text_of(deltas) == "naïve 天気 🌶!"
    assert not any("\ufffd" in delta.text for delta in deltas)
    assert [delta.finish_reason for delta in deltas[-2:]] == [None, "length"]


def test_stop_string_over_token_borders_is_cut_and_nothing_of_it_leaks() -> None:
    deltas = run("ABCDEFGHIJKLM", stop=("DEFGHIJ",))
    assert text_of(deltas) == "ABC"
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", "DEFGHIJ")
    assert len(deltas) == 10, "nothing comes after the match"


def test_stop_string_may_stay_in_the_output() -> None:
    deltas = run("one two three", stop=("two",), include_stop_str_in_output=True)
    assert text_of(deltas) == "one two"


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_token_ids_and_logprobs_end_with_the_token_that_completes_the_stop(size: int) -> None:
    deltas = run("abcSTOPdefg", size=size, stop=("STOP",))
    token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
    assert token_ids == ids_of("abcSTOP")
    assert [entry.token_id for delta in deltas for entry in delta.logprobs or ()] == token_ids


def test_held_back_beginning_of_a_stop_comes_at_the_end() -> None:
    deltas = run("abc STO", stop=("STOP",))
    assert text_of(deltas) == "abc STO"
    assert text_of(deltas[:-1]) == "abc "


def test_unfinished_character_becomes_a_replacement_at_the_end() -> None:
    output = output_of()
    first = output.feed(update(ids_of("é")[:1]))
    last = output.feed(update([], FinishReason.LENGTH))
    assert first is not None
    assert last is not None
    assert (first.text, last.text) == ("", "\ufffd")


def test_eos_has_no_text_even_when_special_tokens_are_shown() -> None:
    output = output_of(skip_special_tokens=False)
    delta = output.feed(update([*ids_of("ok"), EOS], FinishReason.STOP))
    assert delta is not None
    assert (delta.text, delta.token_ids[-1], delta.finish_reason, delta.stop_reason) == ("ok", EOS, "stop", None)


def test_stop_token_is_cut_from_the_text_and_named() -> None:
    output = output_of(stop_token_ids=tuple(ids_of(".")))
    delta = output.feed(update(ids_of("end."), FinishReason.STOP, stop_token_id=ids_of(".")[0]))
    assert delta is not None
    assert (delta.text, delta.stop_reason) == ("end", ids_of(".")[0])


def test_stop_token_stays_when_asked_for() -> None:
    output = output_of(stop_token_ids=tuple(ids_of(".")), include_stop_str_in_output=True)
    delta = output.feed(update(ids_of("end."), FinishReason.STOP))
    assert delta is not None
    assert delta.text == "end."


def test_stop_strings_do_not_match_before_min_tokens() -> None:
    deltas = run("xx.yy.zz", stop=(".",), min_tokens=4)
    assert text_of(deltas) == "xx.yy"
    assert sum(len(delta.token_ids) for delta in deltas) == 6


def test_stop_wins_over_the_length_limit_at_the_same_token() -> None:
    deltas = run("abcX", stop=("X",))
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", "X")


def test_updates_after_the_stop_say_nothing() -> None:
    output = output_of(stop=("b",))
    assert output.feed(update(ids_of("abc"))) is not None
    assert output.is_finished
    assert output.feed(update(ids_of("d"))) is None
    assert output.feed(update([], FinishReason.STOP)) is None


def test_update_without_tokens_or_end_says_nothing() -> None:
    output = output_of()
    assert output.feed(update([])) is None


def test_error_and_its_message_reach_the_delta() -> None:
    output = output_of()
    failed = RequestUpdate(
        request_id=RequestId("a"), new_token_ids=[], finish_reason=FinishReason.ERROR, error="the runner failed"
    )
    delta = output.feed(failed)
    assert delta is not None
    assert (delta.finish_reason, delta.error) == ("error", "the runner failed")


@given(
    text=st.text(alphabet="abé天🌶 ", max_size=30),
    stops=st.lists(st.text(alphabet="abé天 ", min_size=1, max_size=4), max_size=3),
    size=st.integers(1, 7),
)
def test_text_is_the_decoded_ids_cut_at_the_first_stop(text: str, stops: list[str], size: int) -> None:
    deltas = run(text, size=size, stop=tuple(stops))
    ends = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    expected = text[: min(ends)[1]] if ends else text
    assert text_of(deltas) == expected
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["stop" if ends else "length"]
