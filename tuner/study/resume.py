"""Selects stored trials that a study can reuse, and those that it must measure again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.declare.space import Config
from tuner.results.measurement import Measurement, Outcome
from tuner.results.objectives import TIME, ErrorLimit, judged, values_of
from tuner.results.record import VERIFICATION, ProblemKey, Record, Role
from tuner.results.verdict import FINALISTS
from tuner.search import Known, Observation
from tuner.study.leaderboard import Leaderboard
from tuner.study.progress import Request
from tuner.study.session import Session
from tuner.study.starting import starting_points, trials_elsewhere
from tuner.workers.sampling import CANNOT_WIN

#: Kernel and config.
Key = tuple[str, Config]


def judged_records(records: Iterable[Record], limit: ErrorLimit | None) -> list[Record]:
    """Judges records by an error limit, and leaves out those that it cannot judge."""
    seen = ((record, judged(record.measurement, limit)) for record in records)
    return [replace(record, measurement=found) for record, found in seen if found is not None]


def that_count(records: Iterable[Record], objectives: Sequence[str]) -> dict[Key, Record]:
    """Returns one record for each config; complete measurements go first.

    A study of one objective can learn from those of another, and a study of several from records that have them
    all. Records that lack some, or that were stopped early for their time, are left out. If one record of a
    config says that it is wrong, the one judged by the newer rules counts.
    """
    found: dict[Key, Record] = {}
    for record in records:
        config, measurement = Config(record.config), record.measurement
        if len(objectives) > 1 and not (
            measurement.outcome.failed or values_of(measurement, objectives) is not None
        ):
            continue
        before = found.get((record.kernel, config))
        if before is not None and Outcome.WRONG_RESULT in (measurement.outcome, before.measurement.outcome):
            if record.verification < before.verification:
                continue
            if record.verification > before.verification:
                before = None
        if before is None or measurement.outcome is Outcome.MEASURED:
            found[record.kernel, config] = record
    return found


def rightly_judged(
    found: Mapping[Key, Record], finals: Iterable[Record]
) -> tuple[dict[Key, Record], list[Key]]:
    """Splits records into reliable ones and ones to judge again; configs that finals found wrong are wrong.

    Under rules older than `VERIFICATION`, a wrong result may be another config's fault, and a time may be that
    of a kernel that computed nothing. So wrong configs, and the fastest times, are judged again.

    Args:
        found: One record for each config.
        finals: Records of finals.
    """
    wrong = {
        (each.kernel, Config(each.config)): each.measurement
        for each in finals
        if each.measurement.outcome is Outcome.WRONG_RESULT and each.verification >= VERIFICATION
    }
    kept = {key: replace(each, measurement=wrong.get(key, each.measurement)) for key, each in found.items()}
    old = {
        key: each.measurement
        for key, each in found.items()
        if each.verification < VERIFICATION and key not in wrong
    }
    again = [key for key, each in old.items() if each.outcome is Outcome.WRONG_RESULT]
    timed = {
        key: each.measurement.time_s or math.inf
        for key, each in kept.items()
        if each.measurement.outcome is Outcome.MEASURED
    }
    for key in sorted(timed, key=lambda each: timed[each])[:FINALISTS]:
        if key not in old:
            break
        again.append(key)
    for key in again:
        del kept[key]
    return kept, again


def stopped_hastily(found: Mapping[Key, Record]) -> list[Key]:
    """Returns configs that were stopped early because of a config that no longer counts; by time."""
    timed = {
        key: each.measurement
        for key, each in found.items()
        if each.measurement.samples_s and not each.measurement.outcome.failed
    }
    best_s = min((each.time_s or math.inf for each in timed.values()), default=math.inf)
    stopped = {key: min(each.samples_s) for key, each in timed.items() if each.outcome is Outcome.PRUNED}
    return sorted((key for key in stopped if stopped[key] <= CANNOT_WIN * best_s), key=lambda key: stopped[key])


def observed(record: Record, objectives: Sequence[str] = TIME) -> Observation:
    """Converts a record to an observation for a search."""
    found = record.measurement
    others = (values_of(found, objectives) or ())[1:]
    return Observation(record.kernel, Config(record.config), found.outcome, found.time_s, others)


@dataclass(frozen=True)
class Resumed:
    """Reused trials of a study.

    Attributes:
        known: Knowledge for the search.
        before: Earlier trials of this study that still count.
    """

    known: Known
    before: Mapping[Key, Measurement]


def resume(
    session: Session, request: Request, library: Measurement | None, leaderboard: Leaderboard
) -> Resumed:
    """Reuses stored trials: earlier ones of this study, and those of others with probably similar times.

    Trials of this study have the same sources, launches, compiler and driver. Their errors are judged by this
    study's limit.

    Args:
        session: The session, with the store of the trials.
        request: What the study is asked to do.
        library: The library's measurement before the search.
        leaderboard: Receives the trials that count.
    """
    objectives, info, store = request.objectives, session.worker.info, session.store
    kernels = {kernel.name: kernel for kernel in request.kernels}
    limit = _limit(request, library)
    found = that_count(judged_records(session.records(Role.TRIAL, kernels), limit), objectives)
    found, again = rightly_judged(found, session.records(Role.FINAL, kernels))
    hastily = stopped_hastily(found)
    for each in hastily:
        del found[each]
    for (kernel, config), record in found.items():
        leaderboard.add_trial(kernel, config, record.measurement)
    key = ProblemKey.of(request.problem)
    elsewhere = trials_elsewhere(store, request.kernels, key, info, request.regime)
    known = Known(
        starts=[*again, *hastily, *starting_points(store, request.kernels, key, info)],
        past=[observed(record, objectives) for record in found.values()],
        elsewhere=[observed(record) for record in judged_records(elsewhere, _limit(request, None))],
    )
    return Resumed(known, {key: record.measurement for key, record in found.items()})


def _limit(request: Request, library: Measurement | None) -> ErrorLimit | None:
    if request.error_limit is None:
        return None
    return ErrorLimit.beside(request.error_limit, library.error if library else None, request.problem)
