"""Changes are found, and nights without one are left alone."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.night.detecting import (
    LIBRARY_FACTOR,
    LIMIT,
    Floats,
    confirmed,
    discoveries,
    examine,
    expected,
    noise_of,
)

LEVELS = np.log([3e-4, 3.1e-4, 4e-4])


def nights(count: int, seed: int = 1, sigma: float = 0.001) -> Floats:
    """Nights of a board in which nothing changes."""
    random = np.random.default_rng(seed)
    common = random.normal(0, 0.002, (count, 1))
    return LEVELS + common + random.normal(0, sigma, (count, 3))


@pytest.mark.parametrize(
    ("change", "moved"),
    [((0.02, 0, 0), "champion"), ((0, 0, 0.03), "library"), ((0.04, 0.04, 0.04), "all")],
)
def test_what_moved_in_a_night_is_named(change: tuple[float, float, float], moved: str) -> None:
    rows = nights(14)
    tonight, again = rows[-4] + change, rows[-3:-1] + change
    first = examine(rows[:10], tonight[None])
    assert first is not None
    assert first.suspect
    found = confirmed(rows[:10], tonight, again)
    assert found is not None
    assert found.moved == moved
    assert found.residual.change == pytest.approx(max(change), abs=0.006)
    low, high = found.residual.interval
    assert low - 0.002 < max(change) < high + 0.002
    assert discoveries(
        [found, *[examine(nights(11, seed)[:10], nights(11, seed)[10:]) for seed in range(2, 20)]]
    )[0]


def test_a_repeat_that_points_the_other_way_takes_it_back() -> None:
    rows = nights(12)
    tonight = rows[10] + (0.02, 0, 0)
    assert confirmed(rows[:10], tonight, rows[11:12] - (0.02, 0, 0)) is None


def test_too_few_nights_and_a_champion_that_was_not_timed_tell_nothing() -> None:
    rows = nights(8)
    assert examine(rows[:3], rows[3:4]) is None
    rows[-1, 0] = np.nan
    assert examine(rows[:7], rows[7:]) is None
    assert discoveries([None, None]) == [False, False]


def test_without_the_champion_before_the_library_alone_tells() -> None:
    rows = nights(12)
    rows[:, 1] = np.nan
    found = examine(rows[:10], np.add(rows[10:11], (0.03, 0, 0)))
    assert found is not None
    assert found.moved == "champion"
    assert found.residual.p < 1e-4


def test_creep_is_told_by_the_nights_together() -> None:
    rows = nights(24)
    told = 0
    for night in range(1, 11):
        rows[13 + night, 0] += 0.002 * night
        found = examine(rows[: 13 + night], rows[13 + night : 14 + night])
        assert found is not None
        told = told or (night if found.crept and found.residual.change > 0 else 0)
    assert 1 < told <= 10
    assert abs(found.cusum) > LIMIT


def test_nights_in_which_nothing_changes_are_seldom_suspect_and_never_told() -> None:
    suspect, told, done = 0, 0, 0
    for seed in range(60):
        rows = nights(20, seed)
        for night in range(6, 18):
            found = examine(rows[:night], rows[night : night + 1])
            assert found is not None
            suspect += found.suspect
            twice = confirmed(rows[:night], rows[night], rows[night + 1 : night + 3]) if found.suspect else None
            told += discoveries([twice, *[None] * 19])[0]
            done += 1
    assert suspect / done < 0.15
    assert told == 0


def test_many_findings_of_a_night_are_told_more_easily_than_one() -> None:
    rows = nights(14)
    found = confirmed(rows[:10], rows[10] + (0.0062, 0, 0), np.add(rows[11:13], (0.0062, 0, 0)))
    assert found is not None
    quiet = [examine(rows[:10], rows[13:14])] * 400
    alone, together = discoveries([found, *quiet]), discoveries([*[found] * 200, *quiet])
    assert sum(alone[:1]) <= sum(together[:1])


def test_noise_is_learnt_from_nights() -> None:
    calm, wild = (noise_of(nights(40, sigma=sigma), 40) for sigma in (0.0005, 0.01))
    assert wild.own[0, 0] > 20 * calm.own[0, 0]
    first, last = noise_of(nights(10), 5).freedom[[0, -1]]
    assert first < last
    assert expected(LEVELS)[2] == pytest.approx(expected(np.log([4e-4] * 3))[0] * LIBRARY_FACTOR**2)
