"""A survey as it is asked for by the command line and others: what it would time, and its run."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from tuner.devices.cuda.process import gpu_of
from tuner.model.fitting import refit_if_possible
from tuner.model.survey import SurveyProgress, run_survey
from tuner.model.survey_design import SurveyRequest
from tuner.model.survey_known import design
from tuner.store import Store
from tuner.store.listing import survey_tallies
from tuner.study.locks import occupied
from tuner.study.reporting import Events

#: Problems that a preview names.
FIRST = 5


def run(
    request: SurveyRequest,
    db: str,
    report: Callable[[SurveyProgress], None],
    events: Events,
    refitted: Callable[[str], None] | None = None,
) -> SurveyProgress:
    """Runs a survey, with its device held for its database.

    Args:
        request: What is asked.
        db: URL of the database.
        report: Called a few times a second.
        events: Are told of it, too.
        refitted: Told what fitting a model to all that was surveyed came to; None to fit none.

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
        if refitted is not None and progress.problems:
            asked = request.operation, request.kernels, request.found.info, request.regime, request.limits.dtype
            refitted(refit_if_possible(store, *asked, gpu_of(request.found)))
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
    turns = [
        made.turn(number, problem, request.per_problem)
        for number, problem in itertools.islice(made.problems(), FIRST)
    ]
    known = [
        each.timings
        for each in survey_tallies(store)
        if (each.operation, each.device, each.regime) == (request.operation.name, device.name, request.regime)
    ]
    return {
        "operation": request.operation.name, "device": device.name, "regime": request.regime,
        "kernels": [kernel.name for kernel in request.kernels], "configs": request.configs,
        "first": [{"problem": str(each.problem), "configs": len(each.configs)} for each in turns],
        "own_problems": len(request.problems),
        "drawn": request.drawn, "per_problem": request.per_problem, "timings_before": sum(known),
        "seconds": request.seconds,
    }  # fmt: skip
