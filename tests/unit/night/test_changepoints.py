"""Nights are cut where their level changes, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.night.detecting import stretches


def nights(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(-11.0, 0.002, count)


def test_a_lasting_change_is_found_where_it_began() -> None:
    values = nights(30)
    values[18:] += 0.02
    first, second = stretches(values)
    assert (first.last, second.first) == (17, 18)
    assert second.level - first.level == pytest.approx(0.02, abs=0.003)


def test_creep_shows_as_stretches_that_rise() -> None:
    values = nights(30)
    values[15:] += 0.002 * np.arange(1, 16)
    levels = [each.level for each in stretches(values)]
    assert len(levels) >= 2
    assert levels == sorted(levels)


def test_nights_without_a_change_are_seldom_cut() -> None:
    assert sum(len(stretches(nights(30, seed))) > 1 for seed in range(40)) <= 4


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 5, [1.0] * 30])
def test_few_or_equal_nights_are_one_stretch(values: list[float]) -> None:
    assert len(stretches(values)) == min(len(values), 1)
