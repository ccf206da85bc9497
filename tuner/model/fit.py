"""Fits a model to a survey. Needs LightGBM, the extra ``model``; answering does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.devices.cuda.process import Gpu
from tuner.errors import InputError
from tuner.model.calibrate import Cases, Said, calibrate, cases
from tuner.model.evidence import BESIDE_NETWORKS, WEIGHT, evidence, standing_near
from tuner.model.fitted import Model
from tuner.model.forest import MOST_LEAVES, Forest, joined
from tuner.model.growing import Growth, grow, no_trees
from tuner.model.network import Network
from tuner.model.table import Table, Timings, table
from tuner.model.training import TRAINING, Training, share_of, trained
from tuner.results.distance import Floats, Numbers

#: Forests of the library, of which there is one time a problem.
LIBRARY_FORESTS = 3
#: How trees of configs and of the library are grown.
CONFIGS, OF_LIBRARY = Growth(800, MOST_LEAVES, 0.15, 20, 0.6), Growth(200, 10, 0.08, 5, 0.4)
#: Trees of configs beside networks: they tell which configs are worth asking networks about.
BESIDE = Growth(150, MOST_LEAVES, 0.15, 20, 0.6)


@dataclass(frozen=True)
class Recipe:
    """How a model is fitted.

    Attributes:
        configs: Trees of configs: two forests.
        beside: The same where there are networks.
        library: Trees of the library.
        networks: Networks of configs.
    """

    configs: Growth = CONFIGS
    beside: Growth = BESIDE
    library: Growth = OF_LIBRARY
    networks: Training = TRAINING


class Parts(NamedTuple):
    """Predict logs of times: of configs over their references, and of the library over the roofline."""

    forest: Forest
    network: Network | None
    library: Forest


def parts_of(data: Table, problems: Numbers, seed: int, recipe: Recipe, gpu: Gpu | None) -> Parts:
    """Fits them.

    Args:
        data: The survey.
        problems: Numbers of the problems that count.
        seed: Of samples and first weights.
        recipe: How.
        gpu: Where networks are trained; None for the CPU.

    Raises:
        TunerError: LightGBM is not installed.
    """
    at = np.isin(data.problem, problems)
    rows, weight = data.rows[at], data.weight[at]
    network = None
    if len(data.rows) >= recipe.networks.least:
        network = trained(rows, data.target[at], weight, recipe.networks, seed, gpu)
    how = recipe.configs if network is None else recipe.beside
    # Errors of forests with different references differ, and their mean errs less than one as large.
    forest = joined([
        grow(rows, target[at], weight, how, seed + number) for number, target in enumerate(data.targets)
    ])  # fmt: skip
    timed = problems[np.isfinite(data.library_target[problems])]
    if not len(timed):
        return Parts(forest, network, no_trees(data.library_rows.shape[1]))
    of_library, target = data.library_rows[timed], data.library_target[timed]
    ones = np.ones(len(timed))
    some = [grow(of_library, target, ones, recipe.library, seed + each) for each in range(LIBRARY_FORESTS)]
    return Parts(forest, network, joined(some))


#: Configs of a shortlist.
SHORTLIST = 2000
#: A problem for which nothing good is chosen counts as this loss of log time.
MISSED = 0.5
#: Log of time behind the best that is near to it.
NEAR = 0.03


def shortlist(problem: Numbers, config: Numbers, time_s: Floats, count: int = SHORTLIST) -> Numbers:
    """Chooses configs one by one, each time the one that brings problems closest to their best.

    Args:
        problem: Per time: number of its problem.
        config: Per time: number of its config.
        time_s: Per time: seconds.
        count: Configs at the most; once every problem has its best, those follow that are good most often.

    Returns:
        Numbers of configs, the most useful first.
    """
    order = np.argsort(config, kind="stable")
    problem, config, log_s = problem[order], config[order], np.log(time_s[order])
    best = np.full(problem.max(initial=-1) + 1, np.inf)
    np.minimum.at(best, problem, log_s)
    loss, left = log_s - best[problem], np.full(len(best), MISSED)
    starts = np.flatnonzero(np.diff(config, prepend=-1))
    numbers, ends = config[starts], np.append(starts[1:], len(config))
    chosen: list[int] = []
    while len(chosen) < min(count, len(numbers)):
        gains = np.add.reduceat(np.maximum(left[problem] - loss, 0.0), starts)
        at = int(np.argmax(gains))
        if gains[at] <= 0:
            break
        chosen.append(int(numbers[at]))
        mine = slice(starts[at], ends[at])
        np.minimum.at(left, problem[mine], loss[mine])
    good = np.add.reduceat(np.exp(-loss / NEAR), starts)
    rest = [int(numbers[at]) for at in np.argsort(-good, kind="stable")]
    return np.array(list(dict.fromkeys([*chosen, *rest]))[:count], dtype=np.int64)


#: Parts of the problems that are left out in turn.
FOLDS = 5
#: Problems left out that suffice to tell what answers cost.
CASES = 400


def left_out(
    problems: Sequence[Problem], data: Table, seed: int, recipe: Recipe, gpu: Gpu | None
) -> tuple[Cases, float]:
    """Problems as cases, each predicted by a model that was fitted to others, and the networks' share.

    A fifth of the problems is left out, and then another, until there are enough cases.
    """
    timed = np.unique(data.problem)
    has_library = np.isfinite(data.library_s)
    order = np.random.default_rng(seed).permutation(timed[has_library[timed] | ~has_library.any()])
    behind, gain = (np.full(len(data.problem), np.inf) for _ in range(2))
    of_trees, of_network = (np.zeros(len(data.problem)) for _ in range(2))
    of_library, out = np.full(len(problems), np.inf), []
    for fold in range(FOLDS):
        fresh = order[fold::FOLDS]
        rest = np.setdiff1d(np.arange(len(problems)), fresh)
        parts = parts_of(data, rest, seed, recipe, gpu)
        inside = np.isin(data.problem, rest)
        kept = shortlist(data.problem[inside], data.config[inside], data.time_s[inside])
        known = evidence(problems, list(data.traits), data, rest, kept)
        at = np.flatnonzero(np.isin(data.problem, fresh))
        of_trees[at] = parts.forest.predict(data.rows[at])
        of_network[at] = of_trees[at] if parts.network is None else parts.network.predict(data.rows[at])
        behind[at], gain[at] = standing_near(problems, data, known, kept, at)
        if len(parts.library.leaves):
            of_library[fresh] = parts.library.predict(data.library_rows[fresh]) + data.roofline[fresh]
        out.append(fresh)
        if sum(map(len, out)) >= CASES:
            break
    numbers = np.sort(np.concatenate(out))
    seen = np.isin(data.problem, numbers)
    share = share_of(of_trees[seen], of_network[seen], data.target[seen], data.weight[seen])
    log_s = (1 - share) * of_trees + share * of_network + data.reference
    weight = WEIGHT if parts.network is None else BESIDE_NETWORKS
    said = Said(np.where(np.isfinite(behind), log_s, np.inf), behind, gain, of_library, weight)
    dims = np.log([[size for _, size in each.shape] for each in problems])
    return cases(numbers, dims, data, said), share


#: Problems below which nothing can be left out.
LEAST_PROBLEMS = 20


def fit(
    timings: Timings,
    kernels: Mapping[str, Kernel],
    device: DeviceInfo,
    seed: int = 0,
    recipe: Recipe | None = None,
    gpu: Gpu | None = None,
) -> Model:
    """Fits a model.

    Args:
        timings: A survey.
        kernels: By name, as declared when it was made.
        device: Where it was made, with its limits.
        seed: Of the folds and of the trees' samples.
        recipe: How; with the usual trees and networks unless given.
        gpu: Where networks are trained; None for the CPU.

    Raises:
        InputError: There are fewer than 20 problems.
        TunerError: LightGBM is not installed.
    """
    if len(timings.problems) < LEAST_PROBLEMS:
        raise InputError(
            f"a model needs {LEAST_PROBLEMS} problems at least, got {len(timings.problems)}; survey more"
        )
    recipe = recipe or Recipe()
    data = table(timings, kernels, device)
    known, share = left_out(timings.problems, data, seed, recipe, gpu)
    parts = parts_of(data, np.arange(len(timings.problems)), seed, recipe, gpu)
    chosen = shortlist(data.problem, data.config, data.time_s)
    return Model(
        timings.problems[0].operation.name, device, data.limits, [timings.configs[at] for at in chosen],
        data.parameters[:, chosen], {key: of.some(chosen) for key, of in data.traits.items()}, parts.forest,
        parts.library, calibrate(known), {**_provenance(timings, kernels, device), "shortlist": len(chosen)},
        evidence(timings.problems, list(data.traits), data, np.arange(len(timings.problems)), chosen),
        parts.network and dataclasses.replace(parts.network, share=share),
    )  # fmt: skip


def _provenance(timings: Timings, kernels: Mapping[str, Kernel], device: DeviceInfo) -> dict[str, Any]:
    used = sorted({kernel for kernel, _ in timings.configs})
    return {
        **timings.provenance, "device": device.name, "driver": device.driver, "timings": len(timings.time_s),
        "problems": len(timings.problems), "configs": len(timings.configs),
        "sources": {name: kernels[name].source_hash for name in used if name in kernels},
    }  # fmt: skip
