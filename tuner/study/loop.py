"""The one loop that times configs: a policy proposes, the loop compiles ahead, measures, verifies and stores.

A study, a first use, a re-measurement and a step of a ladder are policies of it. The loop has one thread and
any number of equal devices.
"""

from __future__ import annotations

import collections
import math
import select
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.declare.kernel import Kernel, render
from tuner.results.measurement import OUT_OF_MEMORY, Measurement, Outcome
from tuner.results.record import Record, Role
from tuner.search import Candidate
from tuner.study.progress import REPORT_EVERY_S, TimeBudget
from tuner.study.session import Session, timeable
from tuner.workers.bench import CompiledConfig

#: Configs requested at once if nothing is compiled beside timing: of two, one may be compiled long before
#: the other.
LEAST_BATCH = 4
#: So many configs are tried though the time is up, while none of them could be measured; seconds at the most.
LEAST_TRIALS, GRACE_S = 4, 30.0
#: Seconds between two polls of the policy while nothing else is under way.
THINK_S = 0.002


class TrialPolicy:
    """Says what a loop times next and for how long, and learns what came of it.

    By itself it proposes a list, in order, and each config is timed to the end; others derive from it.

    Attributes:
        kernels: The kernels that candidates name.
        prunes_spills: True if what spills many registers is pruned untimed.
        in_order: True if all that was proposed is compiled before any of it is timed, in the order proposed.
            Else what is compiled first is timed first.
    """

    prunes_spills = False
    in_order = False

    def __init__(self, kernels: Iterable[Kernel], waiting: Sequence[Candidate] = ()) -> None:
        """Takes the list.

        Args:
            kernels: The kernels that candidates name.
            waiting: What is tried, in this order.
        """
        self.kernels: Mapping[str, Kernel] = {kernel.name: kernel for kernel in kernels}
        self._waiting = collections.deque(waiting)

    def propose(self, room: int, under_way: int) -> Sequence[Candidate]:
        """Returns what is tried next; it may be less than there is room for, or nothing for now.

        Args:
            room: Candidates that keep compile workers and devices busy; a policy may return more.
            under_way: Candidates that are being compiled or measured.
        """
        return [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]

    def ended(self) -> str:
        """Returns why nothing further is to be tried, though there may be more; empty to go on."""
        return ""

    def exhausted(self) -> str:
        """Returns why `propose` has nothing left until a result comes; empty if it has."""
        return "" if self._waiting else "nothing is left to try"

    def wants(self, candidate: Candidate) -> bool:
        """Whether a candidate is still to be tried; asked before it is compiled and before it is timed."""
        return True

    def to_beat_s(self, candidate: Candidate) -> float | None:
        """Returns the median to beat, in seconds: what cannot is stopped early. None to time it to the end."""
        return None

    def learn(self, candidate: Candidate, measurement: Measurement) -> None:
        """Takes a result, before it is stored.

        Args:
            candidate: What was tried.
            measurement: Its measurement, or how it failed.
        """

    def stored(self, candidate: Candidate, record: Record) -> None:
        """Takes the record of a result once it is on disk."""


@dataclass
class _Trial:
    candidate: Candidate
    crashes: int = 0
    code: CompiledConfig | None = None


