"""What known places say of another place."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.lookup.estimate import likely_loss
from tuner.lookup.features import Floats
from tuner.lookup.interpolation import Kriging


def expected(places: list[float], asked: float, values: list[float], known: list[bool]) -> tuple[float, float]:
    """By places on a line, of which a unit apart brings a variance of 0.01."""
    line: Floats = np.array(places)
    between = Kriging(0.01 * np.abs(line[:, None] - line), 0.01 * np.abs(line - asked), 1e-6)
    mean, variance = between.at(np.array([values]), np.array([known]), 0.3, 0.1)
    return float(mean[0]), float(variance[0])


def test_between_two_places_is_interpolated() -> None:
    mean, _ = expected([0.0, 2.0], 1.0, [0.1, 0.5], [True, True])
    assert mean == pytest.approx(0.3, abs=0.01)
    mean, _ = expected([0.0, 2.0], 0.5, [0.1, 0.5], [True, True])
    assert mean == pytest.approx(0.2, abs=0.01)


def test_many_places_that_are_alike_do_not_outvote_a_near_one() -> None:
    far = [5.0 + 0.001 * number for number in range(30)]
    mean, _ = expected([0.0, *far], 0.5, [0.0, *[0.6] * 30], [True] * 31)
    assert mean < 0.1


def test_a_known_place_tells_its_own_value() -> None:
    mean, variance = expected([0.0, 2.0], 2.0, [0.1, 0.5], [True, True])
    assert (mean, variance) == (pytest.approx(0.5, abs=1e-3), pytest.approx(0.0, abs=1e-3))


def test_what_is_not_known_is_as_usual_and_uncertain() -> None:
    assert expected([0.0, 2.0], 1.0, [0.1, 0.5], [False, False]) == (pytest.approx(0.3), pytest.approx(0.1))
    mean, variance = expected([0.0, 2.0], 900.0, [0.1, 0.5], [True, True])
    assert (mean, variance) == (pytest.approx(0.3, abs=1e-3), pytest.approx(0.1, abs=1e-3))


@given(st.floats(-1, 2), st.floats(0, 1), st.floats(0.01, 1))
def test_what_is_slower_or_less_sure_loses_more(slower: float, variance: float, more: float) -> None:
    def loss(mean: float, unsure: float) -> float:
        return float(likely_loss(np.array([mean]), np.array([unsure]))[0])

    assert 0 <= loss(slower, variance) <= 1
    assert loss(slower + more, variance) >= loss(slower, variance) - 1e-12
    assert loss(min(slower, 0.0), variance + more) >= loss(min(slower, 0.0), variance) - 1e-12
    assert loss(abs(slower), 0.0) == pytest.approx(1 - math.exp(-abs(slower)), abs=1e-6)
    assert loss(-abs(slower) - 0.1, 0.0) == pytest.approx(0.0, abs=1e-6)
