"""Drawn problems."""

import numpy as np
import pytest
from fixtures.model_survey import GEMM
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.declare.catalogue import builtin
from tuner.errors import InputError
from tuner.model.design import Ranges, draw

OPERATIONS = builtin().operations
PROBLEMS = draw(GEMM, Ranges(), 400, 0)


def test_problems_spread_evenly_over_decades_and_all_layouts() -> None:
    logs = np.log([[size for _, size in each.shape] for each in PROBLEMS])
    assert (logs >= 0).all()
    assert (logs[:, :2] <= np.log(16384)).all()
    assert 16384 < max(each.k for each in PROBLEMS) <= 65536
    assert (np.quantile(logs[:, 0], [0.25, 0.75]) > np.log(16384) * np.array([0.15, 0.6])).all()
    assert sorted({each.layout for each in PROBLEMS}) == ["nn", "nt", "tn", "tt"]


def test_half_of_the_problems_are_round() -> None:
    large = [each for each in PROBLEMS if min(each.m, each.n) >= 64]
    is_round = [each.m % 8 == 0 and each.n % 8 == 0 for each in large]
    assert 0.3 < np.mean(is_round) < 0.7


def test_a_longer_survey_begins_with_the_same_problems() -> None:
    assert draw(GEMM, Ranges(), 20, 0) == PROBLEMS[:20]
    assert draw(GEMM, Ranges(), 20, 1) != PROBLEMS[:20]


@settings(deadline=None, max_examples=20)
@given(most=st.integers(1, 3000), seed=st.integers(0, 99), operation=st.sampled_from(["gemv", "transpose"]))
def test_ranges_are_kept(most: int, seed: int, operation: str) -> None:
    declared = OPERATIONS[operation]
    ranges = Ranges(most=dict.fromkeys(declared.dims, most), most_bytes=1e9)
    for each in draw(declared, ranges, 5, seed):
        assert all(1 <= size <= max(most, 1) for _, size in each.shape)


def test_ranges_without_problems_are_refused() -> None:
    with pytest.raises(InputError, match="raise most_bytes or most_flops"):
        draw(GEMM, Ranges(most_bytes=1.0), 1, 0)
