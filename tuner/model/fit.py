"""From the surveys of a database to a model. Needs LightGBM, the extra ``model``; answering does not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation
from tuner.declare.space import Config
from tuner.errors import InputError, NothingFound
from tuner.model.calibrate import Calibration, Case, Cases, calibrate
from tuner.model.forest import MOST_LEAVES, forest_of, grow
from tuner.model.predict import Model, Predictor
from tuner.model.stored import name_of, to_bytes
from tuner.model.table import FeatureRows, Timings, evidence
from tuner.results.distance import Floats, Numbers
from tuner.results.record import ProblemKey, latest_hash, utc_now
from tuner.results.survey import LIBRARY, SurveyPart
from tuner.store import Store, watched

#: Forests of the library, of which there is one time a problem.
LIBRARY_FORESTS = 3
#: How trees of configs and of the library are grown.
OF_CONFIGS, OF_LIBRARY = (
    {"num_iterations": trees, "num_leaves": leaves, "min_data_in_leaf": least, "feature_fraction": share}
    for trees, leaves, least, share in ((800, MOST_LEAVES, 20, 0.3), (200, 10, 5, 0.4))
)


#: Configs of a shortlist.
SHORTLIST = 2000
#: Log of time behind the best that is near to it.
NEAR = 0.03


def shortlist(problem: Numbers, config: Numbers, time_s: Floats, count: int = SHORTLIST) -> Numbers:
    """Chooses configs: those that are the best at some problem, then others, each by how often they are good.

    Args:
        problem: Per time: number of its problem.
        config: Per time: number of its config.
        time_s: Per time: seconds.
        count: Configs at the most.

    Returns:
        Numbers of configs, the most useful first.
    """
    order = np.argsort(config, kind="stable")
    problem, config, log_s = problem[order], config[order], np.log(time_s[order])
    best = np.full(problem.max(initial=-1) + 1, np.inf)
    np.minimum.at(best, problem, log_s)
    loss, starts = log_s - best[problem], np.flatnonzero(np.diff(config, prepend=-1))
    good = np.add.reduceat(np.exp(-loss / NEAR), starts)
    is_never_best = np.minimum.reduceat(loss, starts) > 0
    return config[starts][np.lexsort((-good, is_never_best))][:count]


#: Of a model that is yet to be calibrated.
NO_CASES = Calibration(0.0, np.zeros((0, 0)), np.zeros(0), np.zeros(0), 1.0, (-1.0, 1.0))


def uncalibrated(data: FeatureRows, problems: Numbers, seed: int) -> Model:
    """A model fitted to some problems of a survey; it predicts times, and says nothing of losses.

    Raises:
        TunerError: LightGBM is not installed.
    """
    at = np.isin(data.problem, problems)
    # Errors of forests with different references differ, and their mean errs less than one as large.
    forest = grow(data.rows[at], list(data.targets[:, at]), data.weight[at], OF_CONFIGS, seed)
    library = forest_of([], data.library_rows.shape[1])
    timed = problems[np.isfinite(data.library_target[problems])]
    if len(timed):
        targets = [data.library_target[timed]] * LIBRARY_FORESTS
        library = grow(data.library_rows[timed], targets, np.ones(len(timed)), OF_LIBRARY, seed)
    chosen = shortlist(data.problem[at], data.config[at], data.time_s[at])
    return Model(
        data.timings.problems[0].operation.name, data.device, data.limits,
        [data.timings.configs[at] for at in chosen], data.order, data.parameters[:, chosen],
        {key: of.some(chosen) for key, of in data.traits.items()}, forest, library, NO_CASES,
        evidence(data, problems, chosen),
        {name: getattr(data.timings.problems[0], name) for name in ("precision", "epilogue")},
    )  # fmt: skip


#: Parts of the problems that are left out in turn; problems left out that suffice to tell what answers cost.
FOLDS, CASES = 5, 400


def left_out(data: FeatureRows, seed: int) -> tuple[Cases, Cases]:
    """Problems as cases, each predicted by a model that was fitted to others.

    A fifth of the problems is left out, and then another, until there are enough cases. Of the configs that
    were timed at a problem the model's best is its answer there.

    Returns:
        The cases, and the same with half of each problem's timings, at random.
    """
    timings, every = data.timings, np.arange(len(data.timings.problems))
    has_library = np.isfinite(data.library_s) | ~np.isfinite(data.library_s).any()
    rng = np.random.default_rng(seed)
    order = rng.permutation(every[np.isfinite(data.fastest_s) & has_library])
    cases, halved = list[Case](), list[Case]()
    for fold in range(FOLDS):
        fresh = order[fold::FOLDS]
        model = uncalibrated(data, np.setdiff1d(every, fresh), seed)
        predictor = Predictor(model, data.kernels, data.device)
        for at in fresh.tolist():
            library_s = timings.times_s[at].get(LIBRARY, math.inf)
            for of, share in ((cases, 1.0), (halved, 0.5)):
                times = timings.times_s[at].items()
                known = {timings.configs[n]: s for n, s in times if n != LIBRARY and rng.random() < share}
                best, forecast = predictor.forecast(timings.problems[at], known)
                kernel_s = known[best[:2]] if best else math.inf
                if min(kernel_s, library_s) < math.inf:
                    least_s = min([library_s, *known.values()])
                    of.append((timings.problems[at], forecast, (kernel_s, library_s, least_s)))
        if len(cases) >= CASES:
            break
    return Cases.of(cases), Cases.of(halved)


#: Problems below which nothing can be left out.
LEAST_PROBLEMS = 20


def fit(timings: Timings, kernels: Mapping[str, Kernel], device: DeviceInfo, seed: int = 0) -> Model:
    """Fits a model.

    Args:
        timings: A survey.
        kernels: By name, as declared when it was made.
        device: Where it was made, with its limits.
        seed: Of the folds and of the trees' samples.

    Raises:
        InputError: Configs were timed at fewer than 20 problems.
        TunerError: LightGBM is not installed.
    """
    if (count := sum(times.keys() != {LIBRARY} for times in timings.times_s)) < LEAST_PROBLEMS:
        raise InputError(f"a model needs configs timed at {LEAST_PROBLEMS} problems, got {count}; survey more")
    data = FeatureRows(timings, kernels, device)
    known = calibrate(*left_out(data, seed))
    model = uncalibrated(data, np.arange(len(timings.problems)), seed)
    used = sorted({kernel for kernel, _ in timings.configs} & kernels.keys())
    provenance = {
        **model.provenance, **timings.provenance, "device": device.name, "driver": device.driver,
        "timings": sum(map(len, timings.times_s)), "problems": len(timings.problems),
        "configs": len(timings.configs), "shortlist": len(model.configs),
        "sources": {name: kernels[name].source_hash for name in used},
    }  # fmt: skip
    return replace(model, calibration=known, provenance=provenance)


# --- from a database -----------------------------------


def joined(
    parts: Sequence[SurveyPart], operation: Operation, kernels: Iterable[Kernel], arithmetic: str = ""
) -> Timings | None:
    """Parts of surveys as arrays; of a config timed twice at a problem the last time counts.

    Args:
        parts: Of one operation, regime and kind of device, in the order measured.
        operation: What was timed.
        kernels: Configs of other sources than theirs are left out.
        arithmetic: Of the problems (`ProblemKey.arithmetic`); any when empty.

    Returns:
        None where nothing was timed.
    """
    sources = {kernel.name: latest_hash(kernel.source_hash) for kernel in kernels}
    numbers, registers = dict[tuple[str, Config], int](), list[int]()
    times: dict[ProblemKey, dict[int, float]] = {}
    for part in parts:
        named = [(config.kernel, Config(dict(config.config))) for config in part.configs]
        current = [sources.get(config.kernel) == latest_hash(config.source_hash) for config in part.configs]
        for timing in part.timings:
            problem, number = part.problems[timing.problem], timing.config
            if arithmetic not in ("", problem.arithmetic) or (number != LIBRARY and not current[number]):
                continue
            if number != LIBRARY:
                if named[number] not in numbers:
                    registers.append(part.configs[number].registers)
                number = numbers.setdefault(named[number], len(numbers))
            times.setdefault(problem, {}).pop(number, None)
            if not timing.outcome.failed:
                times[problem][number] = timing.time_s
    times = {problem: times_s for problem, times_s in times.items() if times_s}
    if not times:
        return None
    measured = [part.measured_at for part in parts]
    provenance = {
        "versions": {name: text for part in parts for name, text in part.versions.items()},
        "measured_at": max(measured), "first": min(measured), "parts": len(parts),
    }  # fmt: skip
    problems = [key.of_operation(operation) for key in times]
    return Timings(problems, list(numbers), list(times.values()), np.array(registers, float), provenance)


def refit(
    store: Store, operation: Operation, kernels: Iterable[Kernel], device: DeviceInfo, regime: str,
    seed: int = 0, arithmetic: str = "",
) -> Model:  # fmt: skip
    """Fits a model to the database's surveys, and stores it in place of the one before it.

    Args:
        store: Where surveys are, and the model goes.
        operation: What is predicted.
        kernels: The kernels as they are now: times of other sources are left out.
        device: Where.
        regime: How the times were taken.
        seed: Of folds and samples.
        arithmetic: Of what is predicted (`ProblemKey.arithmetic`); the operation's first dtype unless given.

    Raises:
        NothingFound: Nothing of it was surveyed.
        InputError: Too few problems were.
        TunerError: LightGBM is not installed.
        StoreTrouble: The database cannot be read or written.
    """
    by_name = {kernel.name: kernel for kernel in kernels}
    arithmetic = arithmetic or operation.dtypes[0]
    parts = store.survey_parts(operation.name, device, regime)
    surveyed = joined(parts, operation, by_name.values(), arithmetic)
    if surveyed is None:
        raise NothingFound(
            f"a model needs a survey, there is none of {operation.name} ({arithmetic}, {regime}) on "
            f"{device.name}; run `tuner survey {operation.name}`"
        )
    model = fit(surveyed, by_name, device, seed)
    model = replace(model, provenance={**model.provenance, "regime": regime, "fitted_at": utc_now()})
    watched.add_model(store, name_of(operation, arithmetic), device.name, regime, to_bytes(model))
    return model
