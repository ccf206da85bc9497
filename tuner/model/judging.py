"""What a model answered at problems that it was not fitted to, beside what was timed there.

A survey times few configs at a problem, each for a moment: what its problems say of losses rests on what a
study is likely to find beyond them, and on the least of many short timings. At drawn problems the answer, a
study's champion and the library were timed in turn (`tuner lookup-quality --drawn --measure`). A survey made
later, on another board perhaps, times what the model answers at some of its problems: configs that were good
near by.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation, Problem
from tuner.declare.space import Config
from tuner.errors import InputError, TunerError
from tuner.lookup.answers import PREDICTED
from tuner.model.calibrate import Cases
from tuner.model.predict import Model, Predictor
from tuner.model.stored import regime_of
from tuner.model.table import Timings
from tuner.results.survey import LIBRARY

Kernels = Mapping[str, Kernel]
#: Keys of a drawn problem's times, in the order of `TimedAnswer`.
TIMES = ("kernel_time_s", "library_time_s", "champion_time_s")


class TimedAnswer(NamedTuple):
    """What a model answered at a problem that it was not fitted to, and what was timed there.

    Attributes:
        problem: The problem.
        kernel: Of the answer.
        config: Likewise.
        kernel_s: Seconds of that config; infinite where it failed.
        library_s: Of the library; infinite without one.
        champion_s: Of the fastest other config that is known; infinite without one.
    """

    problem: Problem
    kernel: str
    config: Config
    kernel_s: float
    library_s: float
    champion_s: float


def cases_of(model: Model, kernels: Kernels, answers: Sequence[TimedAnswer]) -> Cases:
    """Answers as cases; those that the model does not give any more, or whose time is not known, do not count.

    Args:
        model: The model.
        kernels: By name, as they are now.
        answers: At problems that the model was not fitted to.
    """
    predictor, rows = Predictor(model, kernels), []
    for timed in answers:
        prediction = predictor.answer(timed.problem) if model.knows(timed.problem) else None
        if prediction is None or prediction.best is None or prediction.best[:2] != (timed.kernel, timed.config):
            continue
        if math.isfinite(timed.library_s if prediction.by_library else timed.kernel_s):
            dims = [math.log(size) for _, size in timed.problem.shape]
            log_s = math.log(prediction.best.time_s), math.log(prediction.library_s)
            rows.append((*dims, prediction.foreseen, prediction.near, *log_s, *timed[3:]))
    columns = np.array(rows).T if rows else np.zeros((8, 0))
    foreseen, near, kernel_log_s, library_log_s, kernel_s, library_s, champion_s = columns[-7:]
    with np.errstate(invalid="ignore"):
        error = np.log([kernel_s, library_s]) - np.array([kernel_log_s, library_log_s])
    return Cases(
        columns[:-7].T, foreseen, near, np.nan_to_num(error.T, posinf=0.0, neginf=0.0), kernel_s,
        library_s, np.minimum(np.minimum(kernel_s, library_s), champion_s),
    )  # fmt: skip


def later_answers(model: Model, kernels: Kernels, surveyed: Timings) -> list[TimedAnswer]:
    """Problems of a survey of which a model knows no time, at which its answer and the library were timed.

    Args:
        model: The model.
        kernels: By name, as they are now.
        surveyed: The survey; the fastest config of a problem stands for its champion.
    """
    predictor, answers = Predictor(model, kernels), []
    kinds, places = list(model.traits), np.rint(2**model.evidence.places).astype(np.int64).tolist()
    fitted_to = {(*kinds[at], *sizes) for at, sizes in zip(model.evidence.kinds.tolist(), places, strict=True)}
    for problem, times_s in zip(surveyed.problems, surveyed.by_problem(), strict=True):
        place = problem.dtype, problem.layout, *(size for _, size in problem.shape)
        library_s = times_s.pop(LIBRARY, None)
        if library_s is None or not times_s or not model.knows(problem) or place in fitted_to:
            continue
        best = predictor.answer(problem).best
        by_config = {surveyed.configs[at]: time_s for at, time_s in times_s.items()}
        if best is not None and best[:2] in by_config:
            answers.append(
                TimedAnswer(problem, *best[:2], by_config[best[:2]], library_s, min(times_s.values()))
            )
    return answers


def read_page(path: Path, operation: Operation, model: Model) -> tuple[int, list[TimedAnswer]]:
    """Reads a file of drawn problems: the seed of the draw, and those that were answered by prediction.

    Args:
        path: The file.
        operation: As it is declared now.
        model: What they are to tell of.

    Raises:
        InputError: The file is none of drawn problems, or is of another device or regime.
    """
    try:
        page = json.loads(path.read_text(encoding="utf-8"))
        where, seed = (page["device"], page["regime"]), int(page["seed"])
        answers = []
        for case in (case for case in page["cases"] if case["match"] == PREDICTED):
            named = {name: case.get(name, "") for name in ("dtype", "layout", "precision", "epilogue")}
            problem = operation.problem(case["shape"], **named)
            times_s = (case[name] or math.inf for name in TIMES)
            answers.append(TimedAnswer(problem, case["kernel"], Config(case["config"]), *times_s))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, TunerError) as error:
        raise InputError(
            f"{path}: drawn problems are in the .json that `tuner lookup-quality --drawn --measure -o` writes, "
            f"got another file ({error})"
        ) from error
    if where != (model.device.name, regime_of(model)):
        raise InputError(
            f"{path}: drawn problems are to be of {model.device.name}, {regime_of(model)}, "
            f"got {', '.join(where)}"
        )
    return seed, answers
