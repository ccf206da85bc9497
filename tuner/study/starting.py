"""What a study starts from: its earlier trials, those of near problems, champions, a model's predictions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.lookup.snapshot import predictor
from tuner.results.distance import OTHER_ARITHMETIC, OTHER_LAYOUT, distances, log_dims
from tuner.results.measurement import Measurement, Outcome
from tuner.results.objectives import TIME, ErrorLimit, judged, values_of
from tuner.results.record import VERIFICATION, Champion, ProblemKey, Record, Role
from tuner.results.verdict import FINALISTS
from tuner.search import Known, Observation
from tuner.store import Store
from tuner.store.published import champions as published
from tuner.store.reading import Reader
from tuner.study.leaderboard import Leaderboard
from tuner.study.requests import StudyRequest
from tuner.study.session import Session
from tuner.workers.sampling import CANNOT_WIN

#: Configs that a study tries first.
STARTS = 8
#: Configs that others are looked for beside, and how many of these a search knows.
PARENTS, FURTHER = 4, 64
#: Kernel and config.
Named = tuple[str, Config]


class Predictions:
    """A model's word on the kernels of a study; empty where the device has no model, or it does not know them.

    Attributes:
        starts: Kernel and config: what to try first of what the model keeps, the best first.
        elsewhere: Predicted times of what it keeps, as if they had been measured elsewhere.
    """

    def __init__(
        self,
        problem: Problem,
        kernels: Sequence[Kernel],
        device: DeviceInfo,
        regime: str,
        store: Reader | None = None,
    ) -> None:
        """Asks the model.

        Args:
            problem: What is computed.
            kernels: Which compete.
            device: Where.
            regime: How time is taken.
            store: May have a model of its own.
        """
        extra = predictor()
        self._search = extra.search(problem, kernels, device, regime, store) if extra else None
        self._problem = problem
        candidates = self._search.candidates(problem, None) if self._search else []
        self.starts: list[Named] = [(each.kernel, each.config) for each in candidates[:STARTS]]
        self.elsewhere = [
            Observation(each.kernel, each.config, Outcome.MEASURED, each.time_s) for each in candidates
        ]

    @cached_property
    def further(self) -> list[Observation]:
        """Predicted times of configs beside those to try first, the best first."""
        if self._search is None:
            return []
        kept = [(each.kernel, each.config) for each in self.elsewhere]
        known = dict.fromkeys(kept, math.inf)
        known |= {(each.kernel, each.config): each.time_s or math.inf for each in self.elsewhere[:STARTS]}
        return [
            Observation(each.kernel, each.config, Outcome.MEASURED, each.time_s)
            for each in self._search.beside(self._problem, known, STARTS, FURTHER)
        ]

    def beside(self, timed: Mapping[Named, float]) -> list[Named]:
        """What to try after some configs: the most promising ones beside the fastest of them, the best first.

        Args:
            timed: Kernel and config -> seconds.
        """
        if self._search is None:
            return []
        return [
            (each.kernel, each.config) for each in self._search.beside(self._problem, timed, PARENTS, STARTS)
        ]


#: Number of champions of other problems to start from.
NEIGHBOURS = 5


def starting_points(
    store: Store, kernels: Sequence[Kernel], problem: ProblemKey, device: DeviceInfo
) -> list[tuple[str, Config]]:
    """Returns configs to try first: champions of the nearest problems on such a device, then declared starts.

    Champions go first: a short study has time for few configs, and one that is fast lets slow ones be pruned
    early. The search leaves out illegal ones.
    """
    return [*near_champions(store, kernels, problem, device), *declared_starts(kernels)]


def declared_starts(kernels: Sequence[Kernel]) -> list[Named]:
    """Returns what kernels declare to be tried first; the last step of a ladder goes before the first ones."""
    return [(kernel.name, config) for kernel in reversed(kernels) for config in kernel.first_configs()]


def near_champions(
    store: Store, kernels: Sequence[Kernel], problem: ProblemKey, device: DeviceInfo
) -> list[tuple[str, Config]]:
    """Returns the champions of the nearest problems on such a device, of the store and published ones."""
    competing = {kernel.name for kernel in kernels}
    stored = store.champions(operation=problem.operation, device=device)
    known = [
        each for each in (*stored, *_published(problem, device))
        if _alike(problem, each) and each.record.kernel in competing
    ]  # fmt: skip
    nearest = sorted(known, key=lambda each: _distance(problem, each))[:NEIGHBOURS]
    return [(each.record.kernel, Config(each.record.config)) for each in nearest]


def _published(problem: ProblemKey, device: DeviceInfo) -> list[Champion]:
    """Published champions of the operation on devices of the same name."""
    return [
        each for each in published(problem.operation)
        if (each.record.device.kind, each.record.device.name) == (device.kind, device.name)
    ]  # fmt: skip


def trials_elsewhere(
    store: Store, kernels: Iterable[Kernel], problem: ProblemKey, device: DeviceInfo, regime: str
) -> list[Record]:
    """Returns trials of the same kernels, as they are now, with probably similar times.

    They are those of the nearest other shape on such a device or, if there is none, of the nearest shape on the
    most similar device of the same kind.
    """
    hashes = {kernel.name: kernel.source_hash for kernel in kernels}
    known = [
        each
        for each in store.champions(operation=problem.operation, regime=regime)
        if each.record.device.kind == device.kind
        and (each.record.problem, each.record.device.name) != (problem, device.name)
        and each.record.problem.arithmetic == problem.arithmetic
        and _alike(problem, each)
    ]
    if not known:
        return []
    nearest = min(known, key=lambda each: nearness(problem, device, each))
    record = nearest.record
    return [
        each
        for each in store.records(problem=record.problem, device=record.device, role=Role.TRIAL)
        if each.regime == regime and hashes.get(each.kernel) == each.source_hash
    ]


def nearness(problem: ProblemKey, device: DeviceInfo, champion: Champion) -> tuple[bool, bool, float, float]:
    """Sorts champions, the one on the most similar device at the nearest shape first."""
    return *_unlike(device, champion.record.device), _distance(problem, champion)


def _alike(problem: ProblemKey, champion: Champion) -> bool:
    """False for another operation that once had the same name: authors of kernels change their sizes."""
    return champion.record.problem.dims.keys() == problem.dims.keys()


def _distance(problem: ProblemKey, champion: Champion) -> float:
    """Distance in doublings; another layout, dtype, precision or epilogue counts (`tuner.results.distance`)."""
    theirs = champion.record.problem
    shape = [(name, theirs.dims[name]) for name, _ in problem.shape]
    unlike = OTHER_LAYOUT * (theirs.layout != problem.layout)
    unlike += OTHER_ARITHMETIC * (theirs.arithmetic != problem.arithmetic)
    return float(distances(log_dims(shape), log_dims(problem.shape), unlike))


def _unlike(ours: DeviceInfo, theirs: DeviceInfo) -> tuple[bool, bool, float]:
    """Dissimilarity of devices: by model, then architecture, then number of multiprocessors or cores."""
    ours_count, theirs_count = ours.sm_count or ours.cores, theirs.sm_count or theirs.cores
    most = max(ours_count, theirs_count, 1)
    apart = abs(ours_count - theirs_count) / most
    return ours.name != theirs.name, ours.architecture != theirs.architecture, apart


def with_predictions(known: Known, request: StudyRequest, device: DeviceInfo, store: Reader) -> Known:
    """What a search is told, with the model's word: its best predictions go first, its times replace others'.

    Args:
        known: What is known without it.
        request: What the study is asked to do.
        device: Where.
        store: May have a model of its own.
    """
    found = Predictions(request.problem, request.kernels, device, request.regime, store)
    if not found.elsewhere:
        return known
    beside = [(each.kernel, each.config) for each in found.further[:STARTS]]
    starts = [*alternating(found.starts, beside), *known.starts]
    return replace(known, starts=starts, elsewhere=[*found.elsewhere, *found.further], foretold=True)


def alternating(kept: Sequence[Named], beside: Sequence[Named]) -> list[Named]:
    """What to try first: two configs that the model keeps, then one beside such and one that it keeps in turn.

    There are far more of the former, so the best of them are more often ones that the model is wrong about.
    """
    found = list(kept[:2])
    for pair in zip_longest(beside, kept[2:]):
        found += [each for each in pair if each is not None]
    return found


def judged_records(records: Iterable[Record], limit: ErrorLimit | None) -> list[Record]:
    """Judges records by an error limit, and leaves out those that it cannot judge."""
    seen = ((record, judged(record.measurement, limit)) for record in records)
    return [replace(record, measurement=found) for record, found in seen if found is not None]


def that_count(records: Iterable[Record], objectives: Sequence[str]) -> dict[Named, Record]:
    """Returns one record for each config; complete measurements go first.

    A study of one objective can learn from those of another, and a study of several from records that have them
    all. Records that lack some, or that were stopped early for their time, are left out. If one record of a
    config says that it is wrong, the one judged by the newer rules counts.
    """
    found: dict[Named, Record] = {}
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
    found: Mapping[Named, Record], finals: Iterable[Record]
) -> tuple[dict[Named, Record], list[Named]]:
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


def stopped_hastily(found: Mapping[Named, Record]) -> list[Named]:
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
    before: Mapping[Named, Measurement]


def resume(
    session: Session, request: StudyRequest, library: Measurement | None, leaderboard: Leaderboard
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


def _limit(request: StudyRequest, library: Measurement | None) -> ErrorLimit | None:
    if request.error_limit is None:
        return None
    return ErrorLimit.beside(request.error_limit, library.error if library else None, request.problem)
