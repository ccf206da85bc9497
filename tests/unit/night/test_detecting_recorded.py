"""Recorded nights of three H200s in which nothing changed: none is told; changes put into them are found."""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from tuner.night.changes import Floats, examine

RECORDED = Path(__file__).parents[2] / "fixtures/recorded_nights.json"


@pytest.fixture(scope="module")
def series() -> dict[tuple[str, str], Floats]:
    """Board and problem -> a row of logarithms of times for each night."""
    rows: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for each in json.loads(RECORDED.read_text()):
        rows[each["board"], each["problem"]].append(each["levels"])
    return {key: np.array(each) for key, each in rows.items()}


def told(rows: Floats, change: tuple[float, float, float]) -> bool:
    """Whether the last night but one is told, with the last as its repeat."""
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
    assert sum(told(rows, (0.0, 0.0, 0.0)) for rows in rotated(series)) == 0


def test_changes_of_five_percent_are_found_from_five_nights_on(series: dict[tuple[str, str], Floats]) -> None:
    every = rotated(series)
    assert sum(told(rows, (0.05, 0.0, 0.0)) for rows in every) / len(every) > 0.9
