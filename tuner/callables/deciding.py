"""Decisions that are kept: what runs for a problem on a device of this machine."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from tuner.callables.arrays import index_of
from tuner.callables.decisions import Decision, decide, forget
from tuner.callables.misses import FORGET, by_policy, is_miss
from tuner.callables.requests import Request
from tuner.declare.hardware import DeviceInfo
from tuner.results.record import ProblemKey

#: Prepared calls that a function keeps, and decisions that are kept; the oldest go first.
KEPT = 4096

_decided: dict[tuple[ProblemKey, str], Decision] = {}
_devices: dict[str, DeviceInfo] = {}
_lock = threading.RLock()


def _after_fork() -> None:
    """Another thread of the parent may have held the lock."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def keep(kept: dict[Any, Any], key: Hashable, value: Any) -> None:
    """Puts a value into a dict that holds `KEPT` at the most."""
    while len(kept) >= KEPT:
        del kept[next(iter(kept))]
    kept[key] = value


def decision_for(request: Request) -> Decision | None:
    """What runs, by records and by what has to be copied; None where it is no problem for a kernel."""
    if request.problem is None:
        return None
    with _lock:
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
        if device == "cpu":
            from tuner.devices.detect import cpu_info

            found = cpu_info()
        else:
            from tuner.devices.calling import device_info as gpu_info

            found = gpu_info(index_of(device))
        _devices[device] = found
    return found


def forget_all() -> None:
    """Forgets what was decided, so that new records count."""
    with _lock:
        _decided.clear()
    forget()


def _forget_problem(problem: ProblemKey, device: str) -> None:
    """Has a problem looked up again: it was measured."""
    _decided.pop((problem, device), None)


FORGET.append(_forget_problem)
