"""Medians, intervals and paired comparisons."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.results.measurement import SAME_WITHIN, compare, median_interval, noise

times = st.floats(1e-6, 10.0)


def test_noise_is_the_standard_deviation_of_a_normal_and_ignores_outliers() -> None:
    normal = [statistics.NormalDist(1.0, 0.01).inv_cdf((rank + 0.5) / 1001) for rank in range(1001)]
    assert noise(normal) == pytest.approx(0.01, rel=0.01)
    assert noise([*normal, 1000.0, 2000.0]) == pytest.approx(0.01, rel=0.02)


@pytest.mark.parametrize(
    ("count", "rank"), [(1, 1), (5, 1), (6, 1), (9, 2), (20, 6), (60, 22), (100, 40), (2000, 956)]
)
def test_the_interval_takes_the_ranks_of_the_binomial_table(count: int, rank: int) -> None:
    # Tables of the sign test at 5 %, two sides: Conover, Practical Nonparametric Statistics, table A3.
    assert median_interval(list(range(1, count + 1))) == (rank, count + 1 - rank)


@given(st.lists(times, min_size=1, max_size=40), st.floats(1.0, 1.0 + SAME_WITHIN * 0.99))
def test_what_is_nearer_than_the_limit_is_the_same(times_s: list[float], factor: float) -> None:
    assert compare(times_s, [factor * each for each in times_s]).verdict == "same"


def test_a_gap_within_the_noise_is_ambiguous() -> None:
    assert compare([1.0] * 10, [0.9, 1.2] * 5).verdict == "ambiguous"
