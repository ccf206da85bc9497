"""From the surveys of a database to a model. Needs LightGBM, the extra ``model``; answering does not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation
from tuner.declare.space import Config
from tuner.errors import InputError, NothingFound
from tuner.model.calibrate import Cases, calibrate
from tuner.model.evidence import WEIGHT, evidence, standing_near
from tuner.model.forest import MOST_LEAVES, Forest, Growth, forest_of, grow
from tuner.model.predict import Model
from tuner.model.stored import name_of, to_bytes
from tuner.model.table import FeatureRows, Timings, table
from tuner.results.distance import Floats, Numbers
from tuner.results.record import ProblemKey, latest_hash, utc_now
from tuner.results.survey import LIBRARY, SurveyPart, Timing
from tuner.store import Store, watched
from tuner.store.reading import Reader

#: Forests of the library, of which there is one time a problem.
LIBRARY_FORESTS = 3
#: How trees of configs and of the library are grown.
CONFIGS, OF_LIBRARY = Growth(800, MOST_LEAVES, 0.08, 20, 0.3), Growth(200, 10, 0.08, 5, 0.4)


@dataclass(frozen=True)
class Recipe:
    """How a model is fitted.

    Attributes:
        configs: Trees of configs: two forests.
        library: Trees of the library.
    """

    configs: Growth = CONFIGS
    library: Growth = OF_LIBRARY


def forests_of(data: FeatureRows, problems: Numbers, seed: int, recipe: Recipe) -> tuple[Forest, Forest]:
    """Fits forests for logs of times: of configs over their references, and of the library over the roofline.

    Args:
        data: The survey.
        problems: Numbers of the problems that count.
        seed: Of samples.
        recipe: How.

    Raises:
        TunerError: LightGBM is not installed.
    """
    at = np.isin(data.problem, problems)
    # Errors of forests with different references differ, and their mean errs less than one as large.
    forest = grow(data.rows[at], list(data.targets[:, at]), data.weight[at], recipe.configs, seed)
    timed = problems[np.isfinite(data.library_target[problems])]
    if not len(timed):
        return forest, forest_of([], data.library_rows.shape[1])
    targets = [data.library_target[timed]] * LIBRARY_FORESTS
    return forest, grow(data.library_rows[timed], targets, np.ones(len(timed)), recipe.library, seed)


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


#: Parts of the problems that are left out in turn; problems left out that suffice to tell what answers cost.
FOLDS, CASES = 5, 400


def left_out(data: FeatureRows, seed: int, recipe: Recipe) -> Cases:
    """Problems as cases, each predicted by a model that was fitted to others.

    A fifth of the problems is left out, and then another, until there are enough cases.
    """
    count, timed = len(data.problems), np.unique(data.problem)
    has_library = np.isfinite(data.library_s)
    order = np.random.default_rng(seed).permutation(timed[has_library[timed] | ~has_library.any()])
    behind, near = (np.full(len(data.problem), np.inf) for _ in range(2))
    log_s = np.full(len(data.problem), np.inf)
    library_log_s, is_case = np.full(count, np.inf), np.zeros(count, bool)
    for fold in range(FOLDS):
        fresh = order[fold::FOLDS]
        rest = np.setdiff1d(np.arange(count), fresh)
        forest, library = forests_of(data, rest, seed, recipe)
        inside = np.isin(data.problem, rest)
        kept = shortlist(data.problem[inside], data.config[inside], data.time_s[inside])
        at = np.flatnonzero(np.isin(data.problem, fresh))
        log_s[at] = forest.predict(data.rows[at]) + data.reference[at]
        behind[at], near[at] = standing_near(data, evidence(data, rest, kept), kept, at)
        if len(library.leaves):
            library_log_s[fresh] = library.predict(data.library_rows[fresh]) + data.roofline[fresh]
        is_case[fresh] = True
        if is_case.sum() >= CASES:
            break
    log_s[~np.isfinite(behind)] = np.inf  # what could not be answered
    return _cases(data, np.flatnonzero(is_case), log_s, log_s + WEIGHT * behind, near, library_log_s)


def _cases(
    data: FeatureRows, numbers: Numbers, log_s: Floats, score: Floats, near: Floats, library_log_s: Floats
) -> Cases:
    """Problems as cases.

    Args:
        data: The survey.
        numbers: Of the problems.
        log_s: Per timing: log of predicted seconds, infinite where the config could not be answered.
        score: Per timing: what answers are chosen by, the least first.
        near: Per timing: log(library / config) near by.
        library_log_s: Per problem: log of the library's predicted seconds, infinite where there is none.
    """
    left, searched = still_to_find(data)
    true, ends = np.append(data.time_s, np.inf), data.ends
    # The last of all stands for no config.
    log_s, score, near = np.append(log_s, np.inf), np.append(score, np.inf), np.append(near, -np.inf)
    chosen = np.array([
        begin + int(np.argmin(score[begin:end])) if np.isfinite(score[begin:end]).any() else -1
        for begin, end in zip(ends[numbers], ends[numbers + 1], strict=True)
    ])  # fmt: skip
    fastest_s = np.array([data.time_s[ends[at] : ends[at + 1]].min() for at in numbers])
    library_s = np.where(np.isfinite(data.library_s), data.library_s, np.inf)[numbers]
    kernel_s, foreseen, library_log_s = true[chosen], log_s[chosen], library_log_s[numbers]
    with np.errstate(invalid="ignore"):
        gain = np.where(np.isfinite(foreseen), library_log_s - foreseen, -np.inf)
    dims = np.log([[size for _, size in data.problems[at].shape] for at in numbers])
    best_s = np.minimum(fastest_s, library_s) * np.exp(-left[numbers])
    predicted, times_s = (gain, near[chosen], foreseen, library_log_s), (kernel_s, library_s, best_s)
    cases = Cases.of(dims, predicted, times_s, searched)
    return cases.some(np.isfinite(np.minimum(kernel_s, library_s)))


#: A problem with so many times the timings that this share of problems have is one at which the search went on.
SEARCHED, USUAL = 3.0, 0.9
#: Tries of a study of some seconds; problems with so many tries tell what more of them find.
STUDIED, LEAST_TRIED = 250, 16


def still_to_find(data: FeatureRows) -> tuple[Floats, int]:
    """What a study would find beyond a survey's turn at a problem, which is extrapolated.

    Every other timing is left out, and what the rest miss in the mean is expected of each further doubling of
    the tries. Where the survey went on for some turns, nothing is left.

    Returns:
        Per problem: log of the time that is still to be gained. And at how many the survey went on.
    """
    ends, counts, missed = data.ends, np.diff(data.ends), []
    for at in np.flatnonzero(counts >= LEAST_TRIED):
        log_s, library = np.log(data.time_s[ends[at] : ends[at + 1]]), math.log(data.library_s[at])
        halves = [np.fmin(log_s[first::2].min(), library) for first in (0, 1)]
        missed.append(np.mean(halves) - np.fmin(log_s.min(), library))
    deep = counts >= SEARCHED * np.quantile(counts[counts > 0], USUAL)
    # A study tries no config twice.
    studied = min(STUDIED, data.parameters.shape[1])
    doublings = np.maximum(np.log2(studied / np.maximum(counts, 1)), 0.0)
    each_doubling = float(np.mean(missed)) if missed else 0.0
    return np.where(deep | (counts == 0), 0.0, each_doubling * doublings), int(deep.sum())


#: Problems below which nothing can be left out.
LEAST_PROBLEMS = 20


def fit(
    timings: Timings,
    kernels: Mapping[str, Kernel],
    device: DeviceInfo,
    seed: int = 0,
    recipe: Recipe | None = None,
) -> Model:
    """Fits a model.

    Args:
        timings: A survey.
        kernels: By name, as declared when it was made.
        device: Where it was made, with its limits.
        seed: Of the folds and of the trees' samples.
        recipe: How; with the usual trees unless given.

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
    known = left_out(data, seed, recipe)
    every = np.arange(len(timings.problems))
    forest, library = forests_of(data, every, seed, recipe)
    chosen = shortlist(data.problem, data.config, data.time_s)
    return Model(
        timings.problems[0].operation.name, device, data.limits, [timings.configs[at] for at in chosen],
        data.parameters[:, chosen], {key: of.some(chosen) for key, of in data.traits.items()}, forest,
        library, calibrate(known), evidence(data, every, chosen),
        {**_provenance(timings, kernels, device), "shortlist": len(chosen)},
    )  # fmt: skip


