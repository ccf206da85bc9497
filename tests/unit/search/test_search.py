"""The search: asking, telling, and what is known from elsewhere."""

import math

import numpy as np
import pytest
from fixtures.landscape import SPACE, run, time_of
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from tuner.declare.space import Config, Space, choice
from tuner.errors import InputError, UnknownName
from tuner.results.measurement import Outcome
from tuner.search import Known, Observation, Search, SearchOptions, front_value
from tuner.search.surrogate import Hyperparameters, Posterior
from tuner.search.tile import front, log_expected_improvement


@pytest.mark.parametrize("batch", [1, 8])
def test_the_best_of_thousands_is_found_in_few_trials(batch: int) -> None:
    best = min(time_of(config) for config in SPACE)
    reached = []
    for seed in range(3):
        search = Search({"k": SPACE}, SearchOptions(seed=seed, budget=80))
        reached.append(best / min(time_of(config) for config in run(search, 80, batch)))
    assert np.mean(reached) > 0.97


def test_a_search_without_a_budget_ends_converged_at_a_local_optimum() -> None:
    search = Search({"k": SPACE}, SearchOptions(seed=1))
    found = run(search, 1000)
    assert search.stopped.startswith("converged: every neighbour of the fastest config was tried")
    assert search.ask() == []
    fastest = min((c for c in found if not (c.MODE == "c" and c.X > 8)), key=time_of)
    assert fastest.MODE == "b"
    around = {SPACE[int(row)] for row in SPACE.neighbours(SPACE.index_of(fastest))}
    untried = around - set(found)
    assert all(config.MODE == "c" and config.X > 8 for config in untried)
    assert len(found) < 400


def test_failures_teach() -> None:
    search = Search({"k": SPACE}, SearchOptions(seed=2, budget=50))
    asked = 0
    failed = 0
    while asked < 50:
        for each in search.ask():
            asked += 1
            fails = each.config.X > 8  # nine times out of twenty, were they drawn at random
            failed += fails
            search.tell(each, *((Outcome.CRASHED, None) if fails else (Outcome.MEASURED, time_of(each.config))))
    assert failed < 15


def test_the_budget_moves_to_the_kernel_that_promises_most() -> None:
    search = Search({"slow": SPACE, "fast": SPACE}, SearchOptions(seed=1, budget=80))
    kernels = []
    for _ in range(80):
        (each,) = search.ask()
        kernels.append(each.kernel)
        search.tell(each, Outcome.MEASURED, time_of(each.config) * (3.0 if each.kernel == "slow" else 1.0))
    assert kernels[:12].count("slow") == 6
    assert kernels[12:].count("fast") > 0.8 * len(kernels[12:])


def test_a_sampled_space_may_grow_while_knowledge_from_elsewhere_is_used() -> None:
    parameters = [choice(f"P{number}", *range(6)) for number in range(8)]
    space = Space.build(parameters, [], None, None, limit=3000)
    time_of_sum = lambda config: 1.0 + sum(dict(config).values())
    elsewhere = [
        Observation("k", config, Outcome.MEASURED, time_of_sum(config)) for config in list(space)[:200]
    ]
    search = Search({"k": space}, SearchOptions(seed=1, budget=40), Known(elsewhere=elsewhere))
    size = len(space)
    for _ in range(40):
        (candidate,) = search.ask()
        search.tell(candidate, Outcome.MEASURED, time_of_sum(candidate.config))
    assert len(space) > size


@pytest.mark.parametrize(("foretold", "most"), [(True, 1), (False, 6)])
def test_a_kernel_that_is_foretold_to_be_far_behind_is_hardly_tried(foretold: bool, most: int) -> None:
    times = {"fast": 1.0, "slow": 3.0}
    elsewhere = [
        Observation(name, config, Outcome.MEASURED, factor * time_of(config))
        for name, factor in times.items() for config in SPACE
    ]  # fmt: skip
    known = Known(elsewhere=elsewhere, foretold=foretold)
    search = Search(dict.fromkeys(times, SPACE), SearchOptions(seed=1, budget=12), known)
    tried = []
    for _ in range(12):
        (each,) = search.ask()
        tried.append(each.kernel)
        search.tell(each, Outcome.MEASURED, times[each.kernel] * time_of(each.config))
    assert tried.count("slow") == most


def test_wrong_names_and_too_many_objectives_are_refused() -> None:
    with pytest.raises(UnknownName, match="unknown sampler 'tiles'; did you mean tile"):
        Search({"k": SPACE}, SearchOptions(sampler="tiles", seed=1))
    with pytest.raises(InputError, match="the sampler tpe minimises one objective, got time, energy"):
        Search({"k": SPACE}, SearchOptions(sampler="tpe", seed=1, objectives=("time", "energy")))


# --- Several objectives: fronts, their weightings and their worth


def test_several_objectives_keep_a_front() -> None:
    search = Search({"k": SPACE}, SearchOptions(seed=1, objectives=("time", "energy"), budget=60))

    def energy(config: Config) -> float:
        return time_of(config) ** 0.2 * config.X**0.5

    seen = []
    for _ in range(60):
        (each,) = search.ask()
        seen.append((time_of(each.config), energy(each.config)))
        search.tell(each, Outcome.MEASURED, seen[-1][0], (seen[-1][1],))
    assert len({seen[at] for at in front(seen)}) >= 3
    assert min(seen)[0] < 1.1 * min(time_of(config) for config in SPACE)
    assert min(value for _, value in seen) < 1.2 * min(energy(config) for config in SPACE)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_the_front_is_what_nothing_beats(points: list[tuple[int, int]]) -> None:
    on_front = {points[at] for at in front(points)}
    for point in points:
        beaten = any(p[0] <= point[0] and p[1] <= point[1] and p != point for p in points)
        assert (point in on_front) is not beaten


def test_one_number_tells_how_good_a_front_is() -> None:
    assert front_value([(3.0,), (2.0,)]) == pytest.approx(2.0)
    points = [(1.0, 8.0), (4.0, 2.0)]
    better = front_value([*points, (1.0, 4.0)])
    assert better < front_value(points) == pytest.approx(front_value([*points, (5.0, 9.0)]))
    assert front_value([(0.5 * x, 0.5 * y) for x, y in points]) == pytest.approx(0.5 * front_value(points))


# --- surrogates ----------------------------------------


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
