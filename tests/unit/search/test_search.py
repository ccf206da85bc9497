"""The search: asking, telling, storing, several objectives, sharing a budget."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from tuner.declare.space import Config, Constraint, Space, choice, powers_of_two
from tuner.errors import InputError, UnknownName
from tuner.results.measurement import Outcome
from tuner.search import Budget, Known, Observation, Search, SearchOptions, front_value
from tuner.search.budget import SLICES_WITHOUT_GAIN, TRIALS_WITHOUT_GAIN
from tuner.search.history import History
from tuner.search.pareto import front, weightings
from tuner.search.sampler import SpaceSampler
from tuner.search.surrogate import Hyperparameters, Posterior
from tuner.search.tile import TileStrategy, log_expected_improvement

PARAMETERS = (
    powers_of_two("X", 1, 128), powers_of_two("Y", 1, 128), choice("W", *range(16, 257, 16)),
    choice("MODE", "a", "b", "c"), choice("PAD", 0, 1),
)  # fmt: skip
SPACE = Space.build(
    PARAMETERS, (Constraint("X * Y is at most 1024", lambda p, d, c: c.X * c.Y <= 1024),), None, None
)

pytestmark = pytest.mark.usefixtures("one_blas_thread")


def time_of(config: Config) -> float:
    """A landscape with a cliff, an interaction and a best config: X=32 Y=8 W=96 MODE=b PAD=1."""
    log = 0.3 * abs(math.log2(config.X / 32)) + 0.2 * abs(math.log2(config.Y / 8))
    log += 0.002 * abs(config.W - 96) + {"a": 0.3, "b": 0.0, "c": 0.5}[config.MODE]
    log += 0.4 * (config.X * config.Y > 512) + 0.2 * ((config.X >= 16) != config.PAD)
    return math.exp(log)


def run(search: Search, trials: int, batch: int = 1) -> list[Config]:
    """Configs in the order they were asked; half of MODE c fails."""
    found: list[Config] = []
    while len(found) < trials and (asked := search.ask(min(batch, trials - len(found)))):
        for each in asked:
            found.append(each.config)
            fails = each.config.MODE == "c" and each.config.X > 8
            search.tell(each, *((Outcome.CRASHED, None) if fails else (Outcome.MEASURED, time_of(each.config))))
    return found


@pytest.mark.parametrize("batch", [1, 8])
def test_the_best_of_thousands_is_found_in_few_trials(batch: int) -> None:
    best = min(time_of(config) for config in SPACE)
    reached = []
    for seed in range(3):
        search = Search({"k": SPACE}, SearchOptions(seed=seed, study_name="s", budget=80))
        reached.append(best / min(time_of(config) for config in run(search, 80, batch)))
    assert np.mean(reached) > 0.97


def test_a_search_without_a_budget_ends_converged_at_a_local_optimum() -> None:
    search = Search({"k": SPACE}, SearchOptions(seed=1, study_name="s"))
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
    search = Search({"k": SPACE}, SearchOptions(seed=2, study_name="s", budget=50))
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
    search = Search({"slow": SPACE, "fast": SPACE}, SearchOptions(seed=1, study_name="s", budget=80))
    kernels = []
    for _ in range(80):
        (each,) = search.ask()
        kernels.append(each.kernel)
        search.tell(each, Outcome.MEASURED, time_of(each.config) * (3.0 if each.kernel == "slow" else 1.0))
    assert kernels[:12].count("slow") == 6
    assert kernels[12:].count("fast") > 0.8 * len(kernels[12:])


@pytest.mark.parametrize("incumbent_s", [0.0, 2.0])
def test_configs_that_were_stopped_early_teach_as_well(incumbent_s: float) -> None:
    """With an incumbent of 0 seconds, a champion of another study say, nothing is ever measured to the end."""
    best = min(time_of(config) for config in SPACE)
    reached = []
    for seed in range(3):
        search = Search({"k": SPACE}, SearchOptions(seed=seed, study_name="s", budget=80))
        fastest_s = math.inf
        for _ in range(80):
            (each,) = search.ask()
            time_s = time_of(each.config)
            slow = time_s > 1.08 * min(fastest_s, incumbent_s)
            search.tell(each, Outcome.PRUNED if slow else Outcome.MEASURED, time_s)
            fastest_s = min(fastest_s, time_s)
        reached.append(best / fastest_s)
    assert np.mean(reached) > 0.97


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
    for row, value in zip(rows[20:], values[20:], strict=True):
        posterior.tell(int(row), float(value))
    assert posterior.mean == pytest.approx(mean, abs=1e-3)
    smoothed = 0.5 + covariance(rows, rows) @ np.linalg.solve(noisy, values - 0.5)
    assert posterior.mean_of_asked() == pytest.approx(smoothed, abs=1e-3)


def test_the_fit_explains_what_it_saw_better_than_the_prior() -> None:
    rows = np.random.default_rng(1).choice(len(SPACE), 60, replace=False)
    values = np.log([time_of(SPACE[int(row)]) for row in rows])
    values = (values - values.mean()) / values.std()
    others = np.setdiff1d(np.arange(len(SPACE)), rows)
    truth = np.log([time_of(SPACE[int(row)]) for row in others])
    errors = []
    hyper = Hyperparameters(SPACE)
    for _ in range(2):
        posterior = Posterior(SPACE, hyper, others, 0.0)
        posterior.add(rows, values)
        errors.append(1 - np.corrcoef(posterior.mean, truth)[0, 1])
        hyper.fit(SPACE.codes[rows], values)
    assert errors[1] < errors[0]
    assert errors[1] < 0.1


@given(st.floats(-60, 60), st.floats(0.01, 10))
def test_log_expected_improvement_is_the_log_of_the_integral(z: float, deviation: float) -> None:
    found = log_expected_improvement(np.array([-z * deviation]), np.array([deviation]), 0.0)[0]
    assert math.isfinite(found)
    if z > -6:
        expected = deviation * (z * norm.cdf(z) + norm.pdf(z))
        assert found == pytest.approx(math.log(expected), abs=0.02)


def test_knowledge_from_elsewhere_saves_trials() -> None:
    elsewhere = [
        Observation("k", config, Outcome.MEASURED, 5 * time_of(config) * (1.3 if config.PAD else 1.0))
        for config in SPACE
    ]
    best = min(time_of(config) for config in SPACE)
    search = Search({"k": SPACE}, SearchOptions(seed=1, study_name="s", budget=20), Known(elsewhere=elsewhere))
    assert best / min(time_of(config) for config in run(search, 20)) > 0.97


def test_what_was_not_measured_elsewhere_is_predicted_and_what_failed_there_is_shunned() -> None:
    some = [SPACE[int(row)] for row in np.random.default_rng(0).choice(len(SPACE), 300, replace=False)]
    elsewhere = [
        Observation("k", config, Outcome.MEASURED, time_of(config))
        if config.MODE != "b"
        else Observation("k", config, Outcome.CRASHED, None)
        for config in some
    ]
    search = Search({"k": SPACE}, SearchOptions(seed=1, study_name="s", budget=30), Known(elsewhere=elsewhere))
    failed_there = {each.config for each in elsewhere if each.outcome.failed}
    found = run(search, 30)
    assert len([config for config in found if config in failed_there]) <= 3
    assert min(time_of(config) for config in found) < np.quantile([time_of(config) for config in SPACE], 0.01)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copying process, which is the last to be served on a busy machine, has the time it needs."""
    monkeypatch.setattr("tuner.search.mirror.CLOSE_WITHIN_S", 120.0)