class Loop:
    """Runs until the budget is spent, the policy has ended, or `stop` is set.

    Attributes:
        stop: Reason why it ended, or will end after the current trials.
    """

    def __init__(self, session: Session, policy: TrialPolicy, budget: TimeBudget | None = None) -> None:
        """Keeps what the loop needs.

        Args:
            session: Compiles, measures and stores.
            policy: Proposes configs.
            budget: Time and progress; no limit by default.
        """
        self._session, self._policy, self._pool = session, policy, session.pool
        self._budget = budget or TimeBudget(None)
        self._trials: dict[int, _Trial] = {}
        self._compiled: collections.deque[_Trial] = collections.deque()
        self._measuring: dict[int, _Trial] = {}
        self._twins: dict[tuple[str, Any], Measurement] = {}
        self._until_s = math.inf
        self._tried, self._any_measured = 0, False
        self._unstored: list[tuple[Candidate, Record]] = []
        self.stop = ""

    def prepare(self) -> None:
        """Makes the arrays, while what is proposed first is compiled.

        Raises:
            DeviceTrouble: A device cannot, e.g. for lack of memory.
        """
        self._ask()
        self._session.prepare()

    def run(self, seconds: float | None = None) -> str:
        """Times what the policy proposes, and stores it. It may be called again if `stop` is empty afterwards.

        Args:
            seconds: It pauses after this many seconds; None to go on until the end.

        Returns:
            `stop`.

        Raises:
            DeviceTrouble: A device stays unwell.
        """
        self._until_s = math.inf if seconds is None else time.monotonic() + seconds
        try:
            while self._step():
                pass
        finally:
            self._store()
        return self.stop

    def _step(self) -> bool:
        """Runs one iteration; False if the search has ended, or is to pause."""
        with self._budget.spent("bookkeeping"):
            self._ask()
        if not self._trials:
            self.stop = self.stop or self._policy.exhausted()
            if self.stop:
                return False
        self._wait()
        for ticket, result in self._pool.ready().items():
            self._take_compiled(ticket, result)
        for number in [number for number in self._measuring if self._session.workers[number].arrived()]:
            self._take_measured(number)
        if self._session.shares_cores:
            self._store()
        # Elsewhere devices have their next configs before anything is stored.
        self._dispatch()
        self._store()
        self._budget.tick()
        return bool(self._measuring) or not self._out_of_budget()

    def _out_of_budget(self) -> bool:
        if not self.stop:
            left = self._budget.search_left_s
            # To open a device and to make the arrays of a large problem takes seconds, too: a budget counts as
            # spent only if a config was measured, or several failed.
            has_begun = self._any_measured or self._tried >= LEAST_TRIALS
            if left is not None and left <= (0 if has_begun else -GRACE_S):
                self.stop = "time is up"
            else:
                self.stop = self._policy.ended()
        return bool(self.stop) or time.monotonic() >= self._until_s

    def _ask(self) -> None:
        """Keeps the compile workers busy; on a CPU, only while nothing is timed."""
        if self._out_of_budget():
            return
        under_way = len(self._trials)
        if self._session.shares_cores:
            # Of a new study one is asked for, whose time comes soon then.
            batch = max(self._pool.size, LEAST_BATCH) if self._budget.progress.trials else 1
            room = 0 if under_way else batch
        else:
            room = 2 * self._pool.size + len(self._session.workers) - under_way
        for candidate in self._policy.propose(room, under_way):
            self._begin(candidate)

    def _begin(self, candidate: Candidate) -> None:
        trial = self._trials[candidate.number] = _Trial(candidate)
        if self._discarded(trial):
            return
        kernel = self._policy.kernels[candidate.kernel]
        try:
            rendered = render(kernel, self._session.problem, candidate.config)
        except Exception as error:
            reason = f"cannot be rendered: {type(error).__name__}: {error}"
            self._finish(trial, Measurement(Outcome.INVALID, reason))
            return
        self._pool.submit(candidate.number, rendered)

    def _wait(self) -> None:
        channels: list[Any] = [*self._pool.channels]
        channels += [self._session.workers[number].channel for number in self._measuring]
        idle = "compiling" if self._pool.pending else "searching"
        with self._budget.spent("measuring" if self._measuring else idle):
            if channels or not self._compiled:
                select.select(channels, [], [], REPORT_EVERY_S if channels else THINK_S)

    def _take_compiled(self, ticket: int, result: CompiledConfig | Measurement) -> None:
        trial = self._trials.get(ticket)
        compile_s = result.stages_s.get("compile", 0.0) if isinstance(result, Measurement) else result.compile_s
        self._budget.progress.spend("compile", compile_s)
        if trial is None:
            return
        code = timeable(result, self._session.worker, self._policy.prunes_spills)
        if isinstance(code, Measurement):
            self._finish(trial, code)
        else:
            trial.code = code
            self._compiled.append(trial)

    def _dispatch(self) -> None:
        """Gives every idle device the next compiled config."""
        waits = self._session.shares_cores or self._policy.in_order
        if self._out_of_budget() or (waits and self._pool.pending):
            return
        if self._policy.in_order:
            self._compiled = collections.deque(sorted(self._compiled, key=lambda one: one.candidate.number))
        for number, worker in enumerate(self._session.workers):
            while number not in self._measuring and self._compiled and not self._out_of_budget():
                trial = self._compiled.popleft()
                if self._discarded(trial):
                    continue
                assert trial.code is not None
                twin = self._twins.get(_code_key(trial.code))
                if twin is not None:
                    self._finish(trial, replace(twin, stages_s={"compile": trial.code.compile_s}))
                    continue
                worker.begin(trial.code, self._policy.to_beat_s(trial.candidate))
                self._measuring[number] = trial

    def _take_measured(self, number: int) -> None:
        trial = self._measuring.pop(number)
        assert trial.code is not None
        worker = self._session.workers[number]
        before_s, measurement = worker.stopped_s, worker.finish()
        self._budget.give_back((worker.stopped_s - before_s) / len(self._session.workers))
        lost = measurement.outcome is Outcome.CRASHED or OUT_OF_MEMORY in measurement.reason
        if lost and not trial.crashes:
            # It may be innocent: others may have killed the worker, or hold the memory. The second time it is
            # to blame.
            trial.crashes += 1
            self._compiled.appendleft(trial)
            return
        if measurement.outcome in (Outcome.MEASURED, Outcome.PRUNED, Outcome.INACCURATE):
            self._twins[_code_key(trial.code)] = measurement
        elif measurement.compiled is None:
            measurement = replace(measurement, compiled=trial.code.compiled)
        for stage in ("load", "verify", "time", "bits", "power"):
            self._budget.progress.spend(stage, measurement.stages_s.get(stage, 0.0))
        if measurement.outcome is Outcome.MEASURED:
            self._session.keep(trial.code, measurement)
            self._budget.verified(measurement.stages_s["load"] + measurement.stages_s["verify"])
        self._finish(trial, measurement, number)

    def _finish(self, trial: _Trial, measurement: Measurement, device: int = 0) -> None:
        """Learns; `_store` stores."""
        candidate = trial.candidate
        del self._trials[candidate.number]
        self._tried += 1
        self._any_measured = self._any_measured or not measurement.outcome.failed
        with self._budget.spent("bookkeeping"):
            kernel = self._policy.kernels[candidate.kernel]
            record = self._session.of_kernel(Role.TRIAL, kernel, candidate.config, measurement, device)
            self._policy.learn(candidate, measurement)
            self._unstored.append((candidate, record))

    def _store(self) -> None:
        """Stores what was finished in one transaction, then tells the policy."""
        finished, self._unstored = self._unstored, []
        if not finished:
            return
        with self._budget.spent("storing"):
            self._session.store.add([record for _, record in finished])
        with self._budget.spent("bookkeeping"):
            for candidate, record in finished:
                self._policy.stored(candidate, record)

    def _discarded(self, trial: _Trial) -> bool:
        """True if the policy does not want it any more; it then is no trial."""
        if self._policy.wants(trial.candidate):
            return False
        del self._trials[trial.candidate.number]
        return True


def _code_key(code: CompiledConfig) -> tuple[str, Any]:
    """Returns a key for machine code and launch; configs with equal keys run alike."""
    return code.compiled.binary_hash, code.rendered.launch
