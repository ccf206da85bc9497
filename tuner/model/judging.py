"""Sets right what a model says of its losses, by problems that it was not fitted to.

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
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation, Problem
from tuner.declare.space import Config
from tuner.errors import InputError, NothingFound, TunerError
from tuner.lookup.answers import PREDICTED
from tuner.lookup.stale import builtin_now
from tuner.model.calibrate import Cases, LossSummary, choice
from tuner.model.fitted import Model
from tuner.model.fitting import known_model, timings
from tuner.model.predict import Predictor
from tuner.model.stored import name_of, regime_of, to_bytes
from tuner.model.table import Timings
from tuner.results.survey import LIBRARY
from tuner.store import Store
from tuner.store import models as stored_models

Kernels = Mapping[str, Kernel]

#: Drawn problems without which nothing is said of losses, and problems without which no margin is chosen.
FEWEST_DRAWN, FEWEST = 16, 200


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
        said = predictor.answer(timed.problem) if model.knows(timed.problem) else None
        if said is None or said.best is None or said.best[:2] != (timed.kernel, timed.config):
            continue
        if math.isfinite(timed.library_s if said.by_library else timed.kernel_s):
            dims = [math.log(size) for _, size in timed.problem.shape]
            predicted = math.log(said.best.time_s), math.log(said.library_s)
            rows.append((*dims, said.foreseen, said.near, *predicted, *timed[3:]))
    columns = np.array(rows).T if rows else np.zeros((8, 0))
    foreseen, near, kernel_log_s, library_log_s, kernel_s, library_s, champion_s = columns[-7:]
    with np.errstate(invalid="ignore"):
        error = np.log([kernel_s, library_s]) - np.array([kernel_log_s, library_log_s])
    return Cases(
        columns[:-7].T, foreseen, near, np.nan_to_num(error.T, posinf=0.0, neginf=0.0), kernel_s,
        library_s, np.minimum(np.minimum(kernel_s, library_s), champion_s),
    )  # fmt: skip


def judged(model: Model, kernels: Kernels, answers: Sequence[TimedAnswer]) -> LossSummary:
    """What a model says of its answers, and what they lost. Arguments as of `cases_of`."""
    return model.calibration.judged(cases_of(model, kernels, answers))


def calibrated(
    model: Model, kernels: Kernels, answers: Sequence[TimedAnswer]
) -> tuple[Model, LossSummary, LossSummary]:
    """A model whose expected losses and intervals are those of drawn problems.

    The configs that it answers stay the same, and so does when it answers the library. What earlier drawn
    problems said is left out.

    Returns:
        The model, and what it says at these problems: before, and now.

    Raises:
        InputError: Too few cases count.
    """
    cases = cases_of(model, kernels, answers)
    if len(cases.gain) < FEWEST_DRAWN:
        raise InputError(
            f"drawn problems tell of losses from {FEWEST_DRAWN} on, got {len(cases.gain)} of {len(answers)} at "
            "which the model answers what was timed there; "
            "draw more by `tuner lookup-quality --drawn --measure`"
        )
    found = model.calibration.corrected(cases)
    return replace(model, calibration=found), model.calibration.judged(cases), found.judged(cases)


def trusted(model: Model, kernels: Kernels, answers: Sequence[TimedAnswer]) -> Model:
    """A model that answers a kernel where that costs least at problems that it was not fitted to.

    Raises:
        InputError: There are too few.
    """
    if len(answers) < FEWEST:
        raise InputError(
            f"margin and doubt are chosen by {FEWEST} problems at least that the model was not fitted to, and "
            f"at which what it answers was timed, got {len(answers)}; survey more"
        )
    doubt, margin = choice(cases_of(model, kernels, answers))
    return replace(model, calibration=replace(model.calibration, doubt=doubt, margin=margin))


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
    timed: list[dict[int, float]] = [{} for _ in surveyed.problems]
    for number, config, time_s in zip(surveyed.problem, surveyed.config, surveyed.time_s.tolist(), strict=True):
        timed[number][int(config)] = time_s
    for problem, times_s in zip(surveyed.problems, timed, strict=True):
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


def calibrated_by(
    operation: str,
    pages: Sequence[Path],
    device: str,
    db: str,
    *,
    dtype: str = "",
    regime: str | None = None,
) -> tuple[Model, LossSummary, LossSummary]:
    """The model that answers, with losses as files of drawn problems tell them; it is stored in the database.

    Args:
        operation: Name of what is predicted.
        pages: Files that `tuner lookup-quality --drawn --measure` left beside its pages, drawn after the fit.
        device: Name, or as commands take it.
        db: URL of the database.
        dtype: Of what is predicted; the operation's first unless given.
        regime: How times were taken; as is usual on the device unless given.

    Returns:
        The model, and what it says at the drawn problems: before, and now.

    Raises:
        NothingFound: There is no such model.
        InputError: A file is none of drawn problems, or of other ones; or too few count.
        StoreTrouble: The database cannot be read or written.
    """
    model, declared, kernels = _known(operation, device, dtype, regime, db)
    drawn = [read_page(page, declared, model) for page in pages]
    found, before, now = calibrated(model, kernels, [answer for _, answers in drawn for answer in answers])
    told = {"calibrated_at": _now(), "drawn_seeds": [seed for seed, _ in drawn]}
    return _stored(found, declared, dtype, db, told), before, now


def read_page(path: Path, operation: Operation, model: Model) -> tuple[int, list[TimedAnswer]]:
    """Reads a file of drawn problems: the seed of the draw, and those that were answered by prediction.

    Args:
        path: The file.
        operation: As it is declared now.
        model: What they are to tell of.

    Raises:
        InputError: The file is none of drawn problems, is of another device or regime, or has no such problem.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        where, seed, cases = (told["device"], told["regime"]), int(told["seed"]), told["cases"]
        found = [_answer(case, operation) for case in cases if case["match"] == PREDICTED]
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
    if not found:
        raise InputError(
            f"{path}: drawn problems are to be answered by prediction, got {len(cases)} others; name the file "
            "of `--on-miss predict`"
        )
    return seed, found