@pytest.mark.usefixtures("patient")
def test_finished_trials_are_copied_to_the_storage_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    search = Search({"k": SPACE}, SearchOptions(seed=1, study_name="copied", storage_url=url))
    past = []
    for number, each in enumerate(search.ask(6)):
        outcome = (Outcome.MEASURED, Outcome.PRUNED, Outcome.WRONG_RESULT)[number % 3]
        time_s = None if outcome.failed else 1.0 + number
        search.tell(each, outcome, time_s)
        past.append(Observation(each.kernel, each.config, outcome, time_s))
    assert search.close() == ""
    again = Search({"k": SPACE}, SearchOptions(seed=1, study_name="copied", storage_url=url), Known(past=past))
    (each,) = again.ask()
    again.tell(each, Outcome.MEASURED, 0.5)
    assert again.close() == ""
    assert again.close() == ""
    stored = optuna.load_study(study_name="copied", storage=url)
    states = [each.state.name for each in stored.trials]
    assert states == ["COMPLETE", "PRUNED", "FAIL", "COMPLETE", "PRUNED", "FAIL", "COMPLETE"]
    assert stored.best_value == 0.5
    assert stored.metric_names == ["time"]
    assert {name.removeprefix("k.") for name in stored.best_params} == {"kernel", *each.config}
    assert stored.trials[2].user_attrs["outcome"] == "WRONG_RESULT"


def test_nothing_is_copied_where_nobody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_DASHBOARD", "0")
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    search = Search({"k": SPACE}, SearchOptions(seed=1, study_name="s", storage_url=url))
    for each in search.ask(3):
        search.tell(each, Outcome.MEASURED, 1.0)
    assert search.close() == ""
    assert not (tmp_path / "studies.db").exists()


@pytest.mark.usefixtures("patient")
def test_a_storage_that_cannot_be_written_is_no_harm_but_said(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'absent' / 'studies.db'}"
    search = Search({"k": SPACE}, SearchOptions(seed=1, study_name="s", storage_url=url))
    for each in search.ask(3):
        search.tell(each, Outcome.MEASURED, 1.0)
    assert search.close().startswith("trials were not copied for the dashboard: ")


