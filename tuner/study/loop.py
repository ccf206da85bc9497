"""The loop of a study: ask, compile ahead, measure, record, tell. One thread, any number of equal devices."""

from __future__ import annotations

import collections
import math
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tuner.declare.kernel import Kernel, render
from tuner.results.measurement import OUT_OF_MEMORY, Measurement, Outcome
from tuner.results.objectives import values_of
from tuner.results.record import Role
from tuner.search import Candidate
from tuner.search.background import BackgroundSearch
from tuner.study.budget import REPORT_EVERY_S, TimeBudget
from tuner.study.leaderboard import Elimination, Leaderboard
from tuner.study.recorder import WriteBehind
from tuner.study.session import Session
from tuner.study.setup import check_energy
from tuner.workers.bench import CompiledConfig
from tuner.workers.compile_pool import Compiled, ruled_out
from tuner.workers.device_worker import DeviceWorker, run_limit_s

#: Configs requested at once if nothing is compiled beside timing: of two, one may be compiled long before
#: the other.
LEAST_BATCH = 4
#: So many configs are tried though the time is up, while none of them could be measured; seconds at the most.
LEAST_TRIALS, GRACE_S = 4, 30.0
#: Seconds between two polls of the search while nothing else is under way.
THINK_S = 0.002


@dataclass
class _Trial:
    candidate: Candidate
    crashes: int = 0
    compiled_config: CompiledConfig | None = None


