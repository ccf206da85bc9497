"""The acquisition function of the sampler `tile`."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from tuner.search.tile import log_expected_improvement


@given(st.floats(-60, 60), st.floats(0.01, 10))
def test_log_expected_improvement_is_the_log_of_the_integral(z: float, deviation: float) -> None:
    found = log_expected_improvement(np.array([-z * deviation]), np.array([deviation]), 0.0)[0]
    assert math.isfinite(found)
    if z > -6:
        expected = deviation * (z * norm.cdf(z) + norm.pdf(z))
        assert found == pytest.approx(math.log(expected), abs=0.02)
