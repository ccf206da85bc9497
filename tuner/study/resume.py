"""What a study may take over from trials that are stored: which count, and what must be measured anew."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.declare.space import Config
from tuner.measuring.timing import CANNOT_WIN
from tuner.results.error_limit import ErrorLimit, judged
from tuner.results.measurement import Measurement, Outcome
from tuner.results.objectives import TIME, values_of
from tuner.results.record import VERIFICATION, Record, Role
from tuner.results.verdict import FINALISTS
from tuner.search import Known, Observation
from tuner.study.leaderboard import Leaderboard
from tuner.study.progress import Request
from tuner.study.session import Session
from tuner.study.setup import key_of, starting_points, trials_elsewhere

#: Kernel and config.
Key = tuple[str, Config]


def judged_records(records: Iterable[Record], limit: ErrorLimit | None) -> list[Record]:
    """Records as a limit of the error sees them, without those that tell nothing under it."""
    seen = ((record, judged(record.measurement, limit)) for record in records)
    return [replace(record, measurement=found) for record, found in seen if found is not None]


def that_count(records: Iterable[Record], objectives: Sequence[str]) -> dict[Key, Record]:
    """One record for each config: what was measured to the end goes before what was not.

    A study of one objective may learn from those of another, and one of several from what has them all; what
    only lacks some, or was stopped early for its time, is left out. Where one record of a config says that it
    is wrong, the one counts that was judged by the newer rules.
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
    """What can be relied on, with what finals found wrong as wrong; and what must be judged again.

    By rules before `VERIFICATION` a wrong result may have been another config's fault, and a time that of a
    kernel that computed nothing. The wrong ones are judged again, and of the times those that lead.

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
    """What was stopped early beside a config that does not count any more, and may win now; by time."""
    timed = {
        key: each.measurement
        for key, each in found.items()
        if each.measurement.samples_s and not each.measurement.outcome.failed
    }
    best_s = min((each.time_s or math.inf for each in timed.values()), default=math.inf)
    stopped = {key: min(each.samples_s) for key, each in timed.items() if each.outcome is Outcome.PRUNED}
    return sorted((key for key in stopped if stopped[key] <= CANNOT_WIN * best_s), key=lambda key: stopped[key])


def observed(record: Record, objectives: Sequence[str] = TIME) -> Observation:
    """A record as a search is told of it."""
    found = record.measurement
    others = (values_of(found, objectives) or ())[1:]
    return Observation(record.kernel, Config(record.config), found.outcome, found.time_s, others)


@dataclass(frozen=True)
class Resumed:
    """What a study takes over.

    Attributes:
        known: What the search is told.
        before: Trials of this study from before that still count.
    """

    known: Known
    before: Mapping[Key, Measurement]


def resume(
    session: Session, request: Request, library: Measurement | None, leaderboard: Leaderboard
) -> Resumed:
    """Takes over stored trials: of this study from before, and of others where times are likely to be alike.

    Those of this study are of the same sources, launches, compiler and driver. Their errors are judged by this
    study's limit.

    Args:
        session: Where the trials are stored.
        request: What the study is asked to do.
        library: The library before the search.
        leaderboard: Takes in what counts.
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
    key = key_of(request.problem)
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
