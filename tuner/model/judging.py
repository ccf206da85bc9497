"""What a model answered at problems drawn after its fit, beside what was timed there.

A survey times few configs at a problem, each for a moment: what its problems say of losses rests on what a
study is likely to find beyond them, and on the least of many short timings. At drawn problems the answer, a
study's champion and the library were timed in turn (`tuner lookup-quality --drawn --measure`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation
from tuner.errors import InputError, TunerError
from tuner.lookup.answers import PREDICTED
from tuner.model.calibrate import Cases
from tuner.model.predict import Model, Predictor
from tuner.model.stored import regime_of

#: Keys of the times of a drawn problem: of the config that was answered, the library, and a study's champion.
TIMES = ("kernel_time_s", "library_time_s", "champion_time_s")


def read_page(path: Path, model: Model) -> dict[str, Any]:
    """Reads a file of drawn problems.

    Args:
        path: The file.
        model: What they are to tell of.

    Raises:
        InputError: The file is none of drawn problems, or is of another device or regime.
    """
    try:
        page = json.loads(path.read_text(encoding="utf-8"))
        page, where = {**page, "seed": int(page["seed"])}, (page["device"], page["regime"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"{path}: drawn problems are in the .json that `tuner lookup-quality --drawn --measure -o` writes, "
            f"got another file ({error})"
        ) from error
    if where != (model.device.name, regime_of(model)):
        raise InputError(
            f"{path}: drawn problems are to be of {model.device.name}, {regime_of(model)}, "
            f"got {', '.join(where)}"
        )
    return page


def cases_of(
    model: Model, operation: Operation, kernels: Mapping[str, Kernel], drawn: Iterable[Mapping[str, Any]]
) -> Cases:
    """Drawn problems as cases, but for those at which the model answers otherwise by now, or a time is missing.

    Args:
        model: The model.
        operation: As it is declared now.
        kernels: By name, as they are now.
        drawn: Cases of pages.

    Raises:
        InputError: Something is no drawn problem.
    """
    predictor = Predictor(model, kernels)
    try:
        rows = [row for case in drawn if (row := _row(predictor, operation, case)) is not None]
    except (ValueError, LookupError, TypeError, AttributeError, TunerError) as error:
        raise InputError(f"drawn problems are as `tuner lookup-quality -o` writes them: {error}") from error
    *dims, gain, near, kernel_log_s, library_log_s, kernel_s, library_s, champion_s = (
        np.array(rows).T if rows else np.zeros((8, 0))
    )
    best_s = np.minimum(np.minimum(kernel_s, library_s), champion_s)
    predicted = gain, near, kernel_log_s, library_log_s
    return Cases.of(np.array(dims).T, predicted, (kernel_s, library_s, best_s))


def _row(predictor: Predictor, operation: Operation, case: Mapping[str, Any]) -> list[float] | None:
    """Logs of dims, what is predicted, and seconds; infinite where there are none."""
    named = {name: case.get(name, "") for name in ("dtype", "layout", "precision", "epilogue")}
    problem = operation.problem(case["shape"], **named)
    if case["match"] != PREDICTED or not predictor.model.knows(problem):
        return None
    prediction, times_s = predictor.answer(problem), [case[name] or math.inf for name in TIMES]
    best = prediction.best
    if best is None or (best.kernel, dict(best.config)) != (case["kernel"], case["config"]):
        return None
    if math.isinf(times_s[1 if prediction.by_library else 0]):
        return None
    log_s = math.log(best.time_s), math.log(prediction.library_s)
    dims = [math.log(size) for _, size in problem.shape]
    return [*dims, prediction.foreseen, prediction.near, *log_s, *times_s]