def _provenance(timings: Timings, kernels: Mapping[str, Kernel], device: DeviceInfo) -> dict[str, Any]:
    used = sorted({kernel for kernel, _ in timings.configs})
    return {
        **timings.provenance, "device": device.name, "driver": device.driver, "timings": len(timings.time_s),
        "problems": len(timings.problems), "configs": len(timings.configs),
        "sources": {name: kernels[name].source_hash for name in used if name in kernels},
    }  # fmt: skip


# --- from a database -----------------------------------


def timings(
    store: Reader,
    operation: Operation,
    kernels: Iterable[Kernel],
    device: DeviceInfo | str,
    regime: str = "cold",
    dtype: str = "",
) -> Timings:
    """All that surveys timed of an operation on a kind of device, of kernels as they are now.

    Args:
        store: Where from.
        operation: What was timed.
        kernels: Configs of other sources than theirs are left out.
        device: Where; a text is a uuid or a name.
        regime: How time was taken.
        dtype: Of the problems; the operation's first unless given.

    Raises:
        NothingFound: Nothing of it was surveyed.
    """
    dtype = dtype or operation.dtypes[0]
    surveyed = joined(store.survey_parts(operation.name, device, regime), operation, kernels, dtype)
    if surveyed is None:
        raise NothingFound(
            f"a model needs a survey, there is none of {operation.name} ({dtype}, {regime}) on "
            f"{device if isinstance(device, str) else device.name}; run `tuner survey {operation.name}`"
        )
    return surveyed


