"""Fits a model to a survey. Needs LightGBM, the extra ``model``; answering does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.errors import InputError, TunerError
from tuner.lookup.features import Floats
from tuner.lookup.model.calibrate import Cases, calibrate, cases
from tuner.lookup.model.data import Numbers, Timings
from tuner.lookup.model.forest import MOST_LEAVES, Forest, joined
from tuner.lookup.model.physics import (
    config_features,
    library_features,
    limits,
    problem_features,
    traits,
)
from tuner.lookup.model.predict import Model, fixed_features

if TYPE_CHECKING:
    from tuner.lookup.model.physics import Limits, Traits

#: Problems below which nothing can be left out.
LEAST_PROBLEMS = 20
#: Parts of the problems that are left out in turn.
FOLDS = 5
#: A config this many times slower than the best counts a tenth of it.
SLOW = 10.0


@dataclasses.dataclass(frozen=True)
class Growth:
    """How trees are grown.

    Attributes:
        trees: How many.
        leaves: Of a tree, at the most.
        rate: Learning rate.
        least: Rows of a leaf at the least.
        share: Of the features that a tree may ask for.
        threads: That grow them; the trees are the same with any number.
    """

    trees: int
    leaves: int
    rate: float
    least: int
    share: float
    threads: int = 1


#: For configs, two forests; for the library, of which there is one time a problem, some more.
CONFIGS, OF_LIBRARY = Growth(300, MOST_LEAVES, 0.1, 20, 0.6), Growth(200, 10, 0.08, 5, 0.4)
LIBRARY_FORESTS = 3


@dataclasses.dataclass(frozen=True)
class _Table:
    """A survey as rows of features.

    Attributes:
        rows: Per time of a config: features, shape (times, features).
        targets: log(time / first estimate) and log(time / roofline), shape (2, times).
        weight: How much each counts.
        reference: Mean logs of first estimate and roofline, shape (problems, configs).
        problem: Per time: number of its problem.
        config: Per time: number of its config.
        library_rows: Shape (problems, features).
        library_target: log(library / roofline); NaN where it was not timed.
        roofline: Logs, shape (problems,).
    """

    rows: Floats
    targets: Floats
    weight: Floats
    reference: Floats
    problem: Numbers
    config: Numbers
    library_rows: Floats
    library_target: Floats
    roofline: Floats


def fit(
    timings: Timings,
    kernels: Mapping[str, Kernel],
    device: DeviceInfo,
    seed: int = 0,
    growth: tuple[Growth, Growth] = (CONFIGS, OF_LIBRARY),
) -> Model:
    """Fits a model.

    Args:
        timings: A survey.
        kernels: By name, as declared when it was made.
        device: Where it was made, with its limits.
        seed: Of the folds and of the trees' samples.
        growth: How trees of configs and of the library are grown.

    Raises:
        InputError: There are fewer than 20 problems.
        TunerError: LightGBM is not installed.
    """
    if len(timings.problems) < LEAST_PROBLEMS:
        raise InputError(
            f"a model needs {LEAST_PROBLEMS} problems at least, got {len(timings.problems)}; survey more"
        )
    times, library = timings.matrix()
    fastest = np.fmin(np.nanmin(np.column_stack([times, library]), axis=1), np.inf)
    known = limits(timings.problems, fastest)
    parameters = parameter_table(kernels, timings.configs)
    table = _traits_by_layout(timings, kernels)
    data = _table(timings, parameters, table, device, known)
    calibration = calibrate(left_out(timings, data, seed, growth))
    every = np.arange(len(timings.problems))
    forest, of_library = _forests(data, every, seed, growth)
    return Model(
        timings.problems[0].operation.name, device, known, list(timings.configs), parameters, table, forest,
        of_library, calibration, _provenance(timings, kernels, device),
    )  # fmt: skip


def left_out(
    timings: Timings, data: _Table, seed: int = 0, growth: tuple[Growth, Growth] = (CONFIGS, OF_LIBRARY)
) -> Cases:
    """Every problem as a case, predicted by a model that was fitted to other problems."""
    times, library = timings.matrix()
    order = np.random.default_rng(seed).permutation(len(times))
    predicted, of_library = np.full(times.shape, np.inf), np.full(len(times), np.inf)
    for fold in range(FOLDS):
        out = order[fold::FOLDS]
        forest, libraries = _forests(data, np.setdiff1d(order, out), seed, growth)
        at = np.flatnonzero(np.isin(data.problem, out))
        problem, config = data.problem[at], data.config[at]
        predicted[problem, config] = forest.predict(data.rows[at]) + data.reference[problem, config]
        if len(libraries.leaves):
            of_library[out] = libraries.predict(data.library_rows[out]) + data.roofline[out]
    timed = np.isfinite(times).any(axis=1) & (np.isfinite(library) | ~np.isfinite(library).any())
    dims = np.log([[size for _, size in each.shape] for each in timings.problems])
    library = np.where(np.isfinite(library), library, np.inf)
    return cases(dims[timed], (predicted[timed], of_library[timed]), times[timed], library[timed])


def _table(
    timings: Timings,
    parameters: Floats,
    table: Mapping[tuple[str, str], Traits],
    device: DeviceInfo,
    known: Limits,
) -> _Table:
    times, library = timings.matrix()
    best = np.fmin(np.nanmin(np.column_stack([times, library]), axis=1), np.inf)
    fixed = {key: fixed_features(parameters, device, of) for key, of in table.items()}
    rows, estimates, of_library = [], [], []
    for problem, row in zip(timings.problems, times, strict=True):
        key, timed = (problem.dtype, problem.layout), np.isfinite(row)
        mixed, estimate = config_features(problem, device, table[key], known)
        shared = np.repeat(problem_features(problem, known)[:, None], timed.sum(), axis=1)
        rows.append(np.vstack([fixed[key][:, timed], shared, mixed[:, timed]]).T)
        estimates.append(estimate)
        of_library.append(library_features(problem, device, known))
    place, config = np.nonzero(np.isfinite(times))
    roofline = np.log([known.roofline_s(each) for each in timings.problems])
    estimate = np.array(estimates)
    timed_s = times[place, config]
    return _Table(
        np.concatenate(rows), np.log(timed_s) - np.array([estimate[place, config], roofline[place]]),
        1 / np.minimum(timed_s / best[place], SLOW), (estimate + roofline[:, None]) / 2, place, config,
        np.array(of_library),
        np.log(library) - roofline, roofline,
    )  # fmt: skip


def _forests(
    data: _Table, problems: Numbers, seed: int, growth: tuple[Growth, Growth]
) -> tuple[Forest, Forest]:
    """Forests of configs and of the library, fitted to some problems."""
    at = np.isin(data.problem, problems)
    # Errors of forests with different references differ, and their mean errs less than one as large.
    forest = joined([
        grow(data.rows[at], target[at], data.weight[at], growth[0], seed + number)
        for number, target in enumerate(data.targets)
    ])  # fmt: skip
    timed = problems[np.isfinite(data.library_target[problems])]
    rows, target = data.library_rows[timed], data.library_target[timed]
    if not len(timed):
        return forest, _no_trees(data.library_rows.shape[1])
    some = [grow(rows, target, np.ones(len(rows)), growth[1], seed + at) for at in range(LIBRARY_FORESTS)]
    return forest, joined(some)


def _no_trees(features: int) -> Forest:
    return Forest(
        np.zeros((0, 5), np.int32), np.zeros(0), np.zeros(features + 1, np.int32), np.zeros((0, MOST_LEAVES))
    )


def grow(rows: Floats, target: Floats, weight: Floats, how: Growth, seed: int) -> Forest:
    """Gradient-boosted trees for a squared error.

    Args:
        rows: Shape (rows, features).
        target: Shape (rows,).
        weight: Shape (rows,).
        how: How.
        seed: Of the samples.

    Raises:
        TunerError: LightGBM is not installed.
    """
    try:
        import lightgbm
    except ImportError as error:
        raise TunerError(
            "fitting a model needs LightGBM, which is not installed; pip install 'tile-tuner[model]'"
        ) from error
    settings = {
        "objective": "regression", "num_leaves": how.leaves, "learning_rate": how.rate,
        "min_data_in_leaf": how.least, "bagging_fraction": 0.8, "bagging_freq": 1,
        "feature_fraction": how.share, "max_bin": 127, "seed": seed,
        "verbose": -1, "deterministic": True, "force_row_wise": True, "num_threads": how.threads,
    }  # fmt: skip
    booster = lightgbm.train(settings, lightgbm.Dataset(rows, target, weight=weight), how.trees)
    return _arrays([each["tree_structure"] for each in booster.dump_model()["tree_info"]], rows.shape[1])


def _arrays(trees: Sequence[Mapping[str, Any]], features: int) -> Forest:
    """LightGBM's trees as arrays; it goes left where a value is at most the threshold."""
    leaves = np.zeros((len(trees), MOST_LEAVES))
    asked: list[tuple[int, int, float, int, int]] = []

    def walk(tree: int, node: Mapping[str, Any], first: int) -> int:
        """Numbers the leaves from `first` on; returns the number after the last."""
        if "split_feature" not in node:
            leaves[tree, first] = node["leaf_value"]
            return first + 1
        middle = walk(tree, node["left_child"], first)
        asked.append((tree, node["split_feature"], node["threshold"], first, middle))
        return walk(tree, node["right_child"], middle)

    for number, tree in enumerate(trees):
        walk(number, tree, 0)
    thresholds = [sorted({each[2] for each in asked if each[1] == number}) for number in range(features)]
    places = [{value: at for at, value in enumerate(some)} for some in thresholds]
    nodes = [(tree, feature, places[feature][value], low, high) for tree, feature, value, low, high in asked]
    starts = np.cumsum([0, *map(len, thresholds)]).astype(np.int32)
    return Forest(
        np.array(nodes, np.int32).reshape(-1, 5),
        np.array(list(chain.from_iterable(thresholds))),
        starts,
        leaves,
    )


