"""Ranks the measured configs of a study, drops hopeless kernels, and draws Pareto fronts."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
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
from tuner.store.published import Published
from tuner.study.progress import Progress
from tuner.study.requests import StudyRequest
from tuner.study.session import past_records
from tuner.workers.bench import CompiledConfig

#: Kernel and config.
Named = tuple[str, Config]
#: Largest number of compiled configs kept for the finals.
KEPT = 32
#: A kernel is dropped if its first configs are all slower than the best config by this factor.
HOPELESS = 20.0
#: Largest number of first configs that count, if a kernel declares several.
FIRST = 3


class Leaderboard:
    """The measured configs of a study, and the machine code of the best.

    Attributes:
        times_s: (kernel, config) -> median in seconds.
        stopped_s: (kernel, config) -> fastest sample of a config that was stopped early, in seconds.
        compiled_configs: Compiled configs of the best.
        best_s: The shortest of the times; None if there is none yet.
        objectives: What the study minimises.
        progress: Counts the trials.
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
        self.with_objectives: dict[Named, Measurement] = {}
        self.times_s: dict[Named, float] = {}
        self.stopped_s: dict[Named, float] = {}
        self.compiled_configs: dict[Named, CompiledConfig] = {}
        self.best_s: float | None = None

    def add_trial(
        self, kernel: str, config: Config, measurement: Measurement, code: CompiledConfig | None = None
    ) -> None:
        """Counts a trial, and ranks it if it was measured."""
        self.progress.count(measurement)
        named, time_s = (kernel, config), measurement.time_s
        if measurement.outcome is Outcome.PRUNED and measurement.samples_s:
            self.stopped_s[named] = min(measurement.samples_s)
        if measurement.outcome is not Outcome.MEASURED or time_s is None:
            return
        self.times_s[named] = time_s
        if code is not None:
            self._keep(named, code)
        if self.best_s is None or time_s < self.best_s:
            self.best_s = self.progress.best_s = time_s
            self.progress.best = f"{kernel} {config}"
        self.add_objectives(kernel, config, measurement)
        if self.with_objectives:
            self.progress.front = len(self.front)

    def _keep(self, named: Named, code: CompiledConfig) -> None:
        """Keeps machine code, of half as many configs once there are too many."""
        self.compiled_configs[named] = code
        if len(self.compiled_configs) > KEPT:
            ranked = sorted(self.compiled_configs, key=lambda one: self.times_s[one])
            self.compiled_configs = {one: self.compiled_configs[one] for one in ranked[: KEPT // 2]}

    def add_objectives(self, kernel: str, config: Config, measurement: Measurement) -> None:
        """Adds all objectives of a measured config, if there are several."""
        named = kernel, config
        if len(self.objectives) > 1 and values_of(measurement, self.objectives) is not None:
            self.with_objectives[named] = measurement

    @property
    def front(self) -> list[Named]:
        """The configs on the Pareto front, the fastest first."""
        return self.front_of(self.with_objectives)

    def front_of(self, configs: Iterable[Named]) -> list[Named]:
        """Returns the Pareto front of these configs, the fastest first."""
        ranked = sorted(configs, key=self.values)
        return [ranked[at] for at in front([resolved(self.values(one)) for one in ranked])]

    def values(self, of: Named) -> tuple[float, ...]:
        """Returns the objectives of a ranked config."""
        return values_of(self.with_objectives[of], self.objectives) or ()

    @property
    def objective_value(self) -> float | None:
        """A number that falls as the search progresses: the best time, or a rating of the front."""
        if len(self.objectives) == 1:
            return self.best_s
        values = [self.values(one) for one in self.front]
        return front_value(values) if values else None


class Elimination:
    """Watches the first configs of each kernel, and says which kernels are hopeless.

    Idle cores do not count against a kernel: a config's time is scaled as if it used all cores.
    """

    def __init__(self, kernels: Iterable[Kernel], spaces: Mapping[str, Space], cores: int) -> None:
        """Begins.

        Args:
            kernels: The competitors.
            spaces: Kernel -> its legal configs; those without any do not take part.
            cores: Number of a CPU's cores; 1 for another device.
        """
        self._kernels = {kernel.name: kernel for kernel in kernels if kernel.name in spaces}
        self._cores = max(cores, 1)
        #: Kernel -> how many of its first configs are still to be tried, and the shortest time so far.
        self._left: dict[str, int] = {}
        for name, kernel in self._kernels.items():
            legal = sum(config in spaces[name] for config in kernel.first_configs())
            self._left[name] = min(max(legal, 1), FIRST)
        self._best_s = dict.fromkeys(self._left, math.inf)

    def take(self, kernel: str, config: Config, measurement: Measurement) -> None:
        """Records a trial; failures count only if the time limit was exceeded."""
        stopped = measurement.outcome is Outcome.TIMED_OUT
        time_s = math.inf if stopped else measurement.time_s
        if kernel not in self._left or time_s is None or (measurement.outcome.failed and not stopped):
            return
        self._left[kernel] -= 1
        used = min(int(config.get(self._kernels[kernel].threads, self._cores)), self._cores)
        self._best_s[kernel] = min(time_s * used / self._cores, self._best_s[kernel])

    def dropped(self, best_s: float | None) -> dict[str, str]:
        """Returns the newly hopeless kernels, each with the reason.

        Args:
            best_s: Median of the best config so far, in seconds; None if there is none yet.
        """
        if best_s is None:
            return {}
        hopeless = [
            kernel
            for kernel, left in self._left.items()
            if left <= 0 and self._best_s[kernel] > HOPELESS * best_s
        ]
        reasons = {}
        for kernel in hopeless:
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


def front_of(
    leaderboard: Leaderboard,
    wrong: Collection[Named],
    champion: Champion | None,
    library: tuple[str, Measurement] | None,
    work: Mapping[str, float],
) -> Front:
    """Returns the front of a study's measured configs.

    Args:
        leaderboard: Leaderboard of several objectives.
        wrong: Configs to leave out, because finals found them wrong.
        champion: The study's champion.
        library: Its name and measurement; left out if it lacks an objective.
        work: ``flops`` and ``bytes`` of a run.
    """
    points = {
        named: Point(*named, measurement)
        for named, measurement in leaderboard.with_objectives.items()
        if named not in wrong
    }
    on_it = leaderboard.front_of(points)
    winner = (champion.record.kernel, Config(champion.record.config)) if champion else None
    has_all = library is not None and values_of(library[1], leaderboard.objectives) is not None
    return Front(
        objectives=leaderboard.objectives,
        points=tuple(points[named] for named in on_it),
        beaten=tuple(leaderboard.values(named) for named in points if named not in on_it),
        champion=points.get(winner) if winner else None,
        library=Point(library[0], Config({}), library[1]) if library and has_all else None,
        work=work,
    )


def found_wrong(finals: Sequence[Record]) -> set[Named]:
    """Returns configs that finals found wrong, for example at other shapes."""
    return {
        (record.kernel, Config(record.config))
        for record in finals
        if record.measurement.outcome is Outcome.WRONG_RESULT
    }


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
    champion = store.champion(problem, where, regime) if store is not None else None
    if store is not None and champion is not None:
        front = _stored_front(store, champion, objectives)
        if front.points:
            return front, champion
    for result in snapshot.standing(problem.operation, (where.kind, where.name)):
        record = result.champion.record
        if (record.problem, record.regime) == (problem, regime):
            champion, front = result.champion, _published_front(result, objectives)
            if front.points:
                return front, champion
    if champion is None:
        raise NothingFound(f"nothing is known of {problem} on {where.name} ({regime}); run `tuner tune` first")
    raise NothingFound(
        f"no trial of {problem} on {where.name} ({regime}) was measured to the end for "
        f"{' and '.join(objectives)}; run `tuner tune ... --objective {','.join(objectives)}` first"
    )


def _stored_front(store: Store, champion: Champion, objectives: tuple[str, ...]) -> Front:
    """The front of measurements with the champion's driver and compiler, of latest sources."""
    record = champion.record
    trials, finals, libraries = (
        past_records(store, record.problem, record.device, record.regime, record.versions, role)
        for role in (Role.TRIAL, Role.FINAL, Role.BASELINE)
    )
    latest = {trial.kernel: trial.source_hash for trial in trials}
    finals = [final for final in finals if final.source_hash == latest.get(final.kernel)]
    library = next(
        (one for one in reversed(libraries) if values_of(one.measurement, objectives) is not None), None
    )
    return _front(champion, trials, latest, found_wrong(finals), library, objectives)


def _published_front(result: Published, objectives: tuple[str, ...]) -> Front:
    """The front of a published champion and the configs published beside it."""
    record = result.champion.record
    trials = [record, *result.runners_up]
    latest = {trial.kernel: trial.source_hash for trial in reversed(trials)}
    return _front(result.champion, trials, latest, (), result.champion.baseline, objectives)


def _front(
    champion: Champion,
    trials: Sequence[Record],
    latest: Mapping[str, str],
    wrong: Collection[Named],
    library: Record | None,
    objectives: tuple[str, ...],
) -> Front:
    """The front of trials whose source hash is the latest of their kernel."""
    leaderboard = Leaderboard(objectives)
    for trial in trials:
        if trial.source_hash == latest[trial.kernel]:
            leaderboard.add_objectives(trial.kernel, Config(trial.config), trial.measurement)
    beside = (library.kernel, library.measurement) if library else None
    return front_of(leaderboard, wrong, champion, beside, champion.record.work)
