"""The one loop that times configs: a policy proposes, the loop compiles ahead, measures, verifies and stores.

A study, a first use, a re-measurement, a step of a ladder and a survey are policies of it. The loop has one
thread and any number of equal devices.
"""

from __future__ import annotations

import collections
import math
import select
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.declare.kernel import Kernel, Rendered, render
from tuner.declare.problem import Problem
from tuner.results.measurement import OUT_OF_MEMORY, Measurement, Outcome
from tuner.results.record import Record, Role
from tuner.search import Candidate
from tuner.study.progress import REPORT_EVERY_S, TimeBudget
from tuner.study.session import Session, timeable
from tuner.workers.bench import CompiledConfig
from tuner.workers.device_worker import DeviceWorker

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
        in_order: True if all that was proposed at once is compiled before any of it is timed, in the order
            proposed. Else what is compiled first is timed first.
        at_a_time: Candidates that a device is sent at a time.
        recorded: False if results are not stored as records. Each is sent once then: what crashes is not tried
            again, and what has another's machine code is timed, too.
    """

    prunes_spills = False
    in_order = False
    at_a_time = 1
    recorded = True

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

    def rendered(self, candidate: Candidate, problem: Problem) -> Rendered:
        """Returns what is compiled for a candidate."""
        return render(self.kernels[candidate.kernel], problem, candidate.config)

    def begin(self, worker: DeviceWorker, candidate: Candidate, code: CompiledConfig) -> None:
        """Has a device measure a candidate; the worker's `finish` returns the result."""
        worker.begin(code, self.to_beat_s(candidate))

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
    """A candidate on its way, with those that wait for each other until all are compiled."""

    candidate: Candidate
    together: list[_Trial]
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
        self._measuring: list[collections.deque[_Trial]] = [collections.deque() for _ in session.workers]
        self._until_s = math.inf
        self._tried, self._any_measured = 0, False
        self._twins: dict[tuple[str, Any], Measurement] = {}
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
        for number, (worker, sent) in enumerate(zip(self._session.workers, self._measuring, strict=True)):
            while sent and worker.arrived():
                self._take_measured(number)
        if self._session.shares_cores:
            self._store()
        # Elsewhere devices have their next configs before anything is stored.
        self._dispatch()
        self._store()
        self._budget.tick()
        return any(self._measuring) or not self._out_of_budget()

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
        proposed = self._policy.propose(room, under_way)
        for together in [proposed] if self._policy.in_order else [[candidate] for candidate in proposed]:
            self._begin(together)

    def _begin(self, candidates: Sequence[Candidate]) -> None:
        """Has candidates compiled that wait for each other."""
        problem, together = self._session.problem, list[_Trial]()
        for candidate in filter(self._policy.wants, candidates):
            trial = self._trials[candidate.number] = _Trial(candidate, together)
            together.append(trial)
        for trial in tuple(together):
            try:
                rendered = self._policy.rendered(trial.candidate, problem)
            except Exception as error:
                reason = f"cannot be rendered: {type(error).__name__}: {error}"
                self._reject(trial, Measurement(Outcome.INVALID, reason))
            else:
                self._pool.submit(trial.candidate.number, rendered, self._session.named(problem))

    def _wait(self) -> None:
        channels: list[Any] = [*self._pool.channels]
        under_way = zip(self._session.workers, self._measuring, strict=True)
        channels += [worker.channel for worker, sent in under_way if sent]
        idle = "compiling" if self._pool.pending else "searching"
        with self._budget.spent("measuring" if any(self._measuring) else idle):
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
            self._reject(trial, code)
        else:
            trial.code = code
            self._queue(trial.together)

    def _reject(self, trial: _Trial, measurement: Measurement) -> None:
        """Ends a trial that is not timed; others no longer wait for it."""
        trial.together.remove(trial)
        self._finish(trial, measurement)
        self._queue(trial.together)

    def _queue(self, together: list[_Trial]) -> None:
        if all(trial.code for trial in together):
            self._compiled.extend(together)
            together.clear()

    def _dispatch(self) -> None:
        """Gives every device as many compiled configs as it takes at a time."""
        if self._session.shares_cores and self._pool.pending:
            return
        most = self._policy.at_a_time
        # In bursts, for each wakes the worker that is timing.
        for number, sent in [one for one in enumerate(self._measuring) if len(one[1]) <= most // 2]:
            while len(sent) < most and self._compiled and not self._out_of_budget():
                self._send(number, self._compiled.popleft())

    def _send(self, number: int, trial: _Trial) -> None:
        candidate, code = trial.candidate, trial.code
        assert code is not None
        twin = self._twins.get(_code_key(code))
        if not self._policy.wants(candidate):
            del self._trials[candidate.number]
        elif twin is not None:
            self._finish(trial, replace(twin, stages_s={"compile": code.compile_s}))
        else:
            self._policy.begin(self._session.workers[number], candidate, code)
            self._measuring[number].append(trial)

    def _take_measured(self, number: int) -> None:
        worker, sent = self._session.workers[number], self._measuring[number]
        trial, before_s, restarts = sent.popleft(), worker.stopped_s, worker.restarts
        assert trial.code is not None
        measurement = worker.finish()
        self._budget.give_back((worker.stopped_s - before_s) / len(self._session.workers))
        if worker.restarts > restarts:  # what was sent behind is lost with the worker before
            self._compiled.extendleft(reversed(sent))
            sent.clear()
        lost = measurement.outcome is Outcome.CRASHED or OUT_OF_MEMORY in measurement.reason
        if lost and self._policy.recorded and not trial.crashes:
            # It may be innocent: others may have killed the worker, or hold the memory. The second time it is
            # to blame.
            trial.crashes += 1
            self._compiled.appendleft(trial)
            return
        if measurement.compiled is None:
            measurement = replace(measurement, compiled=trial.code.compiled)
        is_sound = measurement.outcome in (Outcome.MEASURED, Outcome.PRUNED, Outcome.INACCURATE)
        if is_sound and self._policy.recorded:
            self._twins[_code_key(trial.code)] = measurement
        for stage in ("load", "verify", "time", "bits", "power"):
            self._budget.progress.spend(stage, measurement.stages_s.get(stage, 0.0))
        if measurement.outcome is Outcome.MEASURED:
            self._budget.verified(sum(measurement.stages_s.get(stage, 0.0) for stage in ("load", "verify")))
        self._finish(trial, measurement, number)

    def _finish(self, trial: _Trial, measurement: Measurement, device: int = 0) -> None:
        """Learns; `_store` stores."""
        candidate = trial.candidate
        del self._trials[candidate.number]
        self._tried += 1
        self._any_measured = self._any_measured or not measurement.outcome.failed
        with self._budget.spent("bookkeeping"):
            self._policy.learn(candidate, measurement)
            if self._policy.recorded:
                kernel = self._policy.kernels[candidate.kernel]
                record = self._session.of_kernel(Role.TRIAL, kernel, candidate.config, measurement, device)
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


def _code_key(code: CompiledConfig) -> tuple[str, Any]:
    """Returns a key for machine code and launch; configs with equal keys run alike."""
    return code.compiled.binary_hash, code.rendered.launch
