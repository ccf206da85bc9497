"""Medians, intervals and paired comparisons."""

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.results.measurement import SAME_WITHIN, compare, median_interval, noise
from tuner.results.sentinel import BEFORE, CHAMPION, LEAST_BLOCKS, LIBRARY, block_ratios, decided, shift

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


# --- Comparisons in turns: verdicts, intervals that hold at every look, and drift that falls out


def turns(ratio: float, blocks: int, sigma: float = 0.003, seed: int = 1) -> tuple[list[float], list[float]]:
    """Times of a champion and another in blocks of two turns, the champion so many times slower."""
    random = np.random.default_rng(seed)
    other = 1e-5 * np.exp(random.normal(0, sigma, 2 * blocks))
    this = 1e-5 * ratio * np.exp(random.normal(0, sigma, 2 * blocks))
    return list(this), list(other)


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(1.0, "same"), (1.004, "same"), (1.03, "slower"), (0.97, "faster")]
)
def test_a_verdict_at_one_percent(ratio: float, verdict: str) -> None:
    assert shift(*turns(ratio, 40)).verdict() == verdict


def test_few_or_noisy_blocks_tell_nothing() -> None:
    assert shift(*turns(1.05, LEAST_BLOCKS - 1)).verdict() == "unknown"
    assert shift(*turns(1.0, 10, sigma=0.05)).verdict() == "unknown"
    assert shift([], []).verdict() == "unknown"


def test_a_drift_falls_out_of_mirrored_turns() -> None:
    # A B B A while everything becomes 1 % slower from turn to turn.
    drift = [1.01**turn for turn in range(4)]
    this, other = [drift[0], drift[3]], [drift[1], drift[2]]
    assert block_ratios(this, other) == pytest.approx([0.0], abs=1e-12)


def test_the_interval_holds_at_every_look() -> None:
    lost = 0
    for seed in range(200):
        this, other = turns(1.0, 60, seed=seed)
        looks = [shift(this[: 2 * n], other[: 2 * n]) for n in range(LEAST_BLOCKS, 61, 3)]
        lost += any(not each.low <= 0 <= each.high for each in looks)
    # 5 % is promised over all looks; the asymptotic sequence with few blocks may be a little beyond.
    assert lost <= 16


def test_it_goes_on_until_every_pair_is_known() -> None:
    champion, library = turns(1.3, 40)
    before = [each * 1.0001 for each in champion]
    noisy = turns(1.0, 40, sigma=0.2)[0]
    assert decided({CHAMPION: champion, BEFORE: before, LIBRARY: library})
    assert not decided({CHAMPION: champion, BEFORE: noisy, LIBRARY: library})