class SearchLoop:
    """Runs until the budget is spent, the search has ended, or `stop` is set.

    Attributes:
        search: The search that suggests configs.
        stop: Reason why it ended, or will end.
    """

    def __init__(
        self,
        search: BackgroundSearch,
        session: Session,
        leaderboard: Leaderboard,
        budget: TimeBudget,
        elimination: Elimination | None = None,
    ) -> None:
        """Keeps what the loop needs.

        Args:
            search: The search that suggests configs.
            session: Compiles, measures and stores.
            leaderboard: Leaderboard to update.
            budget: Time and progress.
            elimination: Decides which kernels are dropped; by default none.
        """
        self.search, self._pool, self._budget = search, session.pool, budget
        self._workers, self._recorders = session.workers, session.recorders
        self._shares_cores = session.shares_cores
        self._leaderboard, self._elimination = leaderboard, elimination
        self._trials: dict[int, _Trial] = {}
        self._compiled: collections.deque[_Trial] = collections.deque()
        self._measuring: dict[int, _Trial] = {}
        self._seen: dict[tuple[str, Any], Measurement] = {}
        self._until_s = math.inf
        self._tried, self._sound = 0, False
        self._write = WriteBehind(session.store.add, inline=self._shares_cores)
        self.stop = ""

    def run(self, kernels: dict[str, Kernel], trials: int | None, seconds: float | None = None) -> None:
        """Searches. It may be called again if `stop` is empty afterwards.

        Args:
            kernels: The competitors by name.
            trials: Total number of trials of the study; None for no limit.
            seconds: It pauses after this many seconds; None to go on until the end.

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
        """Runs one iteration; False if the search has ended, or is to pause."""
        with self._budget.spent("bookkeeping"):
            self._ask()
        if not self._under_way and not self._write.pending and (self.stop or self.search.exhausted):
            self.stop = self.stop or self.search.stopped or "nothing is left to try"
            return False
        self._wait()
        for compiled in self._pool.ready():
            self._take_compiled(compiled)
        for number in [each for each in self._measuring if self._workers[each].arrived()]:
            self._take_measured(number)
        self._dispatch()
        self._budget.progress.set_spent("thinking", self.search.thinking_s)
        self._budget.progress.set_spent("storing", self._write.storing_s)
        self._budget.tick()
        return bool(self._measuring) or not self._out_of_budget()

    def _out_of_budget(self) -> bool:
        if not self.stop:
            left = self._budget.search_left_s
            if left is not None and left <= (0 if self._has_begun else -GRACE_S):
                self.stop = "time is up"
            elif self._limit is not None and self._budget.progress.trials >= self._limit:
                self.stop = "all trials are done"
        return bool(self.stop) or time.monotonic() >= self._until_s

    @property
    def _has_begun(self) -> bool:
        """Whether this run measured a config, or several failed: only then is a budget of seconds spent.

        To open a device and to make the arrays of a large problem takes seconds, too.
        """
        return self._sound or self._tried >= LEAST_TRIALS

    def stop_because(self, why: str) -> None:
        """Makes the search end after the current trials."""
        self.stop = why

    @property
    def _under_way(self) -> int:
        return self._pool.pending + len(self._compiled) + len(self._measuring)

    def _ask(self) -> None:
        """Keeps the compile workers busy; on a CPU, only while nothing is timed."""
        if self._out_of_budget():
            return
        wanted = 2 * self._pool.size + len(self._workers) - self._under_way
        if self._shares_cores:
            wanted = self._batch if self._under_way == 0 else 0
        if self._limit is not None:
            wanted = min(wanted, self._limit - self._budget.progress.trials - self._under_way)
        self.search.want(wanted)
        for candidate in self.search.take():
            self._begin(candidate)

    @property
    def _batch(self) -> int:
        """Configs that are compiled before some are timed; of a new study one, whose time comes soon then."""
        return max(self._pool.size, LEAST_BATCH) if self._budget.progress.trials else 1

    def _begin(self, candidate: Candidate) -> None:
        trial = self._trials[candidate.number] = _Trial(candidate)
        if self._discarded(trial):
            return
        kernel = self._kernels[candidate.kernel]
        try:
            rendered = render(kernel, self._recorders[0].problem, candidate.config)
        except Exception as error:
            reason = f"cannot be rendered: {type(error).__name__}: {error}"
            self._finish(trial, Measurement(Outcome.INVALID, reason))
            return
        self._pool.submit(candidate.number, rendered)

    def _wait(self) -> None:
        channels: list[Any] = [*self._pool.channels]
        channels += [self._workers[number].channel for number in self._measuring]
        idle = "compiling" if self._pool.pending else "searching"
        with self._budget.spent("measuring" if self._measuring else idle):
            select.select(channels, [], [], REPORT_EVERY_S if channels else THINK_S)

    def _take_compiled(self, compiled: Compiled) -> None:
        trial = self._trials[compiled.ticket]
        self._budget.add("compile", compiled.compile_s)
        trial.compiled_config = compiled.compiled_config
        rejected = compiled.failure
        if compiled.compiled_config is not None:
            rejected = ruled_out(compiled.compiled_config, self._workers[0].info)
        if rejected is not None:
            self._finish(trial, rejected)
        else:
            self._compiled.append(trial)

    def _dispatch(self) -> None:
        """Gives every idle device the next compiled config."""
        if self._out_of_budget() or (self._shares_cores and self._pool.pending):
            return
        for number, worker in enumerate(self._workers):
            while number not in self._measuring and self._compiled:
                trial = self._compiled.popleft()
                if self._discarded(trial):
                    continue
                assert trial.compiled_config is not None
                twin = self._seen.get(_code_key(trial.compiled_config))
                if twin is not None:
                    self._finish(trial, replace(twin, stages_s={"compile": trial.compiled_config.compile_s}))
                    continue
                self._begin_on(worker, trial.compiled_config)
                self._measuring[number] = trial

    def _begin_on(self, worker: DeviceWorker, compiled_config: CompiledConfig) -> None:
        best_s = self._leaderboard.best_s
        if len(self._leaderboard.objectives) == 1:
            worker.begin(compiled_config, best_s)
        else:
            # A config that is too slow to win may still save energy or be more exact, so it is not stopped.
            worker.begin(compiled_config, None, run_limit_s(best_s))

    def _take_measured(self, number: int) -> None:
        trial = self._measuring.pop(number)
        assert trial.compiled_config is not None
        measurement = self._workers[number].finish()
        lost = measurement.outcome is Outcome.CRASHED or OUT_OF_MEMORY in measurement.reason
        if lost and not trial.crashes:
            # It may be innocent: others may have killed the worker, or hold the memory. The second time it is
            # to blame.
            trial.crashes += 1
            self._compiled.appendleft(trial)
            return
        if measurement.outcome in (Outcome.MEASURED, Outcome.PRUNED, Outcome.INACCURATE):
            self._seen[_code_key(trial.compiled_config)] = measurement
        elif measurement.compiled is None:
            measurement = replace(measurement, compiled=trial.compiled_config.compiled)
        for stage in ("load", "verify", "time", "power"):
            self._budget.add(stage, measurement.stages_s.get(stage, 0.0))
        if self._elimination is not None:
            candidate = trial.candidate
            self._elimination.take(candidate.kernel, candidate.config, measurement)
            self._drop(self._elimination)
        # The device gets its next config before this one is stored.
        self._dispatch()
        self._finish(trial, measurement, number)

    def _finish(self, trial: _Trial, measurement: Measurement, device: int = 0) -> None:
        """Stores first, then reports, so that nothing the search knows can be lost."""
        with self._budget.spent("bookkeeping"):
            candidate = trial.candidate
            kernel, recorder = self._kernels[candidate.kernel], self._recorders[device]
            record = recorder.of_kernel(Role.TRIAL, kernel, candidate.config, measurement)
            self._write.put(record, self._telling(candidate, measurement))
            if not self._leaderboard.with_objectives:
                check_energy(self._leaderboard.objectives, recorder.device, measurement)
            self._leaderboard.add_trial(kernel.name, candidate.config, measurement, trial.compiled_config)
            self._tried += 1
            self._sound = self._sound or not measurement.outcome.failed
            del self._trials[candidate.number]

    def _drop(self, elimination: Elimination) -> None:
        for kernel, why in elimination.dropped(self._leaderboard.best_s).items():
            self._budget.progress.drop(kernel, why)
            self.search.drop(kernel)

    def _discarded(self, trial: _Trial) -> bool:
        """True if the kernel was dropped after this request; it then is no trial."""
        candidate = trial.candidate
        if candidate.kernel not in self._budget.progress.dropped:
            return False
        del self._trials[candidate.number]
        self.search.tell(candidate, Outcome.INVALID, None)
        return True

    def _telling(self, candidate: Candidate, measurement: Measurement) -> Callable[[], None]:
        """Returns a callback that reports a trial to the search."""
        objectives = self._leaderboard.objectives
        if len(objectives) == 1:
            return partial(self.search.tell, candidate, measurement.outcome, measurement.time_s)
        values = values_of(measurement, objectives)
        time_s, others = (values[0], values[1:]) if values else (None, ())
        return partial(self.search.tell, candidate, measurement.outcome, time_s, others)


def _code_key(compiled_config: CompiledConfig) -> tuple[str, Any]:
    """Returns a key for machine code and launch; configs with equal keys run alike."""
    return compiled_config.compiled.binary_hash, compiled_config.rendered.launch
