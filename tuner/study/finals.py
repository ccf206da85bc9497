"""The finals of a study, and the library's times that they are compared with."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tuner.declare.kernel import Kernel, render
from tuner.declare.space import Config
from tuner.devices.cpu.kind import with_best_blas
from tuner.devices.machine_load import MachineWatch
from tuner.results.measurement import (
    NOISE,
    LibraryTime,
    Measurement,
    Outcome,
    compare,
    compare_apart,
    contradictions,
    under,
)
from tuner.results.record import Champion, Pair, ProblemKey, Record, Role, measured_as_now
from tuner.results.verdict import judge, pairs_of, shortlist, threads_of
from tuner.study.leaderboard import Leaderboard
from tuner.study.progress import TimeBudget
from tuner.study.requests import StudyRequest, check_energy
from tuner.study.session import Recorder, Session
from tuner.workers.bench import CompiledConfig
from tuner.workers.device_worker import Crew
from tuner.workers.workload import edge_problems


class StoredBaselines:
    """The library's records of one problem on one board, from this run and earlier ones.

    They are of the library's current version only, because another version may be twice as fast.
    """

    def __init__(self, recorder: Recorder) -> None:
        """Reads them.

        Args:
            recorder: Recorder of the run that holds the finals.
        """
        self._core_type = recorder.versions.get("blas_core_type", "")
        known = recorder.store.records(
            problem=ProblemKey.of(recorder.problem), device=recorder.device, role=Role.BASELINE
        )
        self._known = [
            each
            for each in known
            if (each.regime, each.device.uuid) == (recorder.regime, recorder.device.uuid)
            and each.versions.get("library") == recorder.versions.get("library")
            and each.measurement.time_s
        ]

    def mark(self, finals: Sequence[Measurement], libraries: Sequence[Record]) -> list[Measurement]:
        """Adds reasons to doubt them to the circumstances of finals' measurements.

        Args:
            finals: Measurements of kernels.
            libraries: The library's records from the same finals, with its default number of threads first.
        """
        apart: dict[str, float] = {}
        others = [_time_of(each) for each in self._known]
        for record in libraries:
            if record.measurement.time_s:
                for name, ratio in contradictions(_time_of(record), others).items():
                    apart[name] = max(ratio, apart.get(name, 0.0))
        return [
            replace(each, circumstances={**each.circumstances, NOISE: each.noise, **apart})
            if each.samples_s
            else each
            for each in finals
        ]

    def pair(self, name: str, champion: Measurement) -> Pair | None:
        """Pairs the champion with the library's fastest run under another core type; None if there is none.

        The two were timed in different rounds.

        Args:
            name: The champion's, as in other pairs.
            champion: Its measurement in the finals.
        """
        others = [each for each in self._known if _core_type(each) != self._core_type]
        best = min(others, key=lambda each: each.measurement.time_s or 0.0, default=None)
        if best is None or best.measurement.time_s is None:
            return None
        threads = int(best.versions.get("blas_threads") or 0)
        with_threads = f", {threads} thread{'s' if threads > 1 else ''}" if threads else ""
        return Pair(
            name, f"{best.kernel}, {_core_type(best)}{with_threads}, not in the finals",
            best.measurement.time_s, compare_apart(champion.samples_s, best.measurement.samples_s),
        )  # fmt: skip


def measure_baseline(
    session: Session, request: StudyRequest, budget: TimeBudget, machine: MachineWatch
) -> Measurement | None:
    """Returns the library's time before the search; measures and stores it unless the request has it.

    Args:
        session: The session.
        request: The study's request.
        budget: Time and progress.
        machine: Watches the machine's load meanwhile.

    Returns:
        None without a library.

    Raises:
        InputError: The device does not report what an objective needs.
        DeviceTrouble: The device failed.
    """
    library = request.library
    if library is None:
        with budget.spent("baseline"):
            library = session.worker.baseline()
    if library is None:
        return None
    recorder = session.recorder
    check_energy(request.objectives, recorder.device, library)
    budget.progress.set_baseline(library.time_s)
    if request.library is None:
        (seen,) = under(machine.load().circumstances, [library])
        session.store.add(recorder.of_baseline(seen))
        _measure_best_blas(session, request, budget)
    return library


def _measure_best_blas(session: Session, request: StudyRequest, budget: TimeBudget) -> None:
    """Measures NumPy with the core type that suits this CPU, in a separate process, if it chose another."""
    recorder = session.recorder
    found = with_best_blas(request.found[0], recorder.versions.get("blas_core_type", ""))
    if found is None:
        return
    with Crew([found]) as crew:
        worker = crew.devices[0]
        worker.prepare({**recorder.problem.to_json(), "origin": recorder.origin}, recorder.regime)
        measurement = worker.baseline()
        versions = worker.versions
    if measurement is not None and measurement.time_s is not None:
        budget.progress.set_best_blas(versions.get("blas_core_type", ""), measurement.time_s)
        session.store.add(replace(recorder, versions=versions).of_baseline(measurement))


def _core_type(record: Record) -> str:
    return record.versions.get("blas_core_type", "")


def _time_of(record: Record) -> LibraryTime:
    return LibraryTime(
        record.kernel, _core_type(record), record.versions.get("blas_threads", ""), record.session,
        record.measurement.time_s or 0.0,
    )  # fmt: skip


#: A reigning champion with one of these outcomes in the finals is dropped.
DETHRONED = (Outcome.WRONG_RESULT, Outcome.INACCURATE)


class Finals:
    """Plays the finals of one study.

    Attributes:
        pairs: The pairs of the winner with every other finalist and the library, once finals were held.
        unplayed: Why the next best configs did not replace finalists that turned out wrong; empty if all could.
    """

    def __init__(self, session: Session, kernels: Sequence[Kernel], machine: MachineWatch) -> None:
        """Keeps what finals need.

        Args:
            session: Compiles, times and stores the finalists.
            kernels: The competitors, in ladder order.
            machine: Sees what else goes on meanwhile.
        """
        self._session, self._recorder = session, session.recorder
        self._kernels = {kernel.name: kernel for kernel in kernels}
        self._machine = machine
        self.pairs: tuple[Pair, ...] = ()
        self.unplayed = ""

    def play(self, leaderboard: Leaderboard, trials: Mapping[str, int], budget_s: float) -> Champion | None:
        """Measures the finalists in alternation with the library, stores all results and crowns the winner.

        If every challenger turns out wrong, the next best ones play, until one is correct, none is left, or the
        budget is spent.

        Args:
            leaderboard: The search's leaderboard.
            trials: Counts to store with the champion.
            budget_s: Wall time for the rounds, in seconds.

        Returns:
            The champion; None if no finalist could be measured.
        """
        reigning = self._reigning()
        holder = (reigning.record.kernel, Config(reigning.record.config)) if reigning else None
        # Nothing may compile beside the finals.
        self._session.pool.cancel()
        field, end_s = _Field(leaderboard, holder), time.monotonic() + budget_s
        while True:
            lineup = self._line_up(field, leaderboard.compiled_configs, end_s)
            if not lineup:
                self._is_out(field, end_s - time.monotonic())
                return None
            finals, libraries = self._measured(lineup, budget_s)
            failed = [
                each
                for each, record in zip(lineup, finals, strict=True)
                if record.measurement.outcome is not Outcome.MEASURED
            ]
            for each in failed:
                field.strike(each)
            # Challengers need not be faster than a champion that is wrong or exceeds the error limit.
            holder_plays = holder in lineup and finals[0].measurement.outcome not in DETHRONED
            stands = not failed or any(each not in failed for each in lineup if each != holder)
            budget_s = end_s - time.monotonic()
            if stands or not field.challengers() or self._is_out(field, budget_s):
                return self._crown(finals, libraries, holder_plays, trials)

    def _is_out(self, field: _Field, left_s: float) -> bool:
        """True if the budget is spent and some config did not play; it then sets `unplayed`."""
        if left_s > 0 or not field.challengers():
            return False
        self.unplayed = (
            f"the best turned out wrong, and the time for the finals was up before {len(field.times_s)} others "
            "could play; the same command goes on, or give it more --seconds"
        )
        return True

    def _line_up(
        self, field: _Field, known: Mapping[tuple[str, Config], CompiledConfig], end_s: float
    ) -> dict[tuple[str, Config], CompiledConfig]:
        """Selects finalists, holder first; the next best replace those that fail elsewhere or to compile."""
        passed: dict[tuple[str, Config], CompiledConfig] = {}
        while True:
            wanted = field.finalists()
            fresh = [each for each in wanted if each not in passed]
            compiled = self._compiled(fresh, known)
            self._check_elsewhere(compiled)
            passed |= compiled
            failed = [each for each in fresh if each not in compiled]
            for each in failed:
                field.strike(each)
            if not failed or time.monotonic() > end_s:
                return {each: passed[each] for each in wanted if each in passed}

    def _measured(
        self, lineup: Mapping[tuple[str, Config], CompiledConfig], budget_s: float
    ) -> tuple[list[Record], list[Record]]:
        """Times and stores the finalists and the library, which has a record for each number of threads."""
        threads = threads_of(list(lineup), self._kernels)
        self._machine.restart()
        measured = self._session.worker.finals(list(lineup.values()), budget_s, threads)
        measured = under(self._machine.load().circumstances, measured)
        libraries = [self._recorder.of_baseline(each) for each in measured[len(lineup) :]]
        self._stored = StoredBaselines(self._recorder)
        judged = self._stored.mark(measured[: len(lineup)], libraries)
        finals = [
            self._recorder.of_kernel(Role.FINAL, self._kernels[kernel], config, each)
            for (kernel, config), each in zip(lineup, judged, strict=True)
        ]
        self._recorder.store.add([*finals, *libraries])
        return finals, libraries

    def _compiled(
        self,
        finalists: list[tuple[str, Config]],
        compiled_configs: Mapping[tuple[str, Config], CompiledConfig],
    ) -> dict[tuple[str, Config], CompiledConfig]:
        """Returns the finalists' machine code, without those that no longer compile."""
        found = {each: compiled_configs[each] for each in finalists if each in compiled_configs}
        missing = [each for each in finalists if each not in found]
        rendered = {
            number: render(self._kernels[kernel], self._recorder.problem, config)
            for number, (kernel, config) in enumerate(missing)
        }
        fresh = self._session.compile_all(rendered)
        return found | {missing[number]: compiled_config for number, compiled_config in fresh.items()}

    def _check_elsewhere(self, compiled: dict[tuple[str, Config], CompiledConfig]) -> None:
        """Removes finalists that are wrong at another shape, and records the reason."""
        recorder = self._recorder
        for (name, config), compiled_config in list(compiled.items()):
            kernel, cases = self._kernels[name], []
            for problem in edge_problems(recorder.problem, kernel, config, recorder.device):
                rendered = render(kernel, problem, config)
                if rendered.text == compiled_config.rendered.text:
                    cases.append(({**problem.to_json(), "origin": recorder.origin}, rendered.launch))
            wrong = self._session.worker.verify(compiled_config, cases)
            if wrong:
                failed = Measurement(Outcome.WRONG_RESULT, wrong, compiled=compiled_config.compiled)
                recorder.store.add(recorder.of_kernel(Role.FINAL, kernel, config, failed))
                del compiled[name, config]

    def _crown(
        self,
        finals: Sequence[Record],
        libraries: Sequence[Record],
        holder_plays: bool,
        trials: Mapping[str, int],
    ) -> Champion | None:
        """Judges and stores the finals; the library counts with its fastest number of threads."""
        burdens = [self._burden(each.kernel, each.measurement) for each in finals]
        judged = judge([each.measurement for each in finals], holder_plays, burdens)
        if judged is None:
            return None
        winner = finals[judged.winner]
        others = [each for each in finals if each is not winner]
        pairs = pairs_of([(_named(each), each.measurement) for each in (winner, *others, *libraries)])
        library = min(libraries, key=lambda each: each.measurement.time_s or math.inf, default=None)
        speedup = 0.0
        if library is not None and library.measurement.samples_s:
            speedup = compare(winner.measurement.samples_s, library.measurement.samples_s).ratio
        own = [pair for pair in pairs if pair.one == _named(winner)]
        apart = self._stored.pair(_named(winner), winner.measurement) if library is not None else None
        self.pairs = (*own, apart) if apart is not None else tuple(own)
        pairs = (*self.pairs, *pairs[len(own) :])
        champion = Champion(winner, library, speedup, judged.verdict, trials, pairs)
        self._recorder.store.crown(champion)
        return champion

    def _burden(self, kernel: str, measurement: Measurement) -> float:
        """Complexity of a finalist: its step of the ladder first, then its registers."""
        report = measurement.compiled
        return 1000.0 * list(self._kernels).index(kernel) + (report.registers if report else 0)

    def _reigning(self) -> Champion | None:
        """Returns the champion before this run, if its kernel competes and has not changed."""
        recorder = self._recorder
        champion = recorder.store.champion(ProblemKey.of(recorder.problem), recorder.device, recorder.regime)
        if champion is None:
            return None
        kernel = self._kernels.get(champion.record.kernel)
        if kernel is None or not measured_as_now(champion.record, kernel, recorder.problem):
            return None
        return champion


