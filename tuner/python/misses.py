"""Calls of problems that nobody tuned: counted, and decided anew where the policy or the records change."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from tuner.lookup.answers import EXACT
from tuner.lookup.demand import DEMAND, CallCount
from tuner.python import measuring
from tuner.python.arrays import Family
from tuner.python.calls import Prepared
from tuner.python.decisions import Decision, problem_of, warn_once
from tuner.python.operands import CallRequest
from tuner.python.policy import CHANGED, CHOSEN, LIBRARY, MEASURE, VARIABLE, Policy, chosen
from tuner.results.record import ProblemKey

#: Ends of a measurement that the user is told of.
TOLD = ("busy", "failed")
#: What is prepared for misses, by problem and device.
_MISSES: dict[tuple[ProblemKey, str], weakref.WeakSet[Miss]] = {}


class ForkedLock:
    """A reentrant lock that is free in a forked process, where no thread is left to give it back.

    Attributes:
        lock: The lock of this process; to be read anew for each use.
    """

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.lock = threading.RLock()


_CHANGING = ForkedLock()


def is_miss(request: CallRequest, decision: Decision | None) -> bool:
    """Whether a problem for a kernel has no answer of its own."""
    if request.problem is None or decision is None:
        return False
    found = decision.answer
    own = decision.problem.precision == request.problem.precision
    return found is None or found.match != EXACT or not own


def check_policy() -> None:
    """Says if there is no such policy as the environment names.

    Raises:
        UnknownName: There is none.
    """
    chosen()


def by_policy(decision: Decision) -> Decision:
    """The decision for a miss, by the policy that holds."""
    if chosen().how != LIBRARY or decision.kernel is None:
        return decision
    why = f"it is not tuned, and the policy is {LIBRARY!r} ({VARIABLE}, tuner.on_miss); else: {decision.why}"
    return replace(decision, kernel=None, config=None, saves_s=0.0, why=why)


class Miss:
    """The calls with arrays of one kind whose problem nobody tuned.

    Attributes:
        request: What is asked for.
        tally: Counts the calls.
        runs: What runs, by the policy of the surrounding block; without it what is not decided yet, or not any
            more.
    """

    def __init__(
        self, request: CallRequest, family: Family, decide: Callable[[], tuple[Prepared, bool]]
    ) -> None:
        """Keeps what the calls need.

        Args:
            request: What is asked for.
            family: Library of the arrays.
            decide: Prepares the call for the policy that holds, and says whether it still is a miss.
        """
        assert request.problem is not None, "a miss is of a problem"
        self.request, self._family, self._decide = request, family, decide
        self._last: Prepared | None = None
        self.tally = CallCount()
        self.runs: dict[Policy | None, Prepared] = {}
        with _CHANGING.lock:
            _MISSES.setdefault((request.problem, request.device), weakref.WeakSet()).add(self)

    def decided(self, array: Any) -> Prepared:
        """What runs now; during the capture of a graph, when nothing may be loaded, what ran before.

        Args:
            array: One of the call's.
        """
        if self._last is not None and self._family.capturing(array):
            return self._last
        consult(self.request, self._family, array)
        surrounding = CHOSEN.get()
        self._last, missed = self._decide()
        if not missed:
            self.tally.close()
        self.runs[surrounding] = self._last
        return self._last

    def run(self, array: Any) -> Prepared:
        """What runs for a call, which is counted, by the policy that surrounds it.

        Args:
            array: One of the call's.
        """
        self.tally.hits[0] += 1
        found = self.runs.get(CHOSEN.get())
        return self.decided(array) if found is None else found

    def call(self) -> Prepared:
        """The call as it is kept: it counts, and asks what runs."""
        hits, runs, surrounding, decided = self.tally.hits, self.runs, CHOSEN.get, self.decided

        def one(a: Any, out: Any) -> Any:
            hits[0] += 1
            run = runs.get(surrounding())
            return run(a, out) if run is not None else decided(a)(a, out)

        def two(a: Any, b: Any, out: Any) -> Any:
            hits[0] += 1
            run = runs.get(surrounding())
            return run(a, b, out) if run is not None else decided(a)(a, b, out)

        def several(*given: Any) -> Any:
            return self.run(given[0])(*given)

        inputs = len(self.request.operands.keys() - {"out"})
        return one if inputs == 1 else two if inputs == 2 else several


def consult(request: CallRequest, family: Family, array: Any) -> None:
    """Has a miss measured where the policy says so, and waits if that says so; not while a graph is captured.

    Args:
        request: What is asked for.
        family: Library of the arrays.
        array: One of the call's.
    """
    policy = chosen()
    if policy.how != MEASURE or request.problem is None or family.capturing(array):
        return
    problem, device = request.problem, request.device
    asked = measuring.PROCESS.ask(problem, device, policy.seconds, partial(decide_anew, problem, device))
    if policy.wait:
        asked.wait()
    if asked.outcome in TOLD:
        warn_once(f"{problem} could not be measured at its first use, and is answered without: {asked.why}")


def forget_measured() -> None:
    """Lets what was measured, or could not be, be asked for again."""
    with _CHANGING.lock:
        _MISSES.clear()
    measuring.PROCESS.forget()


#: Called with problem and device once they were measured: what was decided before does not count any more.
FORGET: list[Callable[[ProblemKey, str], None]] = []


def decide_anew(problem: ProblemKey, device: str) -> None:
    """Has the next calls of a problem decided anew."""
    for forget in FORGET:
        forget(problem, device)
    with _CHANGING.lock:
        there = list(_MISSES.get((problem, device), ()))
    for each in there:
        each.runs.clear()


def _policy_changed() -> None:
    with _CHANGING.lock:
        there = [miss for misses in _MISSES.values() for miss in misses]
    for each in there:
        each.runs.pop(None, None)


CHANGED.append(_policy_changed)


def count(miss: Miss, decision: Decision) -> None:
    """Adds a miss to the demand.

    Args:
        miss: Its calls.
        decision: What was decided first.
    """
    assert miss.request.problem is not None, "a miss is of a problem"
    problem = problem_of(miss.request.problem)
    DEMAND.add(problem, decision.device, decision.answer, miss.tally)
