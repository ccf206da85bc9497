"""The finals of a study, and the library's times that they are compared with."""

import contextlib
import math
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tuner.declare.kernel import Kernel, render
from tuner.declare.space import Config
from tuner.devices.cpu.kind import with_best_blas
from tuner.devices.detect import kind_of
from tuner.devices.machine_load import MachineWatch
from tuner.results.measurement import NOISE, Measurement, Outcome, compare, compare_apart, under
from tuner.results.record import Champion, Pair, Record, Role, measured_as_now
from tuner.results.verdict import contradictions, judge, pairs_of, shortlist, threads_of
from tuner.store.published import reigning_champion
from tuner.study.leaderboard import Leaderboard, Named, named
from tuner.study.loop import GRACE_S
from tuner.study.progress import TimeBudget
from tuner.study.requests import StudyRequest, check_energy
from tuner.study.session import Session
from tuner.study.starting import declared_starts, imported
from tuner.workers.bench import CompiledConfig, ShapeCase
from tuner.workers.device_worker import LONG_LIMIT_S, DeviceWorker
from tuner.workers.further_checks import edge_problems

#: A reigning champion with one of these outcomes in the finals is dropped.
DETHRONED = (Outcome.WRONG_RESULT, Outcome.INACCURATE, Outcome.NOT_REPEATABLE, Outcome.OTHER_BITS)
#: A challenger takes this share of a kind's `states_s`, with its checks and rounds, and so does all beside it:
#: 2.4 s each at gemm 1024 x 1024 x 1024 on two cores of an Intel Xeon.
CHALLENGER_SHARE = 0.6


def measure_baseline(
    session: Session, request: StudyRequest, budget: TimeBudget, machine: MachineWatch,
    limit_s: float = LONG_LIMIT_S,
) -> Measurement | None:  # fmt: skip
    """Returns the library's time before the search; measures and stores it unless the request has it.

    Args:
        session: The session.
        request: The study's request.
        budget: Time and progress.
        machine: Watches the machine's load meanwhile.
        limit_s: Seconds that it may take.

    Returns:
        None without a library.

    Raises:
        InputError: The device does not report what an objective needs.
        DeviceTrouble: The device failed.
        NothingFound: It takes longer.
    """
    with budget.spent("baseline"), contextlib.ExitStack() as stack:
        if session.shares_cores:
            # Their imports take a core for a second: NumPy, whose threads wait for each other, took up to 44
            # times as long.
            session.pool.signal(signal.SIGSTOP)
            stack.callback(session.pool.signal, signal.SIGCONT)
        library = request.library or session.worker.baseline(limit_s)
    if library is not None:
        check_energy(request.objectives, session.device, library)
        budget.progress.baseline_s = library.time_s
        if request.library is None:
            session.store.add([session.of_baseline(one) for one in under(machine.load(), [library])])
            _measure_best_blas(session, request, budget)
    return library


def _measure_best_blas(session: Session, request: StudyRequest, budget: TimeBudget) -> None:
    """Measures NumPy with the core type that suits this CPU, in a separate process, if it chose another."""
    device = with_best_blas(request.found[0], session.versions.get("blas_core_type", ""))
    if device is None or (budget.search_left_s or 1.0) <= 0:
        return
    with contextlib.closing(DeviceWorker(device)) as worker:
        worker.open()
        worker.prepare(session.named(session.problem), session.regime)
        measurement, versions = worker.baseline(), worker.versions
    if measurement is not None and measurement.time_s is not None:
        budget.progress.baseline_s = min(budget.progress.baseline_s or math.inf, measurement.time_s)
        session.store.add(session.of_baseline(measurement, versions))


