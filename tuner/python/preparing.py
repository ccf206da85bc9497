"""From a request to the call of what runs: a kernel's, the library's, or one that may change.

Calls of a problem that nobody tuned are counted, measured where the policy says so, and decided anew where the
policy or the records change.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import kind_of
from tuner.lookup.answers import EXACT
from tuner.lookup.demand import DEMAND, CallCount
from tuner.python import measuring
from tuner.python.arrays import Family, index_of
from tuner.python.calls import Prepared, kernel_call, library_call
from tuner.python.decisions import Decision, decide, forget, problem_of, warn_once
from tuner.python.operands import CallRequest
from tuner.python.policy import CHANGED, CHOSEN, LIBRARY, MEASURE, VARIABLE, CallPolicy, chosen
from tuner.results.record import ProblemKey

#: Prepared calls that a function keeps, and decisions that are kept; the oldest go first.
KEPT = 4096
#: Ends of a measurement that the user is told of.
TOLD = ("busy", "failed")


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


#: One call is decided and prepared at a time, so that nothing is looked up or compiled twice.
PREPARING = ForkedLock()
#: Held for moments alone, since a measurement ends in another thread while a call may be prepared.
_CHANGING = ForkedLock()
_decided: dict[tuple[ProblemKey, str], Decision] = {}
_devices: dict[str, DeviceInfo] = {}
#: What is prepared for misses, by problem and device.
_misses: dict[tuple[ProblemKey, str], weakref.WeakSet[Miss]] = {}


def keep(kept: dict[Any, Any], key: Hashable, value: Any) -> None:
    """Puts a value into a dict that holds `KEPT` at the most."""
    while len(kept) >= KEPT:
        del kept[next(iter(kept))]
    kept[key] = value


def device_info(device: str) -> DeviceInfo:
    """Identity and limits of ``cpu`` or ``cuda:N``."""
    if device not in _devices:
        _devices[device] = kind_of(device).describe(index_of(device))
    return _devices[device]


def decision_for(request: CallRequest) -> Decision | None:
    """What runs, by records and by what has to be copied; None where it is no problem for a kernel."""
    if request.problem is None:
        return None
    with PREPARING.lock:
        decision = _decided.get((request.problem, request.device))
        if decision is None:
            decision = decide(request.problem, device_info(request.device))
            keep(_decided, (request.problem, request.device), decision)
    if is_miss(request, decision) and decision.kernel is not None and chosen().how == LIBRARY:
        why = (
            f"it is not tuned, and the policy is {LIBRARY!r} ({VARIABLE}, tuner.on_miss); else: {decision.why}"
        )
        decision = replace(decision, kernel=None, config=None, saves_s=0.0, why=why)
    copies = request.copied
    if decision.kernel is None or not copies or decision.worth_copying(request.copied_bytes, len(copies)):
        return decision
    names = ", ".join(placement.argument for placement in copies)
    why = f"a copy of {names} ({copies[0].copied}) is taken to cost more than the kernel saves"
    return replace(decision, kernel=None, config=None, why=why)


def decision_or_none(request: CallRequest) -> Decision | None:
    """What is decided; None where there is no problem for a kernel, or where the lookup failed."""
    try:
        return decision_for(request)
    except Exception as error:
        _warn_left(request, error)
        return None


def is_miss(request: CallRequest, decision: Decision | None) -> bool:
    """Whether a problem for a kernel has no answer of its own."""
    if request.problem is None or decision is None:
        return False
    answer = decision.answer
    own = decision.problem.precision == request.problem.precision
    return answer is None or answer.match != EXACT or not own


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
    pending = measuring.PROCESS.ask(problem, device, policy.seconds, partial(decide_anew, problem, device))
    if policy.wait:
        pending.wait()
    if pending.outcome in TOLD:
        warn_once(f"{problem} could not be measured at its first use, and is answered without: {pending.why}")


def decide_anew(problem: ProblemKey, device: str) -> None:
    """Has the next calls of a problem decided anew: it was measured."""
    _decided.pop((problem, device), None)
    with _CHANGING.lock:
        misses = list(_misses.get((problem, device), ()))
    for miss in misses:
        miss.runs.clear()


def _policy_changed() -> None:
    with _CHANGING.lock:
        every = [miss for misses in _misses.values() for miss in misses]
    for miss in every:
        miss.runs.pop(None, None)


CHANGED.append(_policy_changed)


def forget_all() -> None:
    """Forgets what was decided, so that new records count, and lets what was measured be asked for again."""
    with PREPARING.lock:
        _decided.clear()
    forget()
    with _CHANGING.lock:
        _misses.clear()
    measuring.PROCESS.forget()


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
        self.runs: dict[CallPolicy | None, Prepared] = {}
        with _CHANGING.lock:
            _misses.setdefault((request.problem, request.device), weakref.WeakSet()).add(self)

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

    def call(self) -> Prepared:
        """The call as it is kept: it counts, and runs what the policy that surrounds it says."""
        hits, runs, surrounding, decided = self.tally.hits, self.runs, CHOSEN.get, self.decided

        def called(*arrays: Any) -> Any:
            hits[0] += 1
            run = runs.get(surrounding())
            return (run if run is not None else decided(arrays[0]))(*arrays)

        return called


def prepare(
    request: CallRequest,
    family: Family,
    array: Any,
    prepared: Callable[[Decision | None], Prepared] | None = None,
) -> Prepared:
    """The call of what is decided; where that may change, one that asks what is decided now.

    Args:
        request: What is asked for.
        family: Library of the arrays.
        array: One of them.
        prepared: The call of a decision; by default that of its kernel, or the library's.
    """
    prepared = prepared or partial(prepared_by, request, family)

    def decided() -> tuple[Prepared, bool]:
        with PREPARING.lock:
            decision = decision_or_none(request)
            return prepared(decision), is_miss(request, decision)

    decision = decision_or_none(request)
    if decision is None or not is_miss(request, decision):
        return prepared(decision)
    miss = Miss(request, family, decided)
    assert request.problem is not None, "a miss is of a problem"
    DEMAND.add(problem_of(request.problem), decision.device, decision.answer, miss.tally)
    miss.decided(array)
    return miss.call()


def prepare_kept(
    kept: dict[Any, Prepared],
    key: Hashable | None,
    request: CallRequest,
    family: Family,
    array: Any,
    prepared: Callable[[Decision | None], Prepared] | None = None,
) -> Prepared:
    """As `prepare`, once a miss was measured where the policy says so; the call is kept for the next.

    Args:
        kept: Where it is kept.
        key: By which; None for a call that is not to be remembered.
        request: What is asked for.
        family: Library of the arrays.
        array: One of them.
        prepared: The call of a decision.
    """
    if is_miss(request, decision_or_none(request)):
        consult(request, family, array)  # which may wait, and so is not done under the lock
    with PREPARING.lock:
        call = prepare(request, family, array, prepared)
        if key is not None:
            keep(kept, key, call)
    return call


def prepared_by(
    request: CallRequest, family: Family, decision: Decision | None, by_library: Prepared | None = None
) -> Prepared:
    """The call of a decision's kernel; the library's where that cannot be had, which is no reason to fail.

    Args:
        request: What is asked for.
        family: Library of the arrays.
        decision: What runs; None for the library of the arrays.
        by_library: The library's call, where it is not one of its own functions.
    """
    try:
        if decision is not None and decision.kernel is not None:
            return kernel_call(request, decision, family)
        return by_library or library_call(request, decision, family)
    except Exception as error:
        _warn_left(request, error)
        return by_library or library_call(request, None, family)


def _warn_left(request: CallRequest, error: Exception) -> None:
    warn_once(
        f"{request.function} of {request.problem} is left to the library, since the kernel cannot be had: "
        f"{type(error).__name__}: {error}"
    )