def _answer(told: dict[str, Any], operation: Operation) -> TimedAnswer:
    problem = operation.problem(
        told["shape"], told["dtype"], told["layout"], told.get("precision", ""), told.get("epilogue", "")
    )
    times = (told[name] or math.inf for name in ("kernel_time_s", "library_time_s", "champion_time_s"))
    return TimedAnswer(problem, told["kernel"], Config(told["config"]), *times)


@dataclass(frozen=True)
class Checked:
    """What came of it.

    Attributes:
        model: With the margin and doubt chosen, if that was asked for.
        before: What the model said, and what was true.
        now: The same with what was chosen.
    """

    model: Model
    before: LossSummary
    now: LossSummary


def checked(
    operation: str, device: str, db: str, choose: bool, *, dtype: str = "", regime: str | None = None
) -> Checked:
    """What the model that answers says of problems of the database's surveys that it was not fitted to.

    Args:
        operation: Name of what is predicted.
        device: Name, or as commands take it.
        db: URL of the database.
        choose: True to choose by these problems when a kernel is answered, and to store the model.
        dtype: Of what is predicted; the operation's first unless given.
        regime: How times were taken; as is usual on the device unless given.

    Raises:
        NothingFound: There is no such model, no survey, or no such problem.
        InputError: There are too few to choose by.
        StoreTrouble: The database cannot be read or written.
    """
    model, declared, kernels = _known(operation, device, dtype, regime, db)
    with Store.open(db, read_only=True) as store:
        surveyed = timings(
            store, declared, kernels.values(), model.device.name, regime_of(model), dtype or declared.dtypes[0]
        )
    answers = later_answers(model, kernels, surveyed)
    if not answers:
        raise NothingFound(
            f"the database's surveys of {operation} time nothing that the model answers at problems that it "
            "was not fitted to; survey more"
        )
    before = judged(model, kernels, answers)
    if not choose:
        return Checked(model, before, before)
    found = trusted(model, kernels, answers)
    told = {"trusted_at": _now(), "trusted_by": len(answers)}
    return Checked(_stored(found, declared, dtype, db, told), before, judged(found, kernels, answers))


def _known(
    operation: str, device: str, dtype: str, regime: str | None, db: str
) -> tuple[Model, Operation, Kernels]:
    """The model that answers, and its operation and kernels as they are declared now."""
    catalogue, model = builtin_now(), known_model(operation, device, dtype, regime, db)
    kernels = {kernel.name: kernel for kernel in catalogue.of(operation, model.device.kind)}
    return model, catalogue.operation(operation), kernels


def _stored(model: Model, operation: Operation, dtype: str, db: str, told: dict[str, Any]) -> Model:
    """A model that tells more of its provenance; it is stored in the database."""
    found = replace(model, provenance={**model.provenance, **told})
    with Store.open(db) as store:
        name = name_of(operation, dtype)
        stored_models.add(store, name, model.device.name, regime_of(model), to_bytes(found))
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
