"""Ranks the measured configs of a study, drops hopeless kernels, and draws Pareto fronts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.space import Config, Space
from tuner.devices.detect import kind_of
from tuner.errors import NothingFound
from tuner.lookup.asking import known_device
from tuner.lookup.snapshot import Snapshot
from tuner.results.measurement import Measurement, Outcome
from tuner.results.objectives import TIME, Front, Point, resolved, values_of
from tuner.results.record import Champion, ProblemKey, Record, Role
from tuner.search import front, front_value
from tuner.store import Store
from tuner.study.progress import Progress
from tuner.study.requests import StudyRequest
from tuner.study.session import past_records

#: Kernel and config.
Named = tuple[str, Config]
#: A kernel is dropped if its first configs are all slower than the best config by this factor.
HOPELESS = 20.0
#: Largest number of first configs that count, if a kernel declares several.
FIRST = 3


def named(record: Record) -> Named:
    """The kernel and config of a record."""
    return record.kernel, Config(record.config)


class Leaderboard:
    """The measured configs of a study, and the machine code of the best.

    Attributes:
        objectives: What the study minimises.
        progress: Counts the trials.
        times_s: (kernel, config) -> median in seconds.
        stopped_s: (kernel, config) -> fastest sample of a config that was stopped early, in seconds.
        best_s: The shortest of the times; None if there is none yet.
        with_objectives: With several objectives: (kernel, config) -> its measurement, if it has all of them.
    """

    def __init__(self, objectives: tuple[str, ...] = TIME, progress: Progress | None = None) -> None:
        """Begins.

        Args:
            objectives: What the study minimises.
            progress: Progress to update.
        """
        self.objectives = objectives
        self.progress = progress or Progress()
        self.times_s: dict[Named, float] = {}
        self.stopped_s: dict[Named, float] = {}
        self.best_s: float | None = None
        self.with_objectives: dict[Named, Measurement] = {}

    def add_trial(self, kernel: str, config: Config, measurement: Measurement) -> None:
        """Counts a trial, and ranks it if it was measured."""
        self.progress.count(measurement)
        place, time_s = (kernel, config), measurement.time_s
        if measurement.outcome is Outcome.PRUNED and measurement.samples_s:
            self.stopped_s[place] = min(measurement.samples_s)
        if measurement.outcome is not Outcome.MEASURED or time_s is None:
            return
        self.times_s[place] = time_s
        if self.best_s is None or time_s < self.best_s:
            self.best_s = self.progress.best_s = time_s
            self.progress.best = f"{kernel} {config}"
        if len(self.objectives) > 1 and values_of(measurement, self.objectives) is not None:
            self.with_objectives[place] = measurement

    @property
    def objective_value(self) -> float | None:
        """A number that falls as the search progresses: the best time, or a rating of the front."""
        if len(self.objectives) == 1:
            return self.best_s
        on_it = front_of(self.with_objectives, self.objectives)
        return front_value([on_it.values(point) for point in on_it.points]) if on_it.points else None


class Elimination:
    """Watches the first configs of each kernel, and says which kernels are hopeless.

    Idle cores do not count against a kernel: a config's time is scaled as if it used all cores.
    """

    def __init__(self, kernels: Sequence[Kernel], spaces: Mapping[str, Space], cores: int) -> None:
        """Begins.

        Args:
            kernels: The competitors.
            spaces: Kernel -> its legal configs; those without any do not take part.
            cores: Number of a CPU's cores; 1 for another device.
        """
        self._threads = {kernel.name: kernel.threads for kernel in kernels}
        self._cores = max(cores, 1)
        #: Kernel -> how many of its first configs are still to be tried, and the shortest time so far.
        self._left = {
            kernel.name: min(
                max(sum(config in spaces[kernel.name] for config in kernel.first_configs()), 1), FIRST
            )
            for kernel in kernels
            if kernel.name in spaces
        }
        self._best_s = dict.fromkeys(self._left, math.inf)

    def take(self, kernel: str, config: Config, measurement: Measurement) -> None:
        """Records a trial; failures count only if the time limit was exceeded."""
        stopped = measurement.outcome is Outcome.TIMED_OUT
        time_s = math.inf if stopped else measurement.time_s
        if kernel not in self._left or time_s is None or (measurement.outcome.failed and not stopped):
            return
        self._left[kernel] -= 1
        used = min(int(config.get(self._threads[kernel], self._cores)), self._cores)
        self._best_s[kernel] = min(time_s * used / self._cores, self._best_s[kernel])

    def dropped(self, best_s: float | None) -> dict[str, str]:
        """Returns the newly hopeless kernels, each with the reason.

        Args:
            best_s: Median of the best config so far, in seconds; None if there is none yet.
        """
        reasons: dict[str, str] = {}
        for kernel, left in list(self._left.items()):
            if best_s is None or left > 0 or self._best_s[kernel] <= HOPELESS * best_s:
                continue
            del self._left[kernel]
            ratio = self._best_s[kernel] / best_s
            reasons[kernel] = (
                f"its first configs take {f'{ratio:.0f}' if math.isfinite(ratio) else 'many'} times the best "
                f"config's time; to search it all the same, ask for it by --kernel {kernel}"
            )
        return reasons


def elimination_of(
    request: StudyRequest, spaces: Mapping[str, Space], device: DeviceInfo, before: Mapping[Named, Measurement]
) -> Elimination | None:
    """Makes the elimination for a study.

    Args:
        request: What the study is asked to do.
        spaces: Kernel -> its legal configs.
        device: Where.
        before: Measurements that the study takes over.

    Returns:
        None if no kernel is to be dropped, because all configs are requested or slow ones may save energy.
    """
    if not request.drop or request.sampler == "bruteforce" or len(request.objectives) > 1:
        return None
    elimination = Elimination(request.kernels, spaces, device.cores if kind_of(device.kind).is_host else 1)
    for (kernel, config), measurement in before.items():
        elimination.take(kernel, config, measurement)
    return elimination


# --- fronts --------------------------------------------


def front_of(
    measured: Mapping[Named, Measurement],
    objectives: tuple[str, ...],
    champion: Record | None = None,
    library: tuple[str, Measurement] | None = None,
    work: Mapping[str, float] | None = None,
) -> Front:
    """Returns the front of measured configs; a library that lacks an objective is left out.

    Args:
        measured: (kernel, config) -> its measurement, which has all objectives.
        objectives: Two or more objectives.
        champion: The champion's record.
        library: Its name and measurement.
        work: ``flops`` and ``bytes`` of a run.
    """
    values = {place: values_of(measurement, objectives) or () for place, measurement in measured.items()}
    ranked = sorted(values, key=values.__getitem__)
    on_it = {ranked[at] for at in front([resolved(values[place]) for place in ranked])}
    points = {place: Point(*place, measured[place]) for place in ranked}
    has_all = library is not None and values_of(library[1], objectives) is not None
    return Front(
        objectives=objectives,
        points=tuple(points[place] for place in ranked if place in on_it),
        beaten=tuple(values[place] for place in ranked if place not in on_it),
        champion=points.get(named(champion)) if champion else None,
        library=Point(library[0], Config({}), library[1]) if library and has_all else None,
        work=work or {},
    )


def found_wrong(finals: Iterable[Record]) -> set[Named]:
    """Returns configs that finals found wrong, for example at other shapes."""
    return {named(record) for record in finals if record.measurement.outcome is Outcome.WRONG_RESULT}


def known_front(
    store: Store | None,
    problem: ProblemKey,
    device: DeviceInfo | str,
    regime: str,
    objectives: tuple[str, ...],
    published: Path | None = None,
) -> tuple[Front, Champion]:
    """Returns the front of a problem's stored records, or else of its published results.

    Args:
        store: The records; None without a database.
        problem: The problem.
        device: A device, or words of its name.
        regime: How times were taken.
        objectives: Two or more objectives.
        published: Folder of published results; the project's own if None.

    Raises:
        NothingFound: Neither has a champion for it, or all objectives.
        UnknownName: No device, or several devices, have this name.
    """
    snapshot = Snapshot.open(store, published)
    where = known_device(device, snapshot.devices()) if isinstance(device, str) else device
    sources: list[tuple[Champion, Sequence[Record], Record | None]] = []
    if store is not None and (champion := store.champion(problem, where, regime)) is not None:
        sources.append((champion, *_stored(store, champion.record, objectives)))
    for result in snapshot.standing(problem.operation, (where.kind, where.name)):
        record = result.champion.record
        if (record.problem, record.regime) == (problem, regime):
            latest = _of_latest_sources([*reversed(result.runners_up), record])
            sources.append((result.champion, latest, result.champion.baseline))
    for champion, trials, baseline in sources:
        complete = [trial for trial in trials if values_of(trial.measurement, objectives) is not None]
        measured = {named(trial): trial.measurement for trial in complete}
        library = (baseline.kernel, baseline.measurement) if baseline else None
        front = front_of(measured, objectives, champion.record, library, champion.record.work)
        if front.points:
            return front, champion
    if not sources:
        raise NothingFound(f"nothing is known of {problem} on {where.name} ({regime}); run `tuner tune` first")
    raise NothingFound(
        f"no trial of {problem} on {where.name} ({regime}) was measured to the end for "
        f"{' and '.join(objectives)}; run `tuner tune ... --objective {','.join(objectives)}` first"
    )


def _stored(store: Store, champion: Record, objectives: tuple[str, ...]) -> tuple[list[Record], Record | None]:
    """The trials with the champion's driver and compiler that finals did not find wrong, and the library."""
    trials, finals, libraries = (
        past_records(store, champion.problem, champion.device, champion.regime, champion.versions, role)
        for role in (Role.TRIAL, Role.FINAL, Role.BASELINE)
    )
    trials = _of_latest_sources(trials)
    sources = {trial.source_hash for trial in trials}
    wrong = found_wrong(final for final in finals if final.source_hash in sources)
    complete = [one for one in libraries if values_of(one.measurement, objectives) is not None]
    # The first of the latest run was measured before its search, as configs were, and the others in finals.
    of_run = [one for one in complete if one.session == complete[-1].session]
    return [trial for trial in trials if named(trial) not in wrong], of_run[0] if of_run else None


def _of_latest_sources(trials: Sequence[Record]) -> list[Record]:
    """The trials, the oldest first, whose source is the latest of their kernel."""
    latest = {trial.kernel: trial.source_hash for trial in trials}
    return [trial for trial in trials if trial.source_hash == latest[trial.kernel]]
