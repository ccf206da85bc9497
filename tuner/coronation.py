"""The finals of a study: the best configs, the reigning champion and the library in one run; one is crowned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tuner.awkward import awkward_problems
from tuner.compiling import CompilePool
from tuner.execution import Executor
from tuner.finals import judge, pairs_of, shortlist, threads_of
from tuner.kernel import Kernel, render
from tuner.measure import Contestant
from tuner.measurement import Measurement, Outcome
from tuner.preparation import key_of
from tuner.record import Champion, Pair, Record, Role, measured_as_now
from tuner.scribe import Scribe
from tuner.space import Config
from tuner.standings import Standings
from tuner.statistics import compare


class Coronation:
    """Plays the finals of one study.

    Attributes:
        pairs: After the finals: the winner against every other and the library.
    """

    def __init__(
        self, scribe: Scribe, kernels: Mapping[str, Kernel], pool: CompilePool, executor: Executor
    ) -> None:
        """Takes what the study works with.

        Args:
            scribe: Makes the records.
            kernels: The competitors by name.
            pool: Compiles the finalists.
            executor: Times them.
        """
        self._scribe, self._kernels = scribe, kernels
        self._pool, self._executor = pool, executor
        self.pairs: tuple[Pair, ...] = ()

    def play(self, standings: Standings, trials: Mapping[str, int], budget_s: float) -> Champion | None:
        """Measures the finalists in alternation with the library, stores all and crowns the winner.

        Args:
            standings: The search's.
            trials: Counts to store with the champion.
            budget_s: Wall time for the rounds, seconds.

        Returns:
            The champion; None where nobody could be measured.
        """
        reigning = self._reigning()
        holder = (reigning.record.kernel, Config(reigning.record.config)) if reigning else None
        finalists = shortlist(standings.times_s, holder)
        compiled = self._compiled(finalists, standings.contestants)
        self._check_elsewhere(compiled)
        holder_plays = holder in compiled
        finalists = [each for each in finalists if each in compiled]
        if not finalists:
            return None
        threads = threads_of(finalists, self._kernels)
        measured = self._executor.finals([compiled[each] for each in finalists], budget_s, threads)
        # A champion of before the limit of the error reigns no more: who comes after it need not be faster.
        holder_plays = holder_plays and measured[0].outcome is not Outcome.INACCURATE
        finals = [
            self._scribe.of_kernel(Role.FINAL, self._kernels[kernel], config, each)
            for (kernel, config), each in zip(finalists, measured, strict=False)
        ]
        libraries = [self._scribe.of_baseline(each) for each in measured[len(finalists) :]]
        return self._crown(finals, libraries, holder_plays, trials)

    def _compiled(
        self,
        finalists: list[tuple[str, Config]],
        contestants: Mapping[tuple[str, Config], Contestant],
    ) -> dict[tuple[str, Config], Contestant]:
        """The finalists' machine code; those that do not compile any more are left out."""
        # Nothing may compile beside the finals.
        self._pool.cancel()
        found = {each: contestants[each] for each in finalists if each in contestants}
        missing = [each for each in finalists if each not in found]
        rendered = {
            number: render(self._kernels[kernel], self._scribe.problem, config)
            for number, (kernel, config) in enumerate(missing)
        }
        fresh = self._pool.compile_all(rendered) if rendered else {}
        return found | {missing[number]: contestant for number, contestant in fresh.items()}

    def _check_elsewhere(self, compiled: dict[tuple[str, Config], Contestant]) -> None:
        """Strikes finalists that are wrong at another shape off the list, and records why."""
        scribe = self._scribe
        for (name, config), contestant in list(compiled.items()):
            kernel, cases = self._kernels[name], []
            for problem in awkward_problems(scribe.problem, kernel, config, scribe.device):
                rendered = render(kernel, problem, config)
                if rendered.text == contestant.rendered.text:
                    cases.append(({**problem.to_json(), "origin": scribe.origin}, rendered.launch))
            wrong = self._executor.verify(contestant, cases)
            if wrong:
                failed = Measurement(Outcome.WRONG_RESULT, wrong, compiled=contestant.compiled)
                scribe.store.add(scribe.of_kernel(Role.FINAL, kernel, config, failed))
                del compiled[name, config]

    def _crown(
        self,
        finals: Sequence[Record],
        libraries: Sequence[Record],
        holder_plays: bool,
        trials: Mapping[str, int],
    ) -> Champion | None:
        """Stores all; the library that counts is the fastest of its numbers of threads."""
        self._scribe.store.add([*finals, *libraries])
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
        champion = Champion(winner, library, speedup, judged.verdict, trials, pairs)
        self._scribe.store.crown(champion)
        self.pairs = tuple(pair for pair in pairs if pair.one == _named(winner))
        return champion

    def _burden(self, kernel: str, measurement: Measurement) -> float:
        """An earlier step of the ladder is simpler, then fewer registers."""
        report = measurement.compiled
        return 1000.0 * list(self._kernels).index(kernel) + (report.registers if report else 0)

    def _reigning(self) -> Champion | None:
        """The champion before this run, where its kernel competes and is still what it was."""
        scribe = self._scribe
        champion = scribe.store.champion(key_of(scribe.problem), scribe.device, scribe.regime)
        if champion is None:
            return None
        kernel = self._kernels.get(champion.record.kernel)
        if kernel is None or not measured_as_now(champion.record, kernel, scribe.problem):
            return None
        return champion


def _named(record: Record) -> str:
    """Kernel and config, or the library with its threads where they are known."""
    if record.role is not Role.BASELINE:
        return f"{record.kernel} {Config(record.config)}"
    threads = int(record.measurement.circumstances.get("threads", 0))
    return f"{record.kernel}, {threads} thread{'s' if threads > 1 else ''}" if threads else record.kernel
