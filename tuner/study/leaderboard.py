"""Ranks the measured configs of a study, drops hopeless kernels, and draws Pareto fronts."""

import math
from collections.abc import Iterable, Mapping, Sequence

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.space import Config
from tuner.errors import NothingFound
from tuner.lookup.asking import known_device
from tuner.lookup.snapshot import Snapshot
from tuner.results.measurement import Measurement, Outcome
from tuner.results.objectives import TIME, Front, Point, of_class, resolved, values_of
from tuner.results.record import Champion, ProblemKey, Record, Role
from tuner.search import front, front_value
from tuner.store import Store
from tuner.study.progress import Progress
from tuner.study.session import past_records

#: Kernel and config.
Named = tuple[str, Config]
#: A kernel is dropped if so many of its configs, its first ones, are all slower than the best by this factor.
FIRST, HOPELESS = 2, 20.0


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
        with_objectives: With several objectives: (kernel, config) -> its measurement, if it has all of them.
    """

    def __init__(
        self, objectives: tuple[str, ...] = TIME, progress: Progress | None = None, cores: int = 1,
        bits: str = "",
    ) -> None:  # fmt: skip
        """Begins.

        Args:
            objectives: What the study minimises.
            progress: Progress to update.
            cores: Number of a CPU's cores; 1 for another device.
            bits: Class of bits that the study keeps to; empty for any.
        """
        self.objectives = objectives
        self.progress = progress or Progress()
        self.times_s: dict[Named, float] = {}
        self.stopped_s: dict[Named, float] = {}
        self.with_objectives: dict[Named, Measurement] = {}
        self._cores, self._bits = max(cores, 1), bits
        #: Kernel -> times of its configs, as if each used all cores: idle ones do not count against a kernel.
        self._whole_s: dict[str, list[float]] = {}

    @property
    def best_s(self) -> float | None:
        """The shortest of the times; None if there is none yet."""
        return self.progress.best_s

    def judged(self, measurement: Measurement) -> Measurement:
        """A measurement as it counts here: one of another class of bits than the study keeps to has no time."""
        return of_class(measurement, self._bits)

    def add_trial(self, kernel: Kernel, config: Config, measurement: Measurement) -> None:
        """Counts a trial, and ranks it if it was measured and counts."""
        self.progress.notice(measurement)
        measurement = self.judged(measurement)
        self.progress.count(measurement)
        place, time_s = (kernel.name, config), measurement.time_s
        is_stopped = measurement.outcome is Outcome.TIMED_OUT
        if is_stopped or (time_s is not None and not measurement.outcome.failed):
            used = min(int(config.get(kernel.threads, self._cores)), self._cores) / self._cores
            self._whole_s.setdefault(kernel.name, []).append(math.inf if is_stopped else (time_s or 0.0) * used)
        if measurement.outcome is Outcome.PRUNED and measurement.samples_s:
            self.stopped_s[place] = min(measurement.samples_s)
        if measurement.outcome is not Outcome.MEASURED or time_s is None:
            return
        self.times_s[place] = time_s
        if self.best_s is None or time_s < self.best_s:
            self.progress.best_s, self.progress.best = time_s, f"{kernel.name} {config}"
        if len(self.objectives) > 1 and values_of(measurement, self.objectives) is not None:
            self.with_objectives[place] = measurement

    def hopeless(self) -> dict[str, str]:
        """Kernels that are hopeless by now and were not dropped yet, each with the reason."""
        reasons = {}
        for kernel, whole_s in self._whole_s.items():
            ratio = min(whole_s) / self.best_s if self.best_s else 0.0
            if ratio > HOPELESS and len(whole_s) >= FIRST and kernel not in self.progress.dropped:
                reasons[kernel] = (
                    f"its first configs take {f'{ratio:.0f}' if math.isfinite(ratio) else 'many'} times the "
                    f"best config's time; to search it all the same, ask for it by --kernel {kernel}"
                )
        return reasons

    @property
    def objective_value(self) -> float | None:
        """A number that falls as the search progresses: the best time, or a rating of the front."""
        if len(self.objectives) == 1:
            return self.best_s
        on_it = front_of(self.with_objectives, self.objectives)
        return front_value([on_it.values(point) for point in on_it.points]) if on_it.points else None


# --- fronts --------------------------------------------


def front_of(
    measured: Mapping[Named, Measurement], objectives: tuple[str, ...], champion: Record | None = None,
    library: tuple[str, Measurement] | None = None, work: Mapping[str, float] | None = None,
) -> Front:  # fmt: skip
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
        objectives, tuple(points[place] for place in ranked if place in on_it),
        beaten=tuple(values[place] for place in ranked if place not in on_it),
        champion=points.get(named(champion)) if champion else None, work=work or {},
        library=Point(library[0], Config({}), library[1]) if library and has_all else None,
    )  # fmt: skip


def found_wrong(finals: Iterable[Record]) -> set[Named]:
    """Returns configs that finals found wrong, for example at other shapes."""
    return {named(record) for record in finals if record.measurement.outcome is Outcome.WRONG_RESULT}


def known_front(
    store: Store | None, problem: ProblemKey, device: DeviceInfo | str, regime: str,
    objectives: tuple[str, ...],
) -> tuple[Front, Champion]:  # fmt: skip
    """Returns the front of a problem's stored records, or else of its published results.

    Args:
        store: The records; None without a database.
        problem: The problem.
        device: A device, or words of its name.
        regime: How times were taken.
        objectives: Two or more objectives.

    Raises:
        NothingFound: Neither has a champion for it, or all objectives.
        UnknownName: No device, or several devices, have this name.
    """
    snapshot = Snapshot.open(store, None)
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
