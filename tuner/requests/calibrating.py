"""A model that is set right by drawn problems, as the command line asks for it."""

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
from tuner.errors import InputError, TunerError
from tuner.lookup.answers import PREDICTED
from tuner.lookup.declared import builtin_now
from tuner.lookup.model.drawn import DrawnCase, Figures, calibrated
from tuner.lookup.model.fitted import Model
from tuner.lookup.model.shelf import regime_of
from tuner.lookup.model.stored import name_of, to_bytes
from tuner.requests.fitting import known_model
from tuner.store import Store, models


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
        models.add(store, name_of(declared, dtype), model.device.name, regime_of(model), to_bytes(found))
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
