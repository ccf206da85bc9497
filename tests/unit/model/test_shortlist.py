"""The configs that a model answers with."""

import numpy as np

from tuner.model.fit import shortlist


def test_every_problem_has_a_good_one_first() -> None:
    problem = np.array([0, 0, 1, 1, 2, 2, 2])
    config = np.array([7, 4, 7, 5, 4, 5, 9])
    time_s = np.array([1.0, 3.0, 1.0, 4.0, 3.0, 4.0, 1.0])
    assert shortlist(problem, config, time_s, 2).tolist() == [7, 9]
    assert shortlist(problem, config, time_s, 1).tolist() == [7]


def test_what_is_good_most_often_fills_it_up() -> None:
    problem, config = np.repeat(np.arange(3), 3), np.tile([0, 1, 2], 3)
    time_s = np.tile([1.0, 2.0, 1.001], 3)
    assert shortlist(problem, config, time_s, 9).tolist() == [0, 2, 1]


def test_it_holds_what_held_out_problems_need() -> None:
    rng = np.random.default_rng(0)
    # Forty configs, each the best of its own tenth of a line along which problems lie.
    places, homes = rng.uniform(0, 1, 300), np.linspace(0, 1, 40)
    log_s = 3 * np.abs(places[:, None] - homes[None, :])
    problem, config = np.nonzero(rng.uniform(size=log_s.shape) < 0.5)
    fitted = problem < 200
    kept = shortlist(problem[fitted], config[fitted], np.exp(log_s[problem[fitted], config[fitted]]), 25)
    lost = log_s[200:][:, kept].min(axis=1) - log_s[200:].min(axis=1)
    assert lost.mean() < 0.03
