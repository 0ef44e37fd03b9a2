"""Pauses: what the histogram counts and what the gauge remembers."""

from __future__ import annotations

from hotseat.engine import VirtualClock
from hotseat.telemetry.pauses import Pauses


def test_the_longest_pause_is_kept_for_a_minute_or_two() -> None:
    clock = VirtualClock()
    pauses = Pauses(clock.now)
    seen = []
    for at, seconds in [(0.0, 0.5), (30.0, 0.1), (61.0, 0.2), (110.0, 0.3), (125.0, 0.01)]:
        clock.advance_to(at)
        pauses.observe(seconds)
        seen.append(pauses.longest_s)
    assert seen == [0.5, 0.5, 0.5, 0.5, 0.3]
    assert pauses.histogram.count == 5


def test_a_pause_is_forgotten_when_nothing_is_observed_any_more() -> None:
    clock = VirtualClock()
    pauses = Pauses(clock.now)
    pauses.observe(0.5)
    clock.advance(90.0)
    assert pauses.longest_s == 0.5
    clock.advance(60.0)
    assert pauses.longest_s == 0.0
    pauses.observe(0.1)
    assert pauses.longest_s == 0.1
