"""The finals of a study: best configs, reigning champion and library in one run; the winner is crowned."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from tuner.declare.kernel import Kernel, render
from tuner.declare.space import Config
from tuner.devices.machine_load import MachineWatch
from tuner.results.measurement import Measurement, Outcome, compare, under
from tuner.results.record import Champion, Pair, Record, Role, measured_as_now
from tuner.results.verdict import judge, pairs_of, shortlist, threads_of
from tuner.study.baselines import StoredBaselines
from tuner.study.leaderboard import Leaderboard
from tuner.study.session import Session
from tuner.study.setup import key_of
from tuner.workers.bench import CompiledConfig
from tuner.workers.workload import edge_problems

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
        measured = under(self._machine.load().seen, measured)
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
        champion = recorder.store.champion(key_of(recorder.problem), recorder.device, recorder.regime)
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