def joined(
    parts: Sequence[SurveyPart], operation: Operation, kernels: Iterable[Kernel], dtype: str = ""
) -> Timings | None:
    """Parts of surveys as arrays; of a config timed twice at a problem the last time counts.

    Args:
        parts: Of one operation, regime and kind of device, in the order measured.
        operation: What was timed.
        kernels: Configs of other sources than theirs are left out.
        dtype: Of the problems; any when empty.

    Returns:
        None where nothing was timed.
    """
    sources = {kernel.name: latest_hash(kernel.source_hash) for kernel in kernels}
    registers: dict[tuple[str, Config], int] = {}
    times: dict[tuple[ProblemKey, tuple[str, Config] | None], Timing] = {}
    for part in parts:
        named = [(config.kernel, Config(dict(config.config))) for config in part.configs]
        registers = {of: one.registers for of, one in zip(named, part.configs, strict=True)} | registers
        current = [sources.get(config.kernel) == latest_hash(config.source_hash) for config in part.configs]
        # The library is the last, as its number -1 says.
        is_counted, configs = [*current, True], [*named, None]
        for timing in part.timings:
            problem = part.problems[timing.problem]
            if dtype in ("", problem.dtype) and is_counted[timing.config]:
                times[problem, configs[timing.config]] = timing
    times = {at: timing for at, timing in times.items() if not timing.outcome.failed}
    if not times:
        return None
    problems = {key: number for number, key in enumerate(dict.fromkeys(key for key, _ in times))}
    every = list(dict.fromkeys(named for _, named in times if named is not None))
    numbers = {None: LIBRARY} | {named: number for number, named in enumerate(every)}
    return Timings(
        [operation.problem(key.dims, key.dtype, key.layout) for key in problems], every,
        np.array([problems[key] for key, _ in times], np.int64),
        np.array([numbers[named] for _, named in times], np.int64),
        np.array([timing.time_s for timing in times.values()]),
        np.array([registers[named] for named in every], float), _parts_provenance(parts),
    )  # fmt: skip


def _parts_provenance(parts: Sequence[SurveyPart]) -> dict[str, Any]:
    """Where the timings of some parts come from."""
    measured = [part.measured_at for part in parts]
    return {
        "devices": sorted({part.device.name for part in parts}),
        "regimes": sorted({part.regime for part in parts}),
        "versions": {name: text for part in parts for name, text in part.versions.items()},
        "measured_at": max(measured), "first": min(measured), "parts": len(parts),
    }  # fmt: skip


def refit(
    store: Store,
    operation: Operation,
    kernels: Iterable[Kernel],
    device: DeviceInfo,
    regime: str,
    seed: int = 0,
    dtype: str = "",
) -> Model:
    """Fits a model to the database's surveys, and stores it in place of the one before it.

    Args:
        store: Where surveys are, and the model goes.
        operation: What is predicted.
        kernels: The kernels as they are now: times of other sources are left out.
        device: Where.
        regime: How the times were taken.
        seed: Of folds and samples.
        dtype: Of what is predicted; the operation's first unless given.

    Raises:
        NothingFound: Nothing of it was surveyed.
        InputError: Too few problems were.
        TunerError: LightGBM is not installed.
        StoreTrouble: The database cannot be read or written.
    """
    by_name = {kernel.name: kernel for kernel in kernels}
    surveyed = timings(store, operation, by_name.values(), device, regime, dtype)
    model = fit(surveyed, by_name, device, seed)
    model = replace(model, provenance={**model.provenance, "regime": regime, "fitted_at": utc_now()})
    watched.add_model(store, name_of(operation, dtype), device.name, regime, to_bytes(model))
    return model