def test_the_sampler_works_in_a_study_of_optuna_alone() -> None:
    history = History({"k": SPACE})
    study = optuna.create_study(sampler=SpaceSampler(history, TileStrategy(history, seed=1)))

    def objective(trial: optuna.Trial) -> float:
        assert trial.suggest_categorical("kernel", ("k",)) == "k"
        values = {each.name: trial.suggest_categorical(f"k.{each.name}", each.values) for each in PARAMETERS}
        if values["MODE"] == "c":
            raise optuna.TrialPruned
        return time_of(Config(values))

    study.optimize(objective, n_trials=25)
    assert len(history.kernels["k"].asked) == 25
    assert len({tuple(trial.params.items()) for trial in study.trials}) == 25


def test_several_objectives_keep_a_front() -> None:
    search = Search(
        {"k": SPACE}, SearchOptions(seed=1, study_name="s", objectives=("time", "energy"), budget=60)
    )

    def energy(config: Config) -> float:
        return time_of(config) ** 0.2 * config.X**0.5

    seen = []
    for _ in range(60):
        (each,) = search.ask()
        seen.append((time_of(each.config), energy(each.config)))
        search.tell(each, Outcome.MEASURED, seen[-1][0], (seen[-1][1],))
    found = search.front()
    assert sorted({values for _, _, values in found}) == sorted({seen[at] for at in front(seen)})
    assert len(found) >= 3
    assert min(seen)[0] < 1.1 * min(time_of(config) for config in SPACE)
    assert min(value for _, value in seen) < 1.2 * min(energy(config) for config in SPACE)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_the_front_is_what_nothing_beats(points: list[tuple[int, int]]) -> None:
    on_front = {points[at] for at in front(points)}
    for point in points:
        beaten = any(p[0] <= point[0] and p[1] <= point[1] and p != point for p in points)
        assert (point in on_front) is not beaten


def test_weightings_sum_to_one_and_hold_each_objective_alone() -> None:
    for count in (2, 3):
        found = weightings(count)
        assert all(math.isclose(sum(each), 1) for each in found)
        assert {tuple(float(at == one) for at in range(count)) for one in range(count)} <= set(found)


def test_wrong_names_and_too_many_objectives_are_refused() -> None:
    with pytest.raises(UnknownName, match="unknown sampler 'tiles'; did you mean tile"):
        Search({"k": SPACE}, SearchOptions(sampler="tiles", seed=1, study_name="s"))
    with pytest.raises(InputError, match="the sampler tpe minimises one objective, got time, energy"):
        Search(
            {"k": SPACE}, SearchOptions(sampler="tpe", seed=1, study_name="s", objectives=("time", "energy"))
        )


def test_every_problem_gets_a_slice_and_then_the_one_that_gains() -> None:
    budget = Budget(["a", "b", "c"])
    best = {"a": 1.0, "b": 1.0, "c": 1.0}
    order = []
    while (name := budget.next()) is not None and len(order) < 12:
        order.append(name)
        best[name] *= 0.8 if name == "b" else 0.999
        gain = budget.report(name, best[name], 40 * len(order))
        assert gain is None or gain == pytest.approx(0.2 if name == "b" else 0.001)
    assert order[:3] == ["a", "b", "c"]
    assert order[3:].count("b") >= 6


def test_converged_problems_stop_with_a_reason() -> None:
    budget = Budget(["a", "b"])
    slices = 0
    while (name := budget.next()) is not None:
        slices += 1
        budget.report(name, 1.0, TRIALS_WITHOUT_GAIN * slices, "space covered" if name == "b" else "")
    assert slices == 1 + 1 + SLICES_WITHOUT_GAIN
    assert budget.stopped["b"] == "space covered"
    assert budget.stopped["a"].startswith("converged: 3 slices in a row, of ")


def test_few_trials_or_none_that_worked_are_no_convergence() -> None:
    budget = Budget(["slow", "failing"])
    for slices in range(2 * SLICES_WITHOUT_GAIN):
        budget.report("slow", 1.0, 2 * slices)
        budget.report("failing", None, 100 * slices)
    assert budget.stopped == {}
    # The first time is a gain, from which on it counts.
    assert budget.report("failing", 1.0, 1000) is None
    assert budget.next() == "failing"
    for slices in range(SLICES_WITHOUT_GAIN):
        assert budget.report("failing", 1.0, 1100 + slices) == 0.0
    assert list(budget.stopped) == ["failing"]
    budget.stop("slow")
    assert budget.ranked() == []


def test_one_number_tells_how_good_a_front_is() -> None:
    assert front_value([(3.0,), (2.0,)]) == pytest.approx(2.0)
    points = [(1.0, 8.0), (4.0, 2.0)]
    better = front_value([*points, (1.0, 4.0)])
    assert better < front_value(points) == pytest.approx(front_value([*points, (5.0, 9.0)]))
    assert front_value([(0.5 * x, 0.5 * y) for x, y in points]) == pytest.approx(0.5 * front_value(points))