def parameter_table(kernels: Mapping[str, Kernel], configs: Sequence[tuple[str, Config]]) -> Floats:
    """Kernels and parameters as numbers, shape (1 + names, configs); -1 for what a kernel does not have.

    A parameter's value is a number itself, or else its place among the declared values.
    """
    names = sorted({name for _, config in configs for name in config})
    order = sorted({kernel for kernel, _ in configs})
    found = np.full((1 + len(names), len(configs)), -1.0)
    for at, (kernel, config) in enumerate(configs):
        found[0, at] = order.index(kernel)
        declared = {each.name: each.values for each in kernels[kernel].parameters} if kernel in kernels else {}
        for name, value in config.items():
            values = declared.get(name, ())
            number = values.index(value) if isinstance(value, str) and value in values else value
            found[1 + names.index(name), at] = -2.0 if isinstance(number, str) else float(number)
    return found


def _traits_by_layout(timings: Timings, kernels: Mapping[str, Kernel]) -> dict[tuple[str, str], Traits]:
    kinds: dict[tuple[str, str], Problem] = {}
    for each in timings.problems:
        kinds.setdefault((each.dtype, each.layout), each)
    return {key: traits(kernels, timings.configs, like, timings.registers) for key, like in kinds.items()}


def _provenance(timings: Timings, kernels: Mapping[str, Kernel], device: DeviceInfo) -> dict[str, Any]:
    used = sorted({kernel for kernel, _ in timings.configs})
    return {
        **timings.provenance, "device": device.name, "driver": device.driver, "timings": len(timings.time_s),
        "problems": len(timings.problems), "configs": len(timings.configs),
        "sources": {name: kernels[name].source_hash for name in used if name in kernels},
    }  # fmt: skip
