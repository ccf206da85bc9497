"""What a study starts from: its earlier trials, those of near problems, champions, a model's predictions."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.errors import NothingFound
from tuner.lookup.snapshot import predictor
from tuner.results.distance import OTHER_ARITHMETIC, OTHER_LAYOUT, distances, log_dims
from tuner.results.measurement import VARIES, Measurement, Outcome
from tuner.results.objectives import ANY_BITS, KEEP, LIBRARY_BITS, TIME, ErrorLimit, judged, values_of
from tuner.results.record import VERIFICATION, ProblemKey, Record, Role, measured_as_now
from tuner.search import Known, Observation
from tuner.store import Store, published
from tuner.store.kernel_tuner import IMPORTED
from tuner.store.reading import Reader
from tuner.study.leaderboard import Leaderboard, Named, named
from tuner.study.requests import StudyRequest
from tuner.study.session import Session
from tuner.workers.device_worker import LONG_LIMIT_S
from tuner.workers.sampling import CANNOT_WIN

#: Configs that a study tries first.
STARTS = 8
#: Configs that others are looked for beside, and how many of these a search knows.
PARENTS, FURTHER = 4, 64
#: Number of champions of other problems to start from.
NEIGHBOURS = 5


class Predictions:
    """What a model predicts for the kernels of a study; nothing if the device has no model that knows them.

    Attributes:
        starts: Kernel and config: what to try first of what the model keeps, the best first.
        elsewhere: Predicted times of what it keeps, as if they had been measured elsewhere.
    """

    def __init__(
        self, problem: Problem, kernels: Sequence[Kernel], device: DeviceInfo, regime: str,
        store: Reader | None = None,
    ) -> None:  # fmt: skip
        """Asks the model.

        Args:
            problem: What is computed.
            kernels: Which compete.
            device: Where.
            regime: How time is taken.
            store: May have a model of its own.
        """
        extra, self._problem = predictor(), problem
        self._search = extra.search(problem, kernels, device, regime, store) if extra else None
        self.elsewhere = _as_observed(self._search.candidates(problem, None) if self._search else ())
        self.starts: list[Named] = [(one.kernel, one.config) for one in self.elsewhere[:STARTS]]

    def further(self) -> list[Observation]:
        """Predicted times of configs beside those to try first, the best first."""
        if self._search is None:
            return []
        # Others are looked for beside the first of them; the rest are known, and not proposed again.
        timed_s = [one.time_s or math.inf for one in self.elsewhere[:STARTS]]
        known = zip_longest(((one.kernel, one.config) for one in self.elsewhere), timed_s, fillvalue=math.inf)
        return _as_observed(self._search.beside(self._problem, dict(known), STARTS, FURTHER))

    def beside(self, timed: Mapping[Named, float]) -> list[Named]:
        """What to try after some configs: the most promising ones beside the fastest of them, the best first.

        Args:
            timed: Kernel and config -> seconds.
        """
        if self._search is None:
            return []
        return [(one.kernel, one.config) for one in self._search.beside(self._problem, timed, PARENTS, STARTS)]


def _as_observed(predicted: Iterable[Any]) -> list[Observation]:
    return [Observation(one.kernel, one.config, Outcome.MEASURED, one.time_s) for one in predicted]


def declared_starts(kernels: Sequence[Kernel]) -> list[Named]:
    """Returns what kernels declare to be tried first; the last step of a ladder goes before the first ones."""
    return [(kernel.name, config) for kernel in reversed(kernels) for config in kernel.first_configs()]


def imported(session: Session, kernels: Iterable[str]) -> list[Named]:
    """Returns what files of others have for a problem, or for others that differ in one dim, the nearest first.

    Servers look configs up like this, so the first is what one runs at the problem without a study.
    """
    key, known = session.key, list[tuple[list[tuple[int, int]], Named]]()
    for record in session.store.records(study=f"{IMPORTED} {key.operation}", device=session.device):
        if record.kernel in kernels and _alike(key, record) and record.problem.arithmetic == key.arithmetic:
            pairs = [(size, key.dims[dim]) for dim, size in record.problem.shape]
            known.append(([(abs(size - ours), size) for size, ours in pairs if size != ours], named(record)))
    near = sorted((one for one in reversed(known) if len(one[0]) < 2), key=lambda one: one[0])
    return list(dict.fromkeys(config for _, config in near))


def near_champions(
    store: Store, kernels: Sequence[Kernel], problem: ProblemKey, device: DeviceInfo, most: int = NEIGHBOURS,
    elsewhere: bool = False,
) -> list[Named]:  # fmt: skip
    """Returns the champions of the nearest problems, of the store and published ones.

    Args:
        store: The store.
        kernels: Which compete.
        problem: The problem.
        device: The device.
        most: So many.
        elsewhere: True for those of other devices of the kind, too, behind those of such a device.
    """
    competing = {kernel.name for kernel in kernels}
    known = [
        champion.record
        for champion in (*store.champions(operation=problem.operation), *published.champions(problem.operation))
        if champion.record.device.kind == device.kind
        and (elsewhere or champion.record.device.name == device.name)
        and champion.record.kernel in competing
        and _alike(problem, champion.record)
    ]
    known.sort(key=lambda record: nearness(problem, device, record))
    return [named(record) for record in known[:most]]


def trials_elsewhere(
    store: Store, kernels: Iterable[Kernel], problem: ProblemKey, device: DeviceInfo, regime: str
) -> list[Record]:
    """Returns trials of the same kernels, as they are now, with probably similar times.

    They are those of the nearest other shape on such a device or, if there is none, of the nearest shape on the
    most similar device of the same kind.
    """
    hashes = {kernel.name: kernel.source_hash for kernel in kernels}
    known = [
        record
        for record in (champion.record for champion in store.champions(problem.operation, regime=regime))
        if record.device.kind == device.kind
        and (record.problem, record.device.name) != (problem, device.name)
        and record.problem.arithmetic == problem.arithmetic
        and _alike(problem, record)
    ]
    nearest = min(known, key=lambda record: nearness(problem, device, record), default=None)
    if nearest is None:
        return []
    trials = store.records(problem=nearest.problem, device=nearest.device, role=Role.TRIAL, regime=regime)
    return [one for one in trials if hashes.get(one.kernel) == one.source_hash]


def nearness(problem: ProblemKey, device: DeviceInfo, record: Record) -> tuple[bool, bool, float, float]:
    """Sorts records, the one on the most similar device at the nearest shape first.

    Devices are compared by model, then architecture, then number of multiprocessors or cores.
    """
    there = record.device
    count, count_there = device.sm_count or device.cores, there.sm_count or there.cores
    apart = abs(count - count_there) / max(count, count_there, 1)
    unlike = device.name != there.name, device.architecture != there.architecture
    return *unlike, apart, _distance(problem, record)


def _alike(problem: ProblemKey, record: Record) -> bool:
    """False for another operation that once had the same name: authors of kernels change their sizes."""
    return record.problem.dims.keys() == problem.dims.keys()


def _distance(problem: ProblemKey, record: Record) -> float:
    """Distance in doublings; another layout, dtype, precision or epilogue counts (`tuner.results.distance`)."""
    theirs = record.problem
    shape = [(name, theirs.dims[name]) for name, _ in problem.shape]
    unlike = OTHER_LAYOUT * (theirs.layout != problem.layout)
    unlike += OTHER_ARITHMETIC * (theirs.arithmetic != problem.arithmetic)
    return float(distances(log_dims(shape), log_dims(problem.shape), unlike))


def with_predictions(known: Known, request: StudyRequest, device: DeviceInfo, store: Reader) -> Known:
    """What a search is told, with a model's predictions: the best go first, its times replace others'.

    Args:
        known: What is known without it.
        request: What the study is asked to do.
        device: Where.
        store: May have a model of its own.
    """
    model = Predictions(request.problem, request.kernels, device, request.regime, store)
    if not model.elsewhere:
        return known
    further = model.further()
    # The champion and two configs that the model keeps go first, then one beside such and one that it keeps in
    # turn: there are far more of the former, so the best of them are more often ones that it is wrong about.
    turns = zip_longest(((one.kernel, one.config) for one in further[:STARTS]), model.starts[2:])
    champion = published.reigning_champion(store, ProblemKey.of(request.problem), device, request.regime)
    first = [named(champion.record)] if champion else []
    starts = [*first, *model.starts[:2], *(one for turn in turns for one in turn if one), *known.starts]
    return replace(known, starts=starts, elsewhere=[*model.elsewhere, *further], foretold=True)


def judged_records(records: Iterable[Record], limit: ErrorLimit | None) -> list[Record]:
    """Judges records by an error limit, and leaves out those that it cannot judge."""
    verdicts = ((record, judged(record.measurement, limit)) for record in records)
    return [replace(record, measurement=verdict) for record, verdict in verdicts if verdict is not None]


def that_count(records: Iterable[Record], objectives: Sequence[str]) -> dict[Named, Record]:
    """Returns one record for each config; complete measurements go first.

    A study of one objective can learn from those of another, and a study of several from records that have them
    all. Records that lack some, or that were stopped early for their time, are left out.
    """
    counting: dict[Named, Record] = {}
    for record in records:
        measurement = record.measurement
        complete = measurement.outcome.failed or values_of(measurement, objectives) is not None
        if (complete or len(objectives) == 1) and (
            measurement.outcome is Outcome.MEASURED or named(record) not in counting
        ):
            counting[named(record)] = record
    return counting


def stopped_hastily(records: Mapping[Named, Record]) -> list[Named]:
    """Returns configs that were stopped early because of a config that no longer counts; by time."""
    measured = {place: record.measurement for place, record in records.items()}
    times_s = [one.time_s for one in measured.values() if one.time_s and not one.outcome.failed]
    limit_s = CANNOT_WIN * min(times_s, default=math.inf)
    pruned = {place: one for place, one in measured.items() if one.outcome is Outcome.PRUNED and one.samples_s}
    stopped = {place: min(one.samples_s) for place, one in pruned.items() if min(one.samples_s) <= limit_s}
    return sorted(stopped, key=stopped.__getitem__)


def observed(record: Record, objectives: Sequence[str] = TIME) -> Observation:
    """Converts a record to an observation for a search."""
    measurement = record.measurement
    others = (values_of(measurement, objectives) or ())[1:]
    return Observation(*named(record), measurement.outcome, measurement.time_s, others)


def resume(
    session: Session, request: StudyRequest, library: Measurement | None, leaderboard: Leaderboard
) -> Known:
    """Reuses stored trials: earlier ones of this study, and those of others with probably similar times.

    Trials of this study have the same sources, launches, compiler and driver. Their errors are judged by this
    study's limit. Those judged by rules older than `VERIFICATION` do not count: a config that was found wrong
    may be innocent, and one with a time may have computed nothing.

    Args:
        session: The session, with the store of the trials.
        request: What the study is asked to do.
        library: The library's measurement before the search.
        leaderboard: Receives the trials that count.

    Returns:
        What the search knows.
    """
    objectives, info, store = request.objectives, session.worker.info, session.store
    kernels = {kernel.name: kernel for kernel in request.kernels}

    def stored(role: Role) -> list[Record]:
        return [record for record in session.records(role, kernels) if record.verification >= VERIFICATION]

    trials = that_count(judged_records(stored(Role.TRIAL), _limit(request, library)), objectives)
    bad = (Outcome.WRONG_RESULT, Outcome.NOT_REPEATABLE)
    wrong = [final for final in stored(Role.FINAL) if final.measurement.outcome in bad]
    trials |= {named(final): final for final in wrong if named(final) in trials}
    if request.bits == ANY_BITS:  # these are timed now
        varying = Outcome.NOT_REPEATABLE
        trials = {at: trial for at, trial in trials.items() if trial.measurement.outcome is not varying}
    counting = {
        place: replace(record, measurement=leaderboard.judged(record.measurement))
        for place, record in trials.items()
    }
    hastily = stopped_hastily(counting)
    for place in hastily:
        del trials[place]
    for (kernel, config), record in trials.items():
        leaderboard.add_trial(kernels[kernel], config, record.measurement)
    key = ProblemKey.of(request.problem)
    elsewhere = trials_elsewhere(store, request.kernels, key, info, request.regime)
    # Champions go first: a short study has time for few configs, and one that is fast lets slow ones be pruned
    # early. The search leaves out illegal ones.
    starts = [*near_champions(store, request.kernels, key, info), *declared_starts(request.kernels)]
    return Known(
        starts=[*hastily, *imported(session, kernels)[:STARTS], *starts],
        past=[observed(counting[place], objectives) for place in trials],
        elsewhere=[observed(record) for record in judged_records(elsewhere, _limit(request, None))],
    )


def held_class(session: Session, request: StudyRequest, library: Measurement | None) -> str:
    """The class of bits that a study keeps to; empty for any, and for a first champion.

    Args:
        session: The session; a champion of unknown class is measured there.
        request: What the study is asked to do.
        library: The library's measurement before the search.

    Raises:
        NothingFound: The class cannot be known.
    """
    bits = request.bits
    if bits == LIBRARY_BITS:
        bits = library.bits if library else ""
        if bits in ("", VARIES):
            raise NothingFound(f"--bits {LIBRARY_BITS} needs a library whose bits do not vary; none is here")
    elif bits == KEEP:
        champion = published.reigning_champion(session.store, session.key, session.device, session.regime)
        if champion is None:
            return ""
        bits = champion.record.measurement.bits
        bits = _measured_class(session, request, champion.record) if bits in ("", VARIES) else bits
    return bits


def _measured_class(session: Session, request: StudyRequest, record: Record) -> str:
    kernels = (kernel for kernel in request.kernels if kernel.name == record.kernel)
    kernel = next((one for one in kernels if measured_as_now(record, one, session.problem)), None)
    measured = session.timed(kernel, Config(record.config), LONG_LIMIT_S)[1] if kernel else None
    if measured is None or measured.bits in ("", VARIES):
        raise NothingFound(
            f"--bits {KEEP} needs the class of the champion's bits; {record.kernel} has none, or has changed "
            "since it was crowned; tune once without it"
        )
    return measured.bits


def _limit(request: StudyRequest, library: Measurement | None) -> ErrorLimit | None:
    if request.error_limit is None:
        return None
    return ErrorLimit.beside(request.error_limit, library.error if library else None, request.problem)
