"""Fits a model to a survey. Needs LightGBM, the extra ``model``; answering does not."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.errors import InputError, TunerError
from tuner.lookup.features import Floats
from tuner.lookup.model.calibrate import Cases, Said, calibrate, cases
from tuner.lookup.model.data import Numbers, Timings
from tuner.lookup.model.evidence import evidence, standing_near
from tuner.lookup.model.fitted import Model
from tuner.lookup.model.forest import MOST_LEAVES, Forest, joined
from tuner.lookup.model.shortlist import shortlist
from tuner.lookup.model.table import Table, table

#: Problems below which nothing can be left out.
LEAST_PROBLEMS = 20
#: Parts of the problems that are left out in turn.
FOLDS = 5
#: Problems left out that suffice to tell what answers cost.
CASES = 400


@dataclasses.dataclass(frozen=True)
class Growth:
    """How trees are grown.

    Attributes:
        trees: How many.
        leaves: Of a tree, at the most.
        rate: Learning rate.
        least: Rows of a leaf at the least.
        share: Of the features that a tree may ask for.
        threads: That grow them, 0 for as many as the process has cores; the trees are the same with any number.
    """

    trees: int
    leaves: int
    rate: float
    least: int
    share: float
    threads: int = 0


#: For configs, two forests; for the library, of which there is one time a problem, some more.
CONFIGS, OF_LIBRARY = Growth(800, MOST_LEAVES, 0.15, 20, 0.6), Growth(200, 10, 0.08, 5, 0.4)
LIBRARY_FORESTS = 3
#: Log of time to which leaves are rounded: sums are far more precise than times are, and files smaller.
LEAF_STEP = 2.0**-14


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
    data = table(timings, kernels, device)
    calibration = calibrate(left_out(timings.problems, data, seed, growth))
    forest, of_library = _forests(data, np.arange(len(timings.problems)), seed, growth)
    chosen = shortlist(data.problem, data.config, data.time_s)
    return Model(
        timings.problems[0].operation.name, device, data.limits, [timings.configs[at] for at in chosen],
        data.parameters[:, chosen], {key: of.some(chosen) for key, of in data.traits.items()}, forest,
        of_library, calibration, {**_provenance(timings, kernels, device), "shortlist": len(chosen)},
        evidence(timings.problems, list(data.traits), data, np.arange(len(timings.problems)), chosen),
    )  # fmt: skip


def left_out(
    problems: Sequence[Problem],
    data: Table,
    seed: int = 0,
    growth: tuple[Growth, Growth] = (CONFIGS, OF_LIBRARY),
) -> Cases:
    """Problems as cases, each predicted by a model that was fitted to others.

    A fifth of the problems is left out, and then another, until there are enough cases.
    """
    timed = np.unique(data.problem)
    has_library = np.isfinite(data.library_s)
    order = np.random.default_rng(seed).permutation(timed[has_library[timed] | ~has_library.any()])
    count = len(data.problem)
    log_s, standing, gain = (np.full(count, np.inf) for _ in range(3))
    of_library, out = np.full(len(problems), np.inf), []
    for fold in range(FOLDS):
        fresh = order[fold::FOLDS]
        rest = np.setdiff1d(np.arange(len(problems)), fresh)
        forest, libraries = _forests(data, rest, seed, growth)
        inside = np.isin(data.problem, rest)
        kept = shortlist(data.problem[inside], data.config[inside], data.time_s[inside])
        known = evidence(problems, list(data.traits), data, rest, kept)
        at = np.flatnonzero(np.isin(data.problem, fresh))
        log_s[at] = forest.predict(data.rows[at]) + data.reference[at]
        behind, gain[at] = standing_near(problems, data, known, kept, at)
        log_s[at] = np.where(np.isfinite(behind), log_s[at], np.inf)
        if len(libraries.leaves):
            of_library[fresh] = libraries.predict(data.library_rows[fresh]) + data.roofline[fresh]
        standing[at] = behind
        out.append(fresh)
        if sum(map(len, out)) >= CASES:
            break
    dims = np.log([[size for _, size in each.shape] for each in problems])
    said = Said(log_s, standing, gain, of_library)
    return cases(np.sort(np.concatenate(out)), dims, data, said)


def _forests(data: Table, problems: Numbers, seed: int, growth: tuple[Growth, Growth]) -> tuple[Forest, Forest]:
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
    threads = how.threads or len(os.sched_getaffinity(0))
    settings = {
        "objective": "regression", "num_leaves": how.leaves, "learning_rate": how.rate,
        "min_data_in_leaf": how.least, "bagging_fraction": 0.8, "bagging_freq": 1,
        "feature_fraction": how.share, "max_bin": 127, "seed": seed,
        "verbose": -1, "deterministic": True, "force_row_wise": True, "num_threads": threads,
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
            leaves[tree, first] = round(node["leaf_value"] / LEAF_STEP) * LEAF_STEP
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


def _provenance(timings: Timings, kernels: Mapping[str, Kernel], device: DeviceInfo) -> dict[str, Any]:
    used = sorted({kernel for kernel, _ in timings.configs})
    return {
        **timings.provenance, "device": device.name, "driver": device.driver, "timings": len(timings.time_s),
        "problems": len(timings.problems), "configs": len(timings.configs),
        "sources": {name: kernels[name].source_hash for name in used if name in kernels},
    }  # fmt: skip