class Finals:
    """Plays the finals of one study, once."""

    def __init__(self, session: Session, kernels: Sequence[Kernel], machine: MachineWatch) -> None:
        """Keeps what finals need.

        Args:
            session: Compiles, times and stores the finalists.
            kernels: The competitors, in ladder order.
            machine: Sees what else goes on meanwhile.
        """
        self._session = session
        self._kernels = {kernel.name: kernel for kernel in kernels}
        self._machine = machine
        self._struck: set[Named] = set()
        has_library = session.device.kind in session.problem.operation.baselines
        defaults = [] if has_library else declared_starts(kernels)[:1]
        self._beside = [*imported(session, self._kernels)[:1], *defaults]

    def play(self, leaderboard: Leaderboard, budget_s: float) -> Champion | None:
        """Measures the finalists in alternation with the library, stores all results and crowns the winner.

        If every challenger turns out wrong, the next best ones play, until one is correct, none is left, or
        `GRACE_S` have passed beyond the budget: a fraction of a second may be enough for cheats alone.

        Args:
            leaderboard: The search's leaderboard.
            budget_s: Wall time in seconds, of which checks are a part; after it no round begins but the least.

        Returns:
            The champion; None if no finalist could be measured.
        """
        self._leaderboard, self._times_s = leaderboard, dict(leaderboard.times_s)
        self._holder = reigning = self._reigning()
        # Nothing may compile beside the finals.
        self._session.pool.cancel()
        end_s = time.monotonic() + budget_s
        while lineup := self._line_up(end_s):
            finals, libraries = self._measured(lineup, max(end_s - time.monotonic(), 0.0))
            outcomes = dict(zip(lineup, (record.measurement.outcome for record in finals), strict=True))
            failed = [config for config, outcome in outcomes.items() if outcome.failed]
            for config in failed:
                self._strike(config)
            # Challengers need not be faster than a champion that is wrong or exceeds the error limit.
            holder_plays = reigning is not None and outcomes.get(reigning, DETHRONED[0]) not in DETHRONED
            measured = {config for config, outcome in outcomes.items() if outcome is Outcome.MEASURED}
            stands = not failed or bool(measured - {reigning})
            others = self._times_s.keys() - {self._holder}
            if stands or not others or time.monotonic() > end_s + (0 if measured else GRACE_S):
                return self._crown(finals, libraries, holder_plays)
        return None

    def _reigning(self) -> Named | None:
        """The champion before this run, if its kernel competes and has not changed."""
        session = self._session
        champion = reigning_champion(session.store, session.key, session.device, session.regime)
        kernel = self._kernels.get(champion.record.kernel) if champion else None
        if champion is None or kernel is None:
            return None
        if self._leaderboard.judged(champion.record.measurement).outcome.failed:
            return None
        return named(champion.record) if measured_as_now(champion.record, kernel, session.problem) else None

    def _strike(self, config: Named) -> None:
        """Removes a wrong config; one that was stopped early beside it may now be the next best."""
        self._struck.add(config)
        known_s = self._leaderboard.stopped_s | self._times_s
        self._times_s = {other: time_s for other, time_s in known_s.items() if other not in self._struck}
        if config == self._holder:
            self._holder = None

    def _line_up(self, end_s: float) -> dict[Named, CompiledConfig]:
        """Selects finalists, holder first; the next best replace those that fail elsewhere or to compile.

        Once half of the time is spent those play that were checked, if a challenger is among them. Where
        configs are called as programs do, no more challengers play than have time for that.
        """
        passed: dict[Named, CompiledConfig] = {}
        now_s, called_s = time.monotonic(), CHALLENGER_SHARE * kind_of(self._session.device.kind).states_s
        until_s = now_s + (end_s - now_s) / 2
        most = max(int((end_s - now_s) / called_s) - 1, 1) if called_s else math.inf
        while True:
            wanted, failed = self._wanted(), 0
            compiled, waiting = dict[Named, CompiledConfig](), [one for one in wanted if one not in passed]
            for number, config in enumerate(waiting):
                challengers = len(passed.keys() - {self._holder})
                if challengers and (challengers >= most or time.monotonic() > until_s):
                    break
                if number % self._session.pool.size == 0:  # so many are compiled side by side
                    compiled = self._compiled(waiting[number : number + self._session.pool.size])
                if config in compiled and self._right_elsewhere(config, compiled[config]):
                    passed[config] = compiled[config]
                else:
                    self._strike(config)
                    failed += 1
            if not failed or time.monotonic() > end_s + (0 if passed else GRACE_S):
                return {config: passed[config] for config in wanted if config in passed}

    def _wanted(self) -> list[Named]:
        """The finalists, and what they are told beside.

        That is the best of what a library proposes, what a server runs by a file that was imported, and where
        there is no library, the default.
        """
        known_s = self._leaderboard.stopped_s | self._times_s
        proposals = {
            (kernel.name, start)
            for kernel in self._kernels.values()
            if kernel.is_library
            for start in kernel.first_configs()
        }
        best = sorted(proposals & known_s.keys() - self._struck, key=known_s.__getitem__)[:1]
        beside = [one for one in self._beside if one in known_s and one not in self._struck]
        return list(dict.fromkeys([*shortlist(self._times_s, self._holder), *best, *beside]))

    def _compiled(self, finalists: list[Named]) -> dict[Named, CompiledConfig]:
        """Returns the finalists' machine code, without those that no longer compile."""
        rendered = {
            number: render(self._kernels[kernel], self._session.problem, config)
            for number, (kernel, config) in enumerate(finalists)
        }
        return {finalists[number]: code for number, code in self._session.pool.compile_all(rendered).items()}

    def _right_elsewhere(self, config: Named, code: CompiledConfig) -> bool:
        """Whether a finalist is right at edge shapes; stores the reason if it is not."""
        session, kernel, cases = self._session, self._kernels[config[0]], []
        for problem in edge_problems(session.problem, kernel, config[1], session.device):
            rendered = render(kernel, problem, config[1])
            if rendered.text == code.rendered.text:
                cases.append(ShapeCase(session.named(problem), rendered.launch))
        wrong = session.worker.verify(code, cases)
        if wrong:
            failed = Measurement(Outcome.WRONG_RESULT, wrong, compiled=code.compiled)
            session.add(Role.FINAL, kernel, config[1], failed)
        return not wrong

    def _measured(
        self, lineup: Mapping[Named, CompiledConfig], budget_s: float
    ) -> tuple[list[Record], list[Record]]:
        """Times and stores the finalists and the library, which has a record for each number of threads."""
        threads = threads_of(list(lineup), self._kernels)
        self._machine.restart()
        measured = self._session.worker.finals(list(lineup.values()), budget_s, threads)
        measured = under(self._machine.load(), measured)
        libraries = [self._session.of_baseline(library) for library in measured[len(lineup) :]]
        self._known = known_baselines(self._session)
        doubts, judged = _contradicted(libraries, self._known), self._leaderboard.judged
        finals = [
            self._session.of_kernel(Role.FINAL, self._kernels[kernel], config, measurement)
            for (kernel, config), measurement in zip(
                lineup, (_with_noise(judged(final), doubts) for final in measured[: len(lineup)]), strict=True
            )
        ]
        self._session.store.add([*finals, *libraries])
        return finals, libraries

    def _crown(
        self, finals: Sequence[Record], libraries: Sequence[Record], holder_plays: bool
    ) -> Champion | None:
        """Judges and stores the finals; the library counts with its fastest number of threads."""
        burdens = list(map(self._burden, finals))
        judged = judge([record.measurement for record in finals], holder_plays, burdens)
        if judged is None:
            return None
        winner = finals[judged.winner]
        name, samples_s = _label(winner), winner.measurement.samples_s
        players = [winner, *(record for record in finals if record is not winner), *libraries]
        pairs = pairs_of([(_label(record), record.measurement) for record in players])
        own = [pair for pair in pairs if pair.one == name]
        timed = [record for record in libraries if record.measurement.samples_s]
        library = min(timed, key=lambda record: record.measurement.time_s or math.inf, default=None)
        speedup = compare(samples_s, library.measurement.samples_s).ratio if library else 0.0
        # It is no faster than in the state of a program that suits it least.
        speedup = min(speedup, *winner.measurement.states.values(), speedup)
        core_type = self._session.versions.get("blas_core_type", "")
        apart = pair_apart(name, samples_s, self._known, core_type) if library else None
        trials, pairs = self._leaderboard.progress.totals, (*own, *filter(None, [apart]), *pairs[len(own) :])
        champion = Champion(winner, library, speedup, judged.verdict, trials, pairs)
        self._session.store.crown(champion)
        return champion

    def _burden(self, record: Record) -> tuple[int, int, int, str]:
        """Complexity of a finalist: its step of the ladder, registers, shared memory, and the config's text."""
        report = record.measurement.compiled
        taken = (report.registers, report.shared_bytes) if report else (0, 0)
        return list(self._kernels).index(record.kernel), *taken, str(Config(record.config))


