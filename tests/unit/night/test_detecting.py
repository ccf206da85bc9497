"""Changes are found, and nights without one are left alone."""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from tuner.night.changes import Floats, examine

LEVELS = np.log([3e-4, 3.1e-4, 4e-4])


def nights(count: int, seed: int = 1, sigma: float = 0.001) -> Floats:
    """Nights of a board in which nothing changes."""
    random = np.random.default_rng(seed)
    common = random.normal(0, 0.002, (count, 1))
    return LEVELS + common + random.normal(0, sigma, (count, 3))


@pytest.mark.parametrize(
    ("change", "moved"), [((0.02, 0, 0), "champion"), ((0, 0, 0.03), "library"), ((0.04, 0.04, 0.04), "all")]
)
@pytest.mark.parametrize("has_before", [True, False])
def test_what_moved_is_named(change: tuple[float, float, float], moved: str, has_before: bool) -> None:
    rows = nights(14)
    if not has_before:
        rows[:, 1] = np.nan
    tonight, again = rows[-4] + change, rows[-3:-1] + change
    first = examine(rows[:10], tonight)
    assert first.suspect
    found = examine(rows[:10], tonight, again)
    assert (found.moved, found.nights, found.is_told) == (moved, 1, True)
    assert found.change == pytest.approx(max(change), abs=0.006)
    low, high = found.interval
    assert low - 0.003 < max(change) < high + 0.003


def test_a_repeat_that_points_the_other_way_takes_it_back() -> None:
    rows = nights(12)
    tonight = rows[10] + (0.02, 0, 0)
    assert examine(rows[:10], tonight, rows[11:12] - (0.02, 0, 0)) is None


def test_creep_is_told_by_the_nights_together() -> None:
    rows = nights(24)
    told = 0
    for night in range(1, 11):
        rows[13 + night, 0] += 0.002 * night
        found = examine(rows[: 13 + night], rows[13 + night])
        told = told or (night if found.is_told and found.nights > 1 and found.change > 0 else 0)
    assert 1 < told <= 10


# --- Recorded nights of three H200s in which nothing changed: none is told; changes put in are found

RECORDED = Path(__file__).parents[2] / "fixtures/recorded_nights.json"


@pytest.fixture(scope="module")
def series() -> dict[tuple[str, str], Floats]:
    """Board and problem -> a row of logarithms of times for each night."""
    rows: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for each in json.loads(RECORDED.read_text()):
        rows[each["board"], each["problem"]].append(each["levels"])
    return {key: np.array(each) for key, each in rows.items()}


def is_told_twice(rows: Floats, change: tuple[float, float, float]) -> bool:
    """Whether the last night but one is is_told_twice, with the last as its repeat."""
    past, tonight, again = rows[:-2], rows[-2] + change, rows[-1:] + change
    found = examine(past, tonight)
    if found is None or not found.suspect:
        return False
    twice = examine(past, tonight, again)
    return twice is not None and twice.is_told


def rotated(series: dict[tuple[str, str], Floats]) -> list[Floats]:
    """Each night once as the present one: nothing changed, so that the order of the others does not matter."""
    return [np.roll(rows, shift, axis=0) for rows in series.values() for shift in range(len(rows))]


def test_none_of_the_recorded_nights_is_told(series: dict[tuple[str, str], Floats]) -> None:
    assert sum(is_told_twice(rows, (0.0, 0.0, 0.0)) for rows in rotated(series)) == 0


def test_changes_of_five_percent_are_found_from_five_nights_on(series: dict[tuple[str, str], Floats]) -> None:
    every = rotated(series)
    assert sum(is_told_twice(rows, (0.05, 0.0, 0.0)) for rows in every) / len(every) > 0.9
