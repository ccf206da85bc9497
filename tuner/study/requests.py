"""A study as it is asked for by the command line, from Python and by others: made from words, and run."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from tuner.declare.catalogue import Catalogue
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.devices.detect import find_all
from tuner.devices.settings import setting
from tuner.errors import InputError
from tuner.lookup.asking import default_database
from tuner.results.objectives import limit_for, read_error_limit, read_objectives
from tuner.study.progress import Request
from tuner.study.setup import check_power

#: Seconds of a study if neither seconds nor trials are given.
DEFAULT_SECONDS = 60.0


class StudyOptions(TypedDict, total=False):
    """What a study is asked beside its problem; each may be left out.

    Attributes:
        device: ``cpu``, ``cuda:N``, or ``cuda`` for every GPU; by default one GPU, else the CPU. Where this,
            `seconds`, `regime` or `sampler` are left out, ``tuner.toml`` is asked.
        kernels: Names of the kernels that compete; by default all.
        seconds: Wall time; 60 unless `trials` is given.
        trials: Trials of the study in all, earlier runs included.
        regime: How times are taken: ``cold``, ``hot``, ``cold-graph``, ``hot-graph``.
        seed: Seed of the search; random by default.
        sampler: Name of the search strategy.
        objective: What is minimised: ``time``, or with others, ``time,energy``.
        error_limit: Largest rms error of a champion, as a multiple of the library's.
        db: URL of the database; by default that of ``TUNER_DB``, else ``studies.db`` in this folder.
    """

    device: str
    kernels: Sequence[str] | str
    seconds: float | None
    trials: int | None
    regime: str
    seed: int | None
    sampler: str
    objective: str
    error_limit: float | None
    db: str


@dataclass(frozen=True)
class Asked:
    """A study that is about to run.

    Attributes:
        catalogue: Where the problem's kernels come from.
        request: What is asked.
        db: URL of the database.
    """

    catalogue: Catalogue
    request: Request
    db: str


def database_url(db: str) -> str:
    """A database, or the one that is used where none is named."""
    return db or default_database()


def asked(catalogue: Catalogue, problem: Problem, options: StudyOptions) -> Asked:
    """The study of a problem.

    Args:
        catalogue: Has the problem's kernels.
        problem: What is tuned.
        options: What is asked beside it.

    Raises:
        InputError: An option is wrong, or no kernel is for the device.
        DeviceTrouble: There is no such device here.
    """
    objectives = read_objectives(options.get("objective") or "time")
    found = find_all(options.get("device") or setting("device", "tune") or "")
    check_power(objectives, found[0])
    told = options.get("kernels") or ()
    only, db = (told,) if isinstance(told, str) else tuple(told), database_url(options.get("db") or "")
    seconds, trials = options.get("seconds"), options.get("trials")
    seconds, trials = budget(setting("seconds", "tune") if seconds is trials is None else seconds, trials)
    seed = options.get("seed")
    request = Request(
        problem=problem,
        kernels=competitors(catalogue, problem, found[0].target, only),
        found=found,
        regime=options.get("regime") or setting("regime", "tune") or "cold",
        seconds=seconds,
        trials=trials,
        seed=secrets.randbits(32) if seed is None else seed,
        sampler=options.get("sampler") or setting("sampler", "tune") or "tile",
        storage_url=db,
        objectives=objectives,
        error_limit=limit_for(problem.precision, read_error_limit(options.get("error_limit"))),
        drop=not only,
    )
    return Asked(catalogue, request, db)


def budget(seconds: float | None, trials: int | None) -> tuple[float | None, int | None]:
    """Seconds and trials of a study, where one of them may be left out.

    Raises:
        InputError: One is not above 0.
    """
    if seconds is not None and not (isinstance(seconds, int | float) and 0 < seconds < math.inf):
        raise InputError(f"--seconds is a number above 0, got {seconds!r}; give e.g. 60")
    if trials is not None and not (isinstance(trials, int) and trials >= 1):
        raise InputError(f"--trials is 1 or more, got {trials!r}; give e.g. 100")
    return (DEFAULT_SECONDS if seconds is None and trials is None else seconds), trials


def competitors(catalogue: Catalogue, problem: Problem, target: str, only: Sequence[str]) -> tuple[Kernel, ...]:
    """The kernels that compete.

    Raises:
        UnknownName: No kernel has one of the names.
        InputError: The operation has no kernel for the target.
    """
    found = catalogue.serving(problem, target, tuple(only))
    if not found:
        name, dtype = problem.operation.name, problem.dtype
        others = sorted({kernel.target for kernel in catalogue.of(name, dtype=dtype)})
        raise InputError(
            f"{f'{name} in {dtype}' if dtype in problem.operation.sums else name} has no kernel for {target}; "
            f"it has some for {', '.join(others)}"
        )
    for kernel in found:
        kernel.check_entry()
    return found
