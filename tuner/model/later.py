"""Problems of a survey that a model was not fitted to: they tell what its answers lose, and when to trust them.

A survey made later, on another board perhaps, times what the model answers at some of its problems, the library
at all. That is a sample: configs that a survey tries are ones that were good near by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.errors import InputError
from tuner.model.calibrate import Cases, choice
from tuner.model.drawn import DrawnCase
from tuner.model.fitted import Model
from tuner.model.predict import Predictor
from tuner.model.table import LIBRARY, Timings

#: Problems without which nothing is chosen.
FEWEST = 200


def later_cases(model: Model, kernels: Mapping[str, Kernel], timings: Timings) -> list[DrawnCase]:
    """Problems of which a model knows no config's time, at which what it answers was timed, and the library.

    Args:
        model: The model.
        kernels: By name, as they are now.
        timings: A survey.

    Returns:
        Each with the fastest of what was timed there as champion.

    Raises:
        InputError: The model, of an earlier version, does not tell what it was fitted to.
    """
    predictor, seen, found = Predictor(model, kernels), _fitted_to(model), []
    order = np.argsort(timings.problem, kind="stable")
    ends = np.searchsorted(timings.problem[order], np.arange(len(timings.problems) + 1))
    for number, problem in enumerate(timings.problems):
        rows = order[ends[number] : ends[number + 1]]
        configs, times_s = timings.config[rows].tolist(), timings.time_s[rows].tolist()
        timed = {
            timings.configs[at]: each_s for at, each_s in zip(configs, times_s, strict=True) if at != LIBRARY
        }
        library_s = next((each_s for at, each_s in zip(configs, times_s, strict=True) if at == LIBRARY), None)
        if library_s is None or not timed or not model.knows(problem) or _place(problem) in seen:
            continue
        best = predictor.answer(problem).best
        own_s = timed.get((best.kernel, best.config)) if best is not None else None
        if best is not None and own_s is not None:
            fastest_s = min(timed.values())
            found.append(DrawnCase(problem, best.kernel, best.config, own_s, library_s, fastest_s))
    return found


def trusted(model: Model, kernels: Mapping[str, Kernel], cases: list[DrawnCase]) -> Model:
    """A model that answers a kernel where that costs least at problems that it was not fitted to.

    Args:
        model: The model.
        kernels: By name, as they are now.
        cases: Such problems.

    Raises:
        InputError: There are too few.
    """
    if len(cases) < FEWEST:
        raise InputError(
            f"margin and doubt are chosen by {FEWEST} problems at least that the model was not fitted to, and "
            f"at which what it answers was timed, got {len(cases)}; survey more"
        )
    predictor = Predictor(model, kernels)
    said = [predictor.answer(each.problem) for each in cases]
    kernel_s = np.array([each.kernel_s for each in cases])
    known = Cases(
        np.log([[size for _, size in each.problem.shape] for each in cases]),
        np.array([each.foreseen for each in said]), np.array([each.near for each in said]),
        np.zeros((len(cases), 2)), kernel_s, kernel_s, np.array([each.library_s for each in cases]),
        np.array([each.best_s for each in cases]),
    )  # fmt: skip
    doubt, margin = choice(known)
    return replace(model, calibration=replace(model.calibration, doubt=doubt, margin=margin))


def _fitted_to(model: Model) -> set[tuple[object, ...]]:
    """The problems at which the configs that a model was fitted to were timed."""
    if model.evidence is None:
        raise InputError(
            "a model tells at which problems it was fitted, "
            f"this one of {model.operation} is of a version that did not; fit it again"
        )
    kinds, sizes = list(model.traits), np.rint(2**model.evidence.places).astype(np.int64).tolist()
    return {(*kinds[kind], *place) for kind, place in zip(model.evidence.kinds.tolist(), sizes, strict=True)}


def _place(problem: Problem) -> tuple[object, ...]:
    return problem.dtype, problem.layout, *(size for _, size in problem.shape)