def known_baselines(session: Session) -> list[Record]:
    """The library's records of a run's problem on its board, from this run and earlier ones.

    They are of the library's current version only, because another version may be twice as fast.
    """
    here = session.device.uuid, session.versions.get("library")
    known = [record for record in session.past(Role.BASELINE) if record.measurement.time_s]
    return [record for record in known if (record.device.uuid, record.versions.get("library")) == here]


def _contradicted(libraries: Sequence[Record], known: Sequence[Record]) -> dict[str, float]:
    """By how much the library's times in the finals differ from others, as circumstances."""
    apart: dict[str, float] = {}
    for record in libraries:
        if record.measurement.time_s:
            for name, ratio in contradictions(record, known).items():
                apart[name] = max(ratio, apart.get(name, 0.0))
    return apart


def _with_noise(final: Measurement, doubts: Mapping[str, float]) -> Measurement:
    """A finalist's measurement with reasons to doubt it among its circumstances."""
    if not final.samples_s:
        return final
    return replace(final, circumstances={**final.circumstances, NOISE: final.noise, **doubts})


def pair_apart(name: str, samples_s: Sequence[float], known: Sequence[Record], core_type: str) -> Pair | None:
    """Pairs the champion with the library's fastest run under another core type; None if there is none.

    The two were timed in different rounds.

    Args:
        name: The champion's, as in other pairs.
        samples_s: Its times in the finals.
        known: See `known_baselines`.
        core_type: Of the library in the finals.
    """
    others = [record for record in known if record.versions.get("blas_core_type", "") != core_type]
    best = min(others, key=lambda record: record.measurement.time_s or 0.0, default=None)
    if best is None or best.measurement.time_s is None:
        return None
    threads = _threads(int(best.versions.get("blas_threads") or 0))
    other = f"{best.kernel}, {best.versions.get('blas_core_type', '')}{threads}, not in the finals"
    return Pair(name, other, best.measurement.time_s, compare_apart(samples_s, best.measurement.samples_s))


def _label(record: Record) -> str:
    """Kernel and config, or the library with its number of threads if known."""
    if record.role is not Role.BASELINE:
        return f"{record.kernel} {Config(record.config)}"
    return record.kernel + _threads(int(record.measurement.circumstances.get("threads", 0)))


def _threads(count: int) -> str:
    return f", {count} thread{'s' if count > 1 else ''}" if count else ""
