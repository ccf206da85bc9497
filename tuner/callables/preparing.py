"""From a request to the call of what runs: a kernel's, the library's, or one that may change."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from tuner.callables.arrays import Family
from tuner.callables.calls import Prepared, kernel_call, library_call
from tuner.callables.deciding import decision_for
from tuner.callables.decisions import Decision, warn_once
from tuner.callables.misses import Miss, count, is_miss
from tuner.callables.requests import Request

#: One call is prepared at a time, so that nothing is compiled twice.
_lock = threading.RLock()


def _after_fork() -> None:
    """Another thread of the parent may have held the lock."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def prepare(request: Request, family: Family, array: Any) -> Prepared:
    """The call of the kernel; the library's where that cannot be had, which is no reason to fail.

    Args:
        request: What is asked for.
        family: Library of the arrays.
        array: One of them.
    """
    return watched(request, family, array, lambda decision: prepared_by(request, family, decision))


def watched(
    request: Request, family: Family, array: Any, prepared: Callable[[Decision | None], Prepared]
) -> Prepared:
    """The call of what is decided; where that may change, one that asks what is decided now.

    Args:
        request: What is asked for.
        family: Library of the arrays.
        array: One of them.
        prepared: The call of a decision.
    """

    def decided() -> tuple[Prepared, bool]:
        with _lock:
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


def decision_or_none(request: Request) -> Decision | None:
    """What is decided; None where there is no problem for a kernel, or where the lookup failed."""
    try:
        return decision_for(request)
    except Exception as error:
        _warn_left(request, error)
        return None


def prepared_by(request: Request, family: Family, decision: Decision | None) -> Prepared:
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


def _warn_left(request: Request, error: Exception) -> None:
    warn_once(
        f"{request.function} of {request.problem} is left to the library, since the kernel cannot be had: "
        f"{type(error).__name__}: {error}"
    )
