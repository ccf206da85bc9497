"""A survey as it is asked for by the command line and others: what it would time, and its run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from tuner.requests.events import Events
from tuner.store import Store
from tuner.store.streams import survey_tallies
from tuner.study.locks import occupied
from tuner.study.survey import run_survey
from tuner.study.survey_design import SurveyRequest, design
from tuner.study.survey_progress import SurveyProgress


def run(
    request: SurveyRequest, db: str, report: Callable[[SurveyProgress], None], events: Events
) -> SurveyProgress:
    """Runs a survey, with its device held for its database.

    Args:
        request: What is asked.
        db: URL of the database.
        report: Called a few times a second.
        events: Are told of it, too.

    Raises:
        EnvironmentTrouble: A device or the database cannot be used, or another process has them.
        Interrupted: SIGINT or SIGTERM came; what was timed is kept.
    """

    def followed(progress: SurveyProgress) -> None:
        events.tell("progress", **asdict(progress))
        report(progress)

    name = request.operation.name
    with Store.open(db) as store, occupied(db, [request.found], f"survey {name}"):
        events.tell("begin", operation=name, device=request.found.info.name, seconds=request.seconds)
        progress = run_survey(request, store, followed)
        events.tell("end", **asdict(progress))
    return progress


def survey_preview(request: SurveyRequest, store: Store) -> dict[str, Any]:
    """What a survey would time.

    Args:
        request: What is asked.
        store: Earlier timings and champions.
    """
    device = request.found.info
    made = design(request, store, device)
    by_kernel: dict[str, int] = {}
    for kernel, _ in made.configs:
        by_kernel[kernel.name] = by_kernel.get(kernel.name, 0) + 1
    known = [
        each.timings
        for each in survey_tallies(store)
        if (each.operation, each.device, each.regime) == (request.operation.name, device.name, request.regime)
    ]
    return {
        "operation": request.operation.name, "device": device.name, "regime": request.regime,
        "configs": len(made.configs), "by_kernel": by_kernel, "own_problems": len(request.problems),
        "drawn": request.drawn, "per_problem": request.per_problem, "timings_before": sum(known),
        "seconds": request.seconds,
    }  # fmt: skip
