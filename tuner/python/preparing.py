"""From a request to the call of what runs: a kernel's, the library's, or one that may change."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import kind_of
from tuner.python.arrays import Family, index_of
from tuner.python.calls import Prepared, kernel_call, library_call
from tuner.python.decisions import Decision, decide, forget, warn_once
from tuner.python.misses import FORGET, ForkedLock, Miss, by_policy, count, is_miss
from tuner.python.operands import CallRequest
from tuner.results.record import ProblemKey

#: Prepared calls that a function keeps, and decisions that are kept; the oldest go first.
KEPT = 4096

_decided: dict[tuple[ProblemKey, str], Decision] = {}
_devices: dict[str, DeviceInfo] = {}
#: One call is decided and prepared at a time, so that nothing is looked up or compiled twice.
PREPARING = ForkedLock()


def keep(kept: dict[Any, Any], key: Hashable, value: Any) -> None:
    """Puts a value into a dict that holds `KEPT` at the most."""
    while len(kept) >= KEPT:
        del kept[next(iter(kept))]
    kept[key] = value


def decision_for(request: CallRequest) -> Decision | None:
    """What runs, by records and by what has to be copied; None where it is no problem for a kernel."""
    if request.problem is None:
        return None
    with PREPARING.lock:
        found = _decided.get((request.problem, request.device))
        if found is None:
            found = decide(request.problem, device_info(request.device))
            keep(_decided, (request.problem, request.device), found)
    if is_miss(request, found):
        found = by_policy(found)
    copies = request.copied
    if found.kernel is None or not copies or found.worth_copying(request.copied_bytes, len(copies)):
        return found
    names = ", ".join(each.argument for each in copies)
    why = f"a copy of {names} ({copies[0].copied}) is taken to cost more than the kernel saves"
    return replace(found, kernel=None, config=None, why=why)


def device_info(device: str) -> DeviceInfo:
    """Identity and limits of ``cpu`` or ``cuda:N``."""
    found = _devices.get(device)
    if found is None:
        found = _devices[device] = kind_of(device).describe(index_of(device))
    return found


def forget_all() -> None:
    """Forgets what was decided, so that new records count."""
    with PREPARING.lock:
        _decided.clear()
    forget()


def _forget_problem(problem: ProblemKey, device: str) -> None:
    """Has a problem looked up again: it was measured."""
    _decided.pop((problem, device), None)


FORGET.append(_forget_problem)


def prepare(request: CallRequest, family: Family, array: Any) -> Prepared:
    """The call of the kernel; the library's where that cannot be had, which is no reason to fail.

    Args:
        request: What is asked for.
        family: Library of the arrays.
        array: One of them.
    """
    return watched(request, family, array, lambda decision: prepared_by(request, family, decision))


def watched(
    request: CallRequest, family: Family, array: Any, prepared: Callable[[Decision | None], Prepared]
) -> Prepared:
    """The call of what is decided; where that may change, one that asks what is decided now.

    Args:
        request: What is asked for.
        family: Library of the arrays.
        array: One of them.
        prepared: The call of a decision.
    """

    def decided() -> tuple[Prepared, bool]:
        with PREPARING.lock:
            decision = decision_or_none(request)
            return prepared(decision), is_miss(request, decision)

    decision = decision_or_none(request)
    if not is_miss(request, decision):
        return prepared(decision)
    assert decision is not None, "a miss has a decision"
    miss = Miss(request, family, decided)
    count(miss, decision)
    miss.decided(array)
    return miss.call()


def decision_or_none(request: CallRequest) -> Decision | None:
    """What is decided; None where there is no problem for a kernel, or where the lookup failed."""
    try:
        return decision_for(request)
    except Exception as error:
        _warn_left(request, error)
        return None


def prepared_by(request: CallRequest, family: Family, decision: Decision | None) -> Prepared:
    """The call of a decision's kernel, or the library's.

    Args:
        request: What is asked for.
        family: Library of the arrays.
        decision: What runs; None for the library of the arrays.
    """
    try:
        if decision is not None and decision.kernel is not None:
            return kernel_call(request, decision, family)
        return library_call(request, decision, family)
    except Exception as error:
        _warn_left(request, error)
        return library_call(request, None, family)


def _warn_left(request: CallRequest, error: Exception) -> None:
    warn_once(
        f"{request.function} of {request.problem} is left to the library, since the kernel cannot be had: "
        f"{type(error).__name__}: {error}"
    )
