"""Ranks the measured configs of a study, drops hopeless kernels, and draws Pareto fronts."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from tuner.declare.hardware import DeviceInfo
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

#: Largest number of compiled configs kept for the finals.
KEPT = 32


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
        front: Those of them on the Pareto front.
    """

    def __init__(self, objectives: tuple[str, ...] = TIME, progress: Progress | None = None) -> None:
        """Begins.

        Args:
            objectives: What the study minimises.
            progress: Progress to update.
        """
        self.objectives = objectives
        self.progress = progress or Progress()
        self.with_objectives: dict[tuple[str, Config], Measurement] = {}
        self.front: list[tuple[str, Config]] = []
        self.times_s: dict[tuple[str, Config], float] = {}
        self.stopped_s: dict[tuple[str, Config], float] = {}
        self.compiled_configs: dict[tuple[str, Config], CompiledConfig] = {}
        self.best_s: float | None = None

    def add_trial(
        self,
        kernel: str,
        config: Config,
        measurement: Measurement,
        compiled_config: CompiledConfig | None = None,
    ) -> None:
        """Counts a trial, and ranks it if it was measured."""
        self.progress.count(measurement)
        if measurement.outcome is Outcome.PRUNED and measurement.samples_s:
            self.stopped_s[kernel, config] = min(measurement.samples_s)
        time_s = measurement.time_s
        if measurement.outcome is not Outcome.MEASURED or time_s is None:
            return
        if self._add(kernel, config, time_s, compiled_config):
            self.progress.lead(time_s, f"{kernel} {config}")
        self.add_objectives(kernel, config, measurement)
        self.progress.set_front(len(self.front))

    def _add(self, kernel: str, config: Config, time_s: float, compiled_config: CompiledConfig | None) -> bool:
        """Adds a measured config; True if it is the best."""
        self.times_s[kernel, config] = time_s
        if compiled_config is not None:
            self.compiled_configs[kernel, config] = compiled_config
            if len(self.compiled_configs) > KEPT:
                ranked = sorted(self.compiled_configs, key=lambda each: self.times_s[each])
                self.compiled_configs = {each: self.compiled_configs[each] for each in ranked[: KEPT // 2]}
        if self.best_s is None or time_s < self.best_s:
            self.best_s = time_s
            return True
        return False

    def add_objectives(self, kernel: str, config: Config, measurement: Measurement) -> None:
        """Adds all objectives of a measured config, if there are several."""
        if len(self.objectives) > 1 and values_of(measurement, self.objectives) is not None:
            self.with_objectives[kernel, config] = measurement
            self.front = self.front_of(
                [each for each in self.front if each != (kernel, config)] + [(kernel, config)]
            )

    def front_of(self, configs: Iterable[tuple[str, Config]]) -> list[tuple[str, Config]]:
        """Returns the Pareto front of these configs, the fastest first."""
        ranked = sorted(configs, key=self.values)
        return [ranked[at] for at in front([resolved(self.values(each)) for each in ranked])]

    def values(self, of: tuple[str, Config]) -> tuple[float, ...]:
        """Returns the objectives of a ranked config."""
        return values_of(self.with_objectives[of], self.objectives) or ()

    @property
    def objective_value(self) -> float | None:
        """A number that falls as the search progresses: the best time, or a rating of the front."""
        if len(self.objectives) == 1:
            return self.best_s
        return front_value([self.values(each) for each in self.front]) if self.front else None


#: Kernel and config.
Key = tuple[str, Config]

#: A kernel is dropped if its first configs are all slower than the best config by this factor.
HOPELESS = 20.0
#: Largest number of first configs that count, if a kernel declares several.
FIRST = 3


class Elimination:
    """Watches the first configs of each kernel.

    Idle cores do not count against a kernel: a config's time is scaled as if it used all cores.
    """

    def __init__(self, first_configs: Mapping[str, int], cores: int, threads: Mapping[str, str]) -> None:
        """Begins.

        Args:
            first_configs: Kernel -> the legal ones of its declared first configs.
            cores: Number of a CPU's cores; 1 for another device.
            threads: Kernel -> its parameter that is the number of CPU threads; empty if it declares none.
        """
        self._threads = threads
        self._wanted = {name: min(max(count, 1), FIRST) for name, count in first_configs.items()}
        self._cores = max(cores, 1)
        self._tried = dict.fromkeys(first_configs, 0)
        self._at_best_s: dict[str, float] = {}

    def take(self, kernel: str, config: Config, measurement: Measurement) -> None:
        """Records a trial; failures count only if the time limit was exceeded."""
        time_s = measurement.time_s
        if kernel not in self._wanted:
            return
        if measurement.outcome is Outcome.TIMED_OUT:
            time_s = math.inf
        elif measurement.outcome.failed or time_s is None:
            return
        self._tried[kernel] += 1
        at_best_s = (
            time_s * min(int(config.get(self._threads.get(kernel, ""), self._cores)), self._cores) / self._cores
        )
        self._at_best_s[kernel] = min(at_best_s, self._at_best_s.get(kernel, math.inf))

    def dropped(self, best_s: float | None) -> dict[str, str]:
        """Returns the newly hopeless kernels, each with the reason.

        Args:
            best_s: Median of the best config so far, in seconds; None if there is none yet.
        """
        found: dict[str, str] = {}
        for kernel, at_best_s in list(self._at_best_s.items()):
            if best_s is None or self._tried[kernel] < self._wanted[kernel] or at_best_s <= HOPELESS * best_s:
                continue
            del self._at_best_s[kernel], self._wanted[kernel]
            times = f"{at_best_s / best_s:.0f} times" if math.isfinite(at_best_s) else "many times"
            found[kernel] = (
                f"its first configs take {times} the best config's time; to search it all the same, "
                f"ask for it by --kernel {kernel}"
            )
        return found


def elimination_of(
    request: StudyRequest, spaces: Mapping[str, Space], device: DeviceInfo, before: Mapping[Key, Measurement]
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
    counts = {
        kernel.name: sum(config in spaces[kernel.name] for config in kernel.first_configs())
        for kernel in request.kernels
        if kernel.name in spaces
    }
    threads = {kernel.name: kernel.threads for kernel in request.kernels}
    elimination = Elimination(counts, device.cores if kind_of(device.kind).is_host else 1, threads)
    for (kernel, config), measurement in before.items():
        elimination.take(kernel, config, measurement)
    return elimination


def front_of(
    leaderboard: Leaderboard,
    wrong: Collection[tuple[str, Config]],
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
        each: Point(*each, found) for each, found in leaderboard.with_objectives.items() if each not in wrong
    }
    on_it = leaderboard.front_of(points)
    winner = (champion.record.kernel, Config(champion.record.config)) if champion else None
    has_all = library is not None and values_of(library[1], leaderboard.objectives) is not None
    return Front(
        objectives=leaderboard.objectives,
        points=tuple(points[each] for each in on_it),
        beaten=tuple(leaderboard.values(each) for each in points if each not in on_it),
        champion=points.get(winner) if winner else None,
        library=Point(library[0], Config({}), library[1]) if library and has_all else None,
        work=work,
    )


def found_wrong(finals: Sequence[Record]) -> set[tuple[str, Config]]:
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
    trouble = _nothing_known(problem, where, regime)
    if store is not None:
        try:
            return stored_front(store, problem, where, regime, objectives)
        except NothingFound as error:
            trouble = error
    for each in snapshot.standing(problem.operation, (where.kind, where.name)):
        record = each.champion.record
        if (record.problem, record.regime) == (problem, regime):
            return _published_front(each, objectives)
    raise trouble


def stored_front(
    store: Store, problem: ProblemKey, device: DeviceInfo | str, regime: str, objectives: tuple[str, ...]
) -> tuple[Front, Champion]:
    """Returns the front of measurements with the champion's driver and compiler, of latest sources.

    Args:
        store: Where the records are.
        problem: The problem.
        device: A device, or its name.
        regime: How times were taken.
        objectives: Two or more objectives.

    Raises:
        NothingFound: The problem has no champion there, or no measurement has all objectives.
    """
    champion = store.champion(problem, device, regime)
    if champion is None:
        raise _nothing_known(problem, device, regime)
    record = champion.record
    trials, finals, libraries = (
        past_records(store, problem, record.device, regime, record.versions, role)
        for role in (Role.TRIAL, Role.FINAL, Role.BASELINE)
    )
    latest = {each.kernel: each.source_hash for each in trials}
    leaderboard = Leaderboard(objectives)
    for each in trials:
        if each.source_hash == latest[each.kernel]:
            leaderboard.add_objectives(each.kernel, Config(each.config), each.measurement)
    wrong = found_wrong([each for each in finals if each.source_hash == latest.get(each.kernel)])
    whole = [each for each in libraries if values_of(each.measurement, objectives) is not None]
    library = (whole[-1].kernel, whole[-1].measurement) if whole else None
    front = front_of(leaderboard, wrong, champion, library, record.work)
    if not front.points:
        raise _no_trial(record, objectives)
    return front, champion


def _published_front(found: Published, objectives: tuple[str, ...]) -> tuple[Front, Champion]:
    """Returns the front of a published champion and the configs published beside it.

    Args:
        found: The problem's published result.
        objectives: Two or more objectives.

    Raises:
        NothingFound: No published config has all objectives.
    """
    champion, leaderboard = found.champion, Leaderboard(objectives)
    record, latest = champion.record, {champion.record.kernel: champion.record.source_hash}
    for each in (record, *(beside.as_record(record) for beside in found.runners_up)):
        if each.source_hash == latest.setdefault(each.kernel, each.source_hash):
            leaderboard.add_objectives(each.kernel, Config(each.config), each.measurement)
    beside = champion.baseline
    front = front_of(
        leaderboard, (), champion, (beside.kernel, beside.measurement) if beside else None, record.work
    )
    if not front.points:
        raise _no_trial(record, objectives)
    return front, champion


def _nothing_known(problem: ProblemKey, device: DeviceInfo | str, regime: str) -> NothingFound:
    """Returns the error for a problem without a champion."""
    where = device if isinstance(device, str) else device.name
    return NothingFound(f"nothing is known of {problem} on {where} ({regime}); run `tuner tune` first")


def _no_trial(record: Record, objectives: Sequence[str]) -> NothingFound:
    return NothingFound(
        f"no trial of {record.problem} on {record.device.name} ({record.regime}) was measured to the end for "
        f"{' and '.join(objectives)}; run `tuner tune ... --objective {','.join(objectives)}` first"
    )
