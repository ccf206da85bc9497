"""The loop of a study: ask, compile ahead, measure, record, tell. One thread, any number of equal devices."""

from __future__ import annotations

import collections
import math
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tuner.declare.kernel import Kernel, render
from tuner.measuring.bench import Contestant
from tuner.results.measurement import OUT_OF_MEMORY, Measurement, Outcome
from tuner.results.objectives import values_of
from tuner.results.record import Role
from tuner.search import Candidate
from tuner.search.background import AskAhead
from tuner.study.budget import REPORT_EVERY_S, Stopwatch
from tuner.study.elimination import Elimination
from tuner.study.leaderboard import Standings, take_in
from tuner.study.recorder import Scribe
from tuner.study.setup import check_energy
from tuner.study.write_behind import WriteBehind
from tuner.workers.compile_pool import Compiled, CompilePool, ruled_out
from tuner.workers.device_worker import Executor, run_limit_s

#: Configs asked for at once where nothing is compiled beside timing: of two, one may be compiled long before
#: the other.
LEAST_BATCH = 4
#: Seconds between two looks at what the search has found while nothing else is under way.
THINK_S = 0.002


@dataclass
class _Trial:
    candidate: Candidate
    crashes: int = 0
    contestant: Contestant | None = None


class SearchLoop:
    """Runs until the budget is out, the search has nothing more to ask, or `stop` is set.

    Attributes:
        search: What it asks.
        stop: Why it ended, or is to end.
    """

    def __init__(
        self,
        search: AskAhead,
        pool: CompilePool,
        executors: Sequence[Executor],
        scribes: Sequence[Scribe],
        standings: Standings,
        watch: Stopwatch,
        elimination: Elimination | None = None,
    ) -> None:
        """Takes what it works with.

        Args:
            search: What to try next.
            pool: Compiles.
            executors: The devices.
            scribes: Make the records, one for each device.
            standings: Is kept up to date.
            watch: Time and progress.
            elimination: Says which kernels are dropped; none are unless given.
        """
        self.search, self._pool, self._watch = search, pool, watch
        self._executors, self._scribes = executors, scribes
        self._standings, self._elimination = standings, elimination
        self._trials: dict[int, _Trial] = {}
        self._compiled: collections.deque[_Trial] = collections.deque()
        self._measuring: dict[int, _Trial] = {}
        self._seen: dict[tuple[str, Any], Measurement] = {}
        self._until_s = math.inf
        self._write = WriteBehind(scribes[0].store.add, inline=self.shares_cores)
        self.stop = ""

    def run(self, kernels: dict[str, Kernel], trials: int | None, seconds: float | None = None) -> None:
        """Searches; may be called again where it returned with nothing in `stop`.

        Args:
            kernels: The competitors by name.
            trials: Trials of the study in all; None for no limit.
            seconds: After so many it returns, to go on later; None to go on until the end.

        Raises:
            DeviceTrouble: A device stays unwell.
        """
        self._kernels, self._limit = kernels, trials
        self._until_s = math.inf if seconds is None else time.monotonic() + seconds
        if self._elimination is not None:
            self._drop(self._elimination)
        with self._write:
            while self._step():
                pass

    def _step(self) -> bool:
        """Goes round once; False where the search has ended, or is to pause."""
        with self._watch.spent("bookkeeping"):
            self._ask()
        if not self._under_way and not self._write.pending and (self.stop or self.search.exhausted):
            self.stop = self.stop or self.search.stopped or "nothing is left to try"
            return False
        self._wait()
        for compiled in self._pool.ready():
            self._take_compiled(compiled)
        for number in [each for each in self._measuring if self._executors[each].arrived()]:
            self._take_measured(number)
        self._dispatch()
        self._watch.progress.spent_s["thinking"] = self.search.thinking_s
        self._watch.progress.spent_s["storing"] = self._write.storing_s
        self._watch.tick()
        return bool(self._measuring) or not self._out_of_budget()

    def _out_of_budget(self) -> bool:
        if not self.stop:
            left = self._watch.search_left_s
            if left is not None and left <= 0:
                self.stop = "time is up"
            elif self._limit is not None and self._watch.progress.trials >= self._limit:
                self.stop = "all trials are done"
        return bool(self.stop) or time.monotonic() >= self._until_s

    @property
    def shares_cores(self) -> bool:
        """True where compiling would disturb timing: on a CPU."""
        return self._executors[0].info.kind == "cpu"

    @property
    def _under_way(self) -> int:
        return self._pool.pending + len(self._compiled) + len(self._measuring)

    def _ask(self) -> None:
        """Keeps the compile workers busy; on a CPU only while nothing is timed."""
        if self._out_of_budget():
            return
        wanted = 2 * self._pool.size + len(self._executors) - self._under_way
        if self.shares_cores:
            wanted = max(self._pool.size, LEAST_BATCH) if self._under_way == 0 else 0
        if self._limit is not None:
            wanted = min(wanted, self._limit - self._watch.progress.trials - self._under_way)
        self.search.want(wanted)
        for candidate in self.search.take():
            self._begin(candidate)

    def _begin(self, candidate: Candidate) -> None:
        trial = self._trials[candidate.number] = _Trial(candidate)
        if self._discarded(trial):
            return
        kernel = self._kernels[candidate.kernel]
        try:
            rendered = render(kernel, self._scribes[0].problem, candidate.config)
        except Exception as error:
            reason = f"cannot be rendered: {type(error).__name__}: {error}"
            self._finish(trial, Measurement(Outcome.INVALID, reason))
            return
        self._pool.submit(candidate.number, rendered)

    def _wait(self) -> None:
        channels: list[Any] = [*self._pool.channels]
        channels += [self._executors[number].channel for number in self._measuring]
        idle = "compiling" if self._pool.pending else "searching"
        with self._watch.spent("measuring" if self._measuring else idle):
            select.select(channels, [], [], REPORT_EVERY_S if channels else THINK_S)

    def _take_compiled(self, compiled: Compiled) -> None:
        trial = self._trials[compiled.ticket]
        self._watch.add("compile", compiled.compile_s)
        trial.contestant = compiled.contestant
        rejected = compiled.failure
        if compiled.contestant is not None:
            rejected = ruled_out(compiled.contestant, self._executors[0].info)
        if rejected is not None:
            self._finish(trial, rejected)
        else:
            self._compiled.append(trial)

    def _dispatch(self) -> None:
        """Gives every idle device the next compiled config."""
        if self._out_of_budget() or (self.shares_cores and self._pool.pending):
            return
        for number, executor in enumerate(self._executors):
            while number not in self._measuring and self._compiled:
                trial = self._compiled.popleft()
                if self._discarded(trial):
                    continue
                assert trial.contestant is not None
                twin = self._seen.get(_code_key(trial.contestant))
                if twin is not None:
                    self._finish(trial, replace(twin, stages_s={"compile": trial.contestant.compile_s}))
                    continue
                self._begin_on(executor, trial.contestant)
                self._measuring[number] = trial

    def _begin_on(self, executor: Executor, contestant: Contestant) -> None:
        best_s = self._standings.best_s
        if len(self._standings.objectives) == 1:
            executor.begin(contestant, best_s)
        else:
            # Too slow to win is no reason to stop one that may save energy, or be more exact.
            executor.begin(contestant, None, run_limit_s(best_s))

    def _take_measured(self, number: int) -> None:
        trial = self._measuring.pop(number)
        assert trial.contestant is not None
        measurement = self._executors[number].finish()
        lost = measurement.outcome is Outcome.CRASHED or OUT_OF_MEMORY in measurement.reason
        if lost and not trial.crashes:
            # It may be innocent: others may have killed the worker, or hold the memory. Twice is its own fault.
            trial.crashes += 1
            self._compiled.appendleft(trial)
            return
        if measurement.outcome in (Outcome.MEASURED, Outcome.PRUNED, Outcome.INACCURATE):
            self._seen[_code_key(trial.contestant)] = measurement
        elif measurement.compiled is None:
            measurement = replace(measurement, compiled=trial.contestant.compiled)
        for stage in ("load", "verify", "time", "power"):
            self._watch.add(stage, measurement.stages_s.get(stage, 0.0))
        # The device has its next config before this one is written down.
        self._dispatch()
        self._finish(trial, measurement, number)

    def _finish(self, trial: _Trial, measurement: Measurement, device: int = 0) -> None:
        """Stores first, then tells: what the search knows is never lost."""
        with self._watch.spent("bookkeeping"):
            candidate, progress = trial.candidate, self._watch.progress
            kernel, scribe = self._kernels[candidate.kernel], self._scribes[device]
            record = scribe.of_kernel(Role.TRIAL, kernel, candidate.config, measurement)
            self._write.put(record, self._telling(candidate, measurement))
            if not self._standings.weighed:
                check_energy(self._standings.objectives, scribe.device, measurement)
            take_in(kernel.name, candidate.config, measurement, progress, self._standings, trial.contestant)
            del self._trials[candidate.number]
            if self._elimination is not None:
                self._elimination.take(kernel.name, candidate.config, measurement)
                self._drop(self._elimination)

    def _drop(self, elimination: Elimination) -> None:
        for kernel, why in elimination.dropped(self._standings.best_s).items():
            self._watch.progress.dropped[kernel] = why
            self.search.drop(kernel)

    def _discarded(self, trial: _Trial) -> bool:
        """True where the kernel was dropped after this was asked: it is no trial then."""
        candidate = trial.candidate
        if candidate.kernel not in self._watch.progress.dropped:
            return False
        del self._trials[candidate.number]
        self.search.tell(candidate, Outcome.INVALID, None)
        return True

    def _telling(self, candidate: Candidate, measurement: Measurement) -> Callable[[], None]:
        """What tells the search of a trial."""
        objectives = self._standings.objectives
        if len(objectives) == 1:
            return partial(self.search.tell, candidate, measurement.outcome, measurement.time_s)
        values = values_of(measurement, objectives)
        time_s, others = (values[0], values[1:]) if values else (None, ())
        return partial(self.search.tell, candidate, measurement.outcome, time_s, others)


def _code_key(contestant: Contestant) -> tuple[str, Any]:
    """Equal keys run alike: the same machine code, launched alike."""
    return contestant.compiled.binary_hash, contestant.rendered.launch
