"""Buckets."""

from __future__ import annotations

from hotseat.telemetry.histogram import Histogram, token_bounds


def test_bucket_includes_its_upper_bound_and_counts_are_cumulative() -> None:
    histogram = Histogram((1.0, 2.0, 5.0))
    for value in (0.5, 1.0, 1.5, 2.0, 5.1):
        histogram.observe(value)
    histogram.observe(3.0, times=4)
    assert histogram.cumulative() == [("1.0", 2), ("2.0", 4), ("5.0", 8), ("+Inf", 9)]
    assert (histogram.count, histogram.sum) == (9, 0.5 + 1.0 + 1.5 + 2.0 + 5.1 + 12.0)


def test_token_bounds_are_a_1_2_5_series_up_to_the_model() -> None:
    assert token_bounds(2048) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
    assert token_bounds(1) == (1,)
