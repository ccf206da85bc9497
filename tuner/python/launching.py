"""Runs a study that was asked for, and gathers its trials."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

from tuner.errors import Interrupted
from tuner.python.tuned import Tuned
from tuner.results.record import ProblemKey, Record, Role, measured_as_now
from tuner.store import Store, retracting
from tuner.study.locks import occupied
from tuner.study.progress import Progress, Result
from tuner.study.reporting import ProgressView
from tuner.study.requests import Asked, StudyRequest
from tuner.study.session import study_name
from tuner.study.study import run_study


def run(asked: Asked, report: Callable[[Progress], None], warn: Callable[[str], None]) -> Result:
    """Runs a study, with its devices held for its database.

    Args:
        asked: The study.
        report: Called a few times a second.
        warn: Told what a user should know of the database.

    Raises:
        NothingFound: No config is legal.
        InputError: The problem does not fit into memory, or the device cannot measure an objective.
        EnvironmentTrouble: A device or the database cannot be used, or another process has them.
        Interrupted: SIGINT or SIGTERM came; finished trials are kept.
    """
    request = asked.request
    with Store.open(asked.db) as store:
        warn_of_clocks(store, warn)
        with occupied(asked.db, request.found, f"tune {request.problem}"):
            return run_study(request, store, report)


def warn_of_clocks(store: Store, warn: Callable[[str], None]) -> None:
    """Warns of records dated in the future before their champions meet others."""
    ahead = retracting.ahead(store)
    if ahead is not None:
        warn(f"{ahead}; {retracting.AHEAD_REMEDY}")


def run_shown(study: Asked, progress: bool | Callable[[Progress], None]) -> Tuned:
    """Runs a study with its progress shown, and gathers its trials.

    Raises:
        KeyboardInterrupt: It was interrupted before anything was measured, or twice.
    """
    last: list[Progress] = [Progress()]
    view = ProgressView(study.request.problem, progress is not True, study.request.trials)

    def report(now: Progress) -> None:
        last[0] = now
        (progress if callable(progress) else view)(now)

    try:
        with view:
            result = run(study, report, _warned)
    except Interrupted as interrupted:
        if interrupted.twice or not last[0].trials:
            raise KeyboardInterrupt(str(interrupted)) from interrupted
        print(f"tuner: {interrupted}", file=sys.stderr)
        return gathered(study, last[0], None, str(interrupted))
    return gathered(study, result.progress, result)


def _warned(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=2)


def gathered(asked: Asked, progress: Progress, result: Result | None, stopped: str = "") -> Tuned:
    """The result of a study with its trials, read from the database.

    Args:
        asked: The study.
        progress: Its last progress.
        result: What it returned; None if it was interrupted.
        stopped: Why it ended, if it was interrupted.
    """
    request = asked.request
    with Store.open(asked.db, read_only=True) as store:
        key = ProblemKey.of(request.problem)
        every = store.records(problem=key, device=request.found[0].info)
    name = study_name(
        key, request.found[0].info, request.regime, request.kernels, request.objectives, request.error_limit
    )
    champion = result.champion if result is not None else None
    baseline = champion.baseline if champion is not None else _last_baseline(every, name)
    origin = request.problem.operation.origin
    trials = (each for each in every if each.role is Role.TRIAL and each.regime == request.regime)
    return Tuned(
        request.problem, champion, tuple(each for each in trials if _is_of(each, request)), baseline,
        replace(progress), result.stopped if result is not None else stopped, result is None, origin, asked,
        result,
    )  # fmt: skip


def _is_of(record: Record, request: StudyRequest) -> bool:
    """True for a trial of a kernel of the study, as the kernel is now."""
    return any(
        record.kernel == each.name and measured_as_now(record, each, request.problem)
        for each in request.kernels
    )


def _last_baseline(records: Sequence[Record], study: str) -> Record | None:
    return next(
        (each for each in reversed(records) if each.role is Role.BASELINE and each.study == study), None
    )
