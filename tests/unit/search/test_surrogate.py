"""The Gaussian process: its posterior, what a fit of its hyperparameters gains, and expected improvement."""

import math

import numpy as np
import pytest
from fixtures.landscape import SPACE
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from tuner.search.surrogate import Hyperparameters, Posterior
from tuner.search.tile import log_expected_improvement


def test_the_posterior_is_that_of_a_gaussian_process_however_it_was_told() -> None:
    hyper = Hyperparameters(SPACE)
    rows, candidates = np.arange(0, 400, 10), np.arange(5, 405, 10)
    rng = np.random.default_rng(0)
    values = rng.normal(size=len(rows))

    def covariance(some: np.ndarray, others: np.ndarray) -> np.ndarray:
        one, other = (hyper.features.levels(SPACE.codes[each]) for each in (some, others))
        logs = sum(table[np.ix_(one[:, at], other[:, at])] for at, table in enumerate(hyper.log_tables()))
        return hyper.scale * np.exp(logs)

    noisy = covariance(rows, rows) + hyper.noise * np.eye(len(rows))
    cross = covariance(candidates, rows)
    mean = 0.5 + cross @ np.linalg.solve(noisy, values - 0.5)
    variance = hyper.scale - np.einsum("ij,ji->i", cross, np.linalg.solve(noisy, cross.T))
    posterior = Posterior(SPACE, hyper, candidates, 0.5)
    posterior.add(rows[:20], values[:20])
    posterior.add(rows[20:], np.full(20, np.nan))
    assert posterior.variance == pytest.approx(variance, abs=1e-4)
    assert posterior.in_flight.tolist() == rows[20:].tolist()
    posterior.tell(np.where(rows[20:] < 300, values[20:], np.nan))
    posterior.tell(values[30:])
    assert posterior.mean == pytest.approx(mean, abs=1e-3)
    smoothed = 0.5 + covariance(rows, rows) @ np.linalg.solve(noisy, values - 0.5)
    assert posterior.mean_of_rows() == pytest.approx(smoothed, abs=1e-3)


@given(st.floats(-60, 60), st.floats(0.01, 10))
def test_log_expected_improvement_is_the_log_of_the_integral(z: float, deviation: float) -> None:
    found = log_expected_improvement(np.array([-z * deviation]), np.array([deviation]), 0.0)[0]
    assert math.isfinite(found)
    if z > -6:
        expected = deviation * (z * ndtr(z) + np.exp(-z * z / 2) / math.sqrt(2 * math.pi))
        assert found == pytest.approx(math.log(expected), abs=0.02)