class _Field:
    """The configs that may play the finals.

    Attributes:
        times_s: (kernel, config) -> its time in the search, in seconds.
        holder: The reigning champion; None if there is none, or it was removed.
    """

    def __init__(self, leaderboard: Leaderboard, holder: tuple[str, Config] | None) -> None:
        self.times_s = dict(leaderboard.times_s)
        self._stopped_s = leaderboard.stopped_s
        self._struck: set[tuple[str, Config]] = set()
        self.holder = holder

    def finalists(self) -> list[tuple[str, Config]]:
        """The next finalists, the holder first."""
        return shortlist(self.times_s, self.holder)

    def challengers(self) -> bool:
        """True if there is any config beside the holder."""
        return any(each != self.holder for each in self.times_s)

    def strike(self, who: tuple[str, Config]) -> None:
        """Removes a wrong config; one that was stopped early beside it may now be the next best."""
        self._struck.add(who)
        self.times_s = {**self._stopped_s, **self.times_s}
        for each in self._struck:
            self.times_s.pop(each, None)
        if who == self.holder:
            self.holder = None


def _named(record: Record) -> str:
    """Returns kernel and config, or the library with its number of threads if known."""
    if record.role is not Role.BASELINE:
        return f"{record.kernel} {Config(record.config)}"
    threads = int(record.measurement.circumstances.get("threads", 0))
    return f"{record.kernel}, {threads} thread{'s' if threads > 1 else ''}" if threads else record.kernel
