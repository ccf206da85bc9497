"""Medians, intervals and paired comparisons."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.results.measurement import SAME_WITHIN, compare, median_interval, noise

times = st.floats(1e-6, 10.0)
some_times = st.lists(times, min_size=1, max_size=80)
#: Powers of two scale without rounding.
scales = st.integers(-20, 20).map(lambda power: 2.0**power)
rounds = st.lists(st.tuples(times, times), min_size=1, max_size=60)
OPPOSITE = {"faster": "slower", "slower": "faster", "ambiguous": "ambiguous", "same": "same"}


def test_noise_is_the_standard_deviation_of_a_normal_and_ignores_outliers() -> None:
    normal = [statistics.NormalDist(1.0, 0.01).inv_cdf((rank + 0.5) / 1001) for rank in range(1001)]
    assert noise(normal) == pytest.approx(0.01, rel=0.01)
    assert noise([*normal, 1000.0, 2000.0]) == pytest.approx(0.01, rel=0.02)


@given(some_times)
def test_the_interval_is_of_samples_and_holds_their_median(samples: list[float]) -> None:
    low, high = median_interval(samples)
    assert {low, high} <= set(samples)
    assert low <= statistics.median(samples) <= high


@pytest.mark.parametrize(("count", "rank"), [(1, 1), (5, 1), (6, 1), (9, 2), (20, 6), (60, 22), (100, 40)])
def test_the_interval_takes_the_ranks_of_the_binomial_table(count: int, rank: int) -> None:
    # Tables of the sign test at 5 %, two sides: Conover, Practical Nonparametric Statistics, table A3.
    assert median_interval(list(range(1, count + 1))) == (rank, count + 1 - rank)


@given(rounds)
def test_swapping_the_two_turns_the_verdict_round(pairs: list[tuple[float, float]]) -> None:
    this_s, other_s = [a for a, _ in pairs], [b for _, b in pairs]
    ahead, back = compare(this_s, other_s), compare(other_s, this_s)
    assert ahead.low <= ahead.ratio <= ahead.high
    if len(pairs) % 2 and abs(abs(ahead.ratio - 1) - SAME_WITHIN) > 1e-4 and back.verdict != "same":
        # The ends of "same" are a little apart: 1 - 0.005 is not 1 / (1 + 0.005).
        assert back.verdict == OPPOSITE[ahead.verdict]
        assert back.ratio == pytest.approx(1 / ahead.ratio)


@given(st.lists(times, min_size=1, max_size=40), st.floats(1.0, 1.0 + SAME_WITHIN * 0.99))
def test_what_is_nearer_than_the_limit_is_the_same(times_s: list[float], factor: float) -> None:
    assert compare(times_s, [factor * each for each in times_s]).verdict == "same"


@given(some_times, scales)
def test_a_drift_that_meets_both_changes_nothing(times_s: list[float], scale: float) -> None:
    other_s = [1.25 * each for each in times_s]
    drifted = [each * scale for each in times_s], [each * scale for each in other_s]
    assert compare(*drifted) == compare(times_s, other_s)


def test_a_gap_within_the_noise_is_ambiguous() -> None:
    assert compare([1.0] * 10, [0.9, 1.2] * 5).verdict == "ambiguous"
