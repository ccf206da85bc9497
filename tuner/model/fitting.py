"""Models as the command line asks for them: the one that answers, or one fitted to surveys or to a file."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tuner.declare.problem import Operation
from tuner.declare.space import Config
from tuner.devices.cuda.process import held_gpu
from tuner.devices.detect import kind_of
from tuner.errors import InputError, NothingFound, TunerError
from tuner.lookup.answers import PREDICTED
from tuner.lookup.asking import device_in_full
from tuner.lookup.stale import builtin_now
from tuner.model.drawn import DrawnCase, Figures, calibrated, figures
from tuner.model.fit import fit
from tuner.model.fitted import Model
from tuner.model.later import later_cases, trusted
from tuner.model.refit import circumstances, from_database, refit
from tuner.model.shelf import models, regime_of
from tuner.model.stored import name_of, to_bytes
from tuner.model.survey_file import read_survey
from tuner.store import Store
from tuner.store import models as stored_models


def fitted(
    operation: str,
    device: str,
    db: str,
    *,
    survey: Path | None = None,
    dtype: str = "",
    regime: str | None = None,
    measured_at: str = "",
    seed: int = 0,
) -> Model:
    """The model of a file of timings, or of the database's surveys, which is stored there.

    Args:
        operation: Name of what is predicted.
        device: Where timings were taken; ``cuda:N`` has that GPU train the networks, and holds it.
        db: URL of the database.
        survey: File of timings; None for the database's surveys.
        dtype: Of what is predicted; the operation's first unless given.
        regime: How times were taken; as is usual on the device unless given.
        measured_at: When, where the file does not tell.
        seed: Of folds and samples.

    Raises:
        NothingFound: Nothing of it was surveyed.
        InputError: Too few problems were, or the file is none of timings.
        TunerError: LightGBM is not installed.
        EnvironmentTrouble: The device or the database cannot be used, or another process has the GPU.
    """
    catalogue, where = builtin_now(), device_in_full(device, db)
    declared, regime = catalogue.operation(operation), regime or kind_of(where.kind).survey.regime
    kernels = {each.name: each for each in catalogue.of(operation, where.kind)}
    with held_gpu(device, f"model fit {operation}") as gpu:
        if survey is None:
            with Store.open(db) as store:
                return refit(store, declared, kernels.values(), where, regime, seed, dtype, gpu)
        told = circumstances(regime) | ({"measured_at": measured_at} if measured_at else {})
        return fit(read_survey(survey, declared, dtype, told), kernels, where, seed, gpu=gpu)


def known_model(operation: str, device: str, dtype: str, regime: str | None, db: str) -> Model:
    """The model that answers: the database's, or the published one.

    Args:
        operation: Name of what is predicted.
        device: Name, or as commands take it.
        dtype: Of what is predicted; the operation's first unless given.
        regime: How times were taken; as is usual on the device unless given.
        db: URL of the database, which need not exist.

    Raises:
        NothingFound: There is none.
        InputError: A published one cannot be read.
        StoreTrouble: The database cannot be read.
    """
    dtype = dtype or builtin_now().operation(operation).dtypes[0]
    where = device_in_full(device, db)
    regime = regime or kind_of(where.kind).survey.regime
    try:
        with Store.open(db, read_only=True) as store:
            every = models(operation, regime, store=store, dtype=dtype)
    except NothingFound:
        every = models(operation, regime, dtype=dtype)
    known = [each for each in every if any(kind[0] == dtype for kind in each.traits)]
    found = next((each for each in known if each.device.name == where.name), None)
    if found is None:
        raise NothingFound(
            f"there is no model of {operation} in {dtype}, {regime}, for {where.name}; run a survey there and "
            f"`tuner model fit {operation} --dtype {dtype}`"
        )
    return found


def calibrated_by(
    operation: str,
    pages: Sequence[Path],
    device: str,
    db: str,
    *,
    dtype: str = "",
    regime: str | None = None,
) -> tuple[Model, Figures, Figures]:
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
    catalogue, model = builtin_now(), known_model(operation, device, dtype, regime, db)
    declared = catalogue.operation(operation)
    kernels = {each.name: each for each in catalogue.of(operation, model.device.kind)}
    told = [read_page(page, declared, model) for page in pages]
    found, before, now = calibrated(model, kernels, [each for page in told for each in page.cases])
    at = datetime.now(UTC).isoformat(timespec="seconds")
    drawn = {"calibrated_at": at, "drawn_seeds": [page.seed for page in told]}
    found = replace(found, provenance={**model.provenance, **drawn})
    with Store.open(db) as store:
        stored_models.add(store, name_of(declared, dtype), model.device.name, regime_of(model), to_bytes(found))
    return found, before, now


@dataclass(frozen=True)
class Page:
    """Drawn problems of a file that were answered by prediction.

    Attributes:
        seed: Of the draw.
        cases: The problems.
    """

    seed: int
    cases: Sequence[DrawnCase]


def read_page(path: Path, operation: Operation, model: Model) -> Page:
    """Reads a file of drawn problems.

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
        found = [_case(each, operation) for each in cases if each["match"] == PREDICTED]
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
    return Page(seed, found)


def _case(told: dict[str, Any], operation: Operation) -> DrawnCase:
    problem = operation.problem(
        told["shape"], told["dtype"], told["layout"], told.get("precision", ""), told.get("epilogue", "")
    )
    times = (told[name] or math.inf for name in ("kernel_time_s", "library_time_s", "champion_time_s"))
    return DrawnCase(problem, told["kernel"], Config(told["config"]), *times)


@dataclass(frozen=True)
class Checked:
    """What came of it.

    Attributes:
        model: With the margin and doubt chosen, if that was asked for.
        before: What the model said, and what was true.
        now: The same with what was chosen.
    """

    model: Model
    before: Figures
    now: Figures


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
    catalogue, model = builtin_now(), known_model(operation, device, dtype, regime, db)
    declared = catalogue.operation(operation)
    dtype = dtype or declared.dtypes[0]
    kernels = {each.name: each for each in catalogue.of(operation, model.device.kind, dtype=dtype)}
    timings = from_database(db, declared, kernels.values(), model.device.name, regime_of(model), dtype)
    cases = later_cases(model, kernels, timings)
    if not cases:
        raise NothingFound(
            f"the database's surveys of {operation} time nothing that the model answers at problems that it "
            "was not fitted to; survey more"
        )
    before = figures(model, kernels, cases)
    if not choose:
        return Checked(model, before, before)
    found = trusted(model, kernels, cases)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    found = replace(found, provenance={**model.provenance, "trusted_at": at, "trusted_by": len(cases)})
    with Store.open(db) as store:
        stored_models.add(store, name_of(declared, dtype), model.device.name, regime_of(model), to_bytes(found))
    return Checked(found, before, figures(found, kernels, cases))
