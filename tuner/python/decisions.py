"""Kernel or library? What the records say of a problem on a device, and what follows for a call.

A kernel runs where it was measured to be faster, or where the lookup expects it to be, by more than such
answers are measured to be off. Where nothing supports that, the library runs.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from tuner import lookup
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.detect import kind_of
from tuner.errors import NothingFound, StoreTrouble, TunerError
from tuner.lookup import Answer
from tuner.lookup.answers import DEFAULT, EXACT, reckoned
from tuner.lookup.asking import database_url, kept_open, opened
from tuner.lookup.stale import builtin_now
from tuner.python.misses import LIBRARY, VARIABLE, chosen
from tuner.python.requests import CallRequest
from tuner.results.record import ProblemKey

#: Seconds between two looks for champions that an operator changed.
LOOK_EVERY_S = 20.0
#: Seconds that a call waits for a database that is locked, and for which one that failed is not asked again.
PATIENCE_S, LEFT_OUT_S = 1.0, 60.0
#: Lead over the library below which the library runs: within what noise, and a cache that is warm, may change.
LEAD = 1.02
#: Regimes beside ``cold`` in which the kernel must not have lost, where they were measured.
OTHER_REGIMES = ("hot",)
#: Seconds on the host of a call of PyTorch's own product, and what a kernel of several launches takes beside
#: them (H200, docs/results/callables-h200.md). With CuPy's arrays no call takes longer than CuPy's own.
CALL_S, LAUNCHES_S = 18e-6, 12e-6
#: Prepared calls that a function keeps, and decisions that are kept; the oldest go first.
KEPT = 4096
#: One call is decided and prepared at a time, so that nothing is looked up or compiled twice. It is free in a
#: forked process, where no thread is left to give it back.
LOCK = threading.RLock()
os.register_at_fork(after_in_child=LOCK._at_fork_reinit)  # type: ignore[attr-defined]


class Rereading:
    """Watches the databases that were asked, in a thread of its own, for champions that an operator changed.

    Attributes:
        forget: Called if a crown log has grown.
    """

    def __init__(self, every_s: float = LOOK_EVERY_S) -> None:
        """Begins nothing yet.

        Args:
            every_s: Seconds between two looks.
        """
        self.forget: Callable[[], None] = lambda: None
        self._every_s = every_s
        self._newest: dict[str, int | None] = {}
        self._process = 0

    def begin(self) -> None:
        """Watches the database that is asked now; starts the thread if this process has none yet.

        Raises:
            InputError: A file that may name the database cannot be read.
        """
        url = database_url()
        if url not in self._newest:
            self._newest[url] = _newest_ruling(url)
        if self._process != os.getpid():
            self._process = os.getpid()
            threading.Thread(target=self._watch, name="tuner-crowns", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(self._every_s)
            self.look()

    def look(self) -> None:
        """Looks once; a database that cannot be read is looked at again later."""
        for url, before in list(self._newest.items()):
            newest = _newest_ruling(url)
            if newest is not None:
                self._newest[url] = newest
                if before not in (None, newest):
                    self.forget()


def _newest_ruling(url: str) -> int | None:
    """Number of the latest entry that changes who answers; 0 without a database, None for a broken one."""
    try:
        store = opened(url, patience_s=PATIENCE_S)
        if store is None:
            return 0
        with store:
            return store.rulings.newest()
    except (TunerError, OSError):
        return None


#: Has what was decided forgotten when an operator goes back to another champion.
REREADING = Rereading()


class CallableWarning(UserWarning):
    """Something is amiss that a call can do without: it works, perhaps not at full speed."""


@dataclass(frozen=True)
class Decision:
    """What runs for a problem on a device, and why.

    Attributes:
        problem: What is computed.
        device: Where.
        library: Name of the library that the kernel competes with.
        why: Reason for people.
        answer: What the lookup answered; None where it did not.
        kernel: What runs; None for the library.
        config: Its config.
        saves_s: Seconds that the kernel saves against the library, by the records; 0 where that is unknown.
    """

    problem: Problem
    device: DeviceInfo
    library: str
    why: str
    answer: Answer | None = None
    kernel: Kernel | None = None
    config: Config | None = None
    saves_s: float = 0.0

    def by_library(self, why: str) -> Decision:
        """The library runs instead."""
        return replace(self, kernel=None, config=None, saves_s=0.0, why=why)


@cache
def device_info(device: str) -> DeviceInfo:
    """Identity and limits of ``cpu`` or ``cuda:N``."""
    return kind_of(device).describe(int(device.partition(":")[2] or 0))


_decided: dict[tuple[ProblemKey, str], Decision] = {}


def decision_for(request: CallRequest) -> Decision | None:
    """What runs, by records and by what has to be copied; None where it is no problem for a kernel."""
    if request.problem is None:
        return None
    with LOCK:
        decision = _decided.get((request.problem, request.device))
        if decision is None:
            decision = decide(request.problem, device_info(request.device))
            keep(_decided, (request.problem, request.device), decision)
    copies = request.copied
    if decision.kernel is None:
        return decision
    if is_miss(request, decision) and chosen().how == LIBRARY:
        why = f"it is not tuned, and the policy is {LIBRARY!r} ({VARIABLE}, tuner.on_miss)"
        return decision.by_library(f"{why}; else: {decision.why}")
    kind = kind_of(decision.device.kind)
    copying_s = request.copied_bytes / kind.copied_bytes_per_s + len(copies) * kind.copy_s
    if copies and decision.saves_s <= copying_s:
        names = ", ".join(placement.argument for placement in copies)
        why = f"a copy of {names} ({copies[0].copied}) is taken to cost more than the kernel saves"
        return decision.by_library(why)
    return _counting_the_call(request, decision)


def _counting_the_call(request: CallRequest, decision: Decision) -> Decision:
    """The library where a device waits for the host longer than the kernel saves."""
    assert decision.kernel is not None
    assert decision.config is not None
    launch = decision.kernel.launched(decision.problem, decision.config)
    tensors = next(iter(request.operands.values())).family == "PyTorch"
    kernel_s, library_s = _times_s(decision.answer) if decision.answer is not None else (0.0, 0.0)
    if launch is None or launch.is_single or not tensors or not library_s:
        return decision
    if max(kernel_s, CALL_S + LAUNCHES_S) <= max(library_s, CALL_S):
        return decision
    return decision.by_library(
        f"its call of several launches takes {(CALL_S + LAUNCHES_S) * 1e6:.0f} us of the host, and the library "
        f"is done sooner; else: {decision.why}"
    )


def is_miss(request: CallRequest, decision: Decision | None) -> bool:
    """Whether a problem for a kernel has no answer of its own."""
    if request.problem is None or decision is None:
        return False
    answer = decision.answer
    return answer is None or answer.match != EXACT


def keep(kept: dict[Any, Any], key: Hashable, value: object) -> None:
    """Puts a value into a dict that holds `KEPT` at the most."""
    while len(kept) >= KEPT:
        del kept[next(iter(kept))]
    kept[key] = value


def forget_one(problem: ProblemKey, device: str) -> None:
    """Has a problem decided anew: it was measured."""
    _decided.pop((problem, device), None)


def forget() -> None:
    """Has everything decided anew and the database asked where it was left out, and warns once more."""
    global _left_out_until_s
    _decided.clear()
    _left_out_until_s = 0.0
    _WARNED.clear()


def problem_of(key: ProblemKey) -> Problem:
    """The problem that a key names, of a built-in operation.

    Raises:
        UnknownName: No such operation, dtype or layout.
        InputError: A dim that is missing or below 1.
    """
    return key.of_operation(builtin_now().operation(key.operation))


def decide(key: ProblemKey, device: DeviceInfo | str) -> Decision:
    """Looks the problem up, and chooses.

    Args:
        key: A problem of a built-in operation.
        device: Where; a text is the name of a device that need not be here.

    Raises:
        NothingFound: Nothing is known of a device of that name.
        UnknownName: No such device, operation, dtype, layout or precision.
    """
    REREADING.begin()
    problem = problem_of(key)
    try:
        return _in_every_regime(_judged(problem, _looked_up(key, device)), key)
    except Exception as error:  # a lookup that fails must not break a product
        if isinstance(device, str):  # where nothing is computed
            raise
        if isinstance(error, NothingFound):
            return _by_library(problem, device, f"no record tells of a kernel that is faster: {error}")
        warn_once(f"the lookup of {key} failed, so the library is used: {type(error).__name__}: {error}")
        return _by_library(problem, device, f"the lookup failed: {error}")


def _by_library(problem: Problem, device: DeviceInfo, why: str, answer: Answer | None = None) -> Decision:
    baseline = problem.operation.baselines.get(device.kind)
    return Decision(problem, device, baseline.named(problem) if baseline else "library", why, answer)


def _judged(problem: Problem, answer: Answer) -> Decision:
    """The decision that an answer leads to."""
    assert answer.question is not None, "a lookup keeps its question"
    device = answer.question.device
    by_library = partial(_by_library, problem, device, answer=answer)
    reasons, exact = "; ".join(answer.reasons), answer.match == EXACT
    if answer.use != "kernel":
        return by_library(reasons or f"measured: the kernel reaches {answer.speedup:.3f} of its speed")
    if answer.match == DEFAULT:
        return by_library(reasons or "nothing near was measured")
    declared = builtin_now().of(problem.operation.name, device.kind)
    kernel = next((kernel for kernel in declared if kernel.name == answer.kernel), None)
    if kernel is None:
        return by_library(f"kernel {answer.kernel!r} is not among the built-in ones, and no other code is run")
    config, illegal = _legal_config(kernel, problem, device, answer)
    if config is None:
        return by_library(illegal)
    library = by_library("").library
    measured = (
        f"measured at {answer.speedup:.3f} x {library}" if answer.speedup else "measured, no library beside"
    )
    if exact and 0 < answer.speedup < LEAD:
        return by_library(f"{measured}, a lead too small to count on")
    fallback = answer.record.fallback if answer.record is not None else ""
    kernel = kernel.as_recorded(fallback, problem, device)
    why = "; ".join((measured, *answer.reasons)) if exact else reasons
    kernel_s, library_s = _times_s(answer)
    saves_s = max(0.0, library_s - kernel_s)
    return Decision(problem, device, library, why, answer, kernel, config, saves_s)


def _in_every_regime(decision: Decision, key: ProblemKey) -> Decision:
    """The library where it won in another regime: what a program finds in the caches is not known."""
    for regime in OTHER_REGIMES if decision.kernel else ():
        other = _looked_up(key, decision.device, regime)
        timed = other.record is not None and other.record.regime == regime
        if timed and other.match == EXACT and (other.use != "kernel" or 0 < other.speedup < LEAD):
            return decision.by_library(
                f"in the {regime} regime the best kernel is {other.speedup:.3f} x {decision.library}"
            )
    return decision


def _legal_config(
    kernel: Kernel, problem: Problem, device: DeviceInfo, answer: Answer
) -> tuple[Config | None, str]:
    """The answer's config where the kernel as it is now may run it here; else why not."""
    names = [parameter.name for parameter in kernel.parameters]
    if sorted(names) != sorted(answer.config):
        return None, f"kernel {kernel.name!r} has other parameters now; tune again"
    config = Config({name: answer.config[name] for name in names})
    for constraint in kernel.constraints:
        if not constraint.for_speed and not constraint.rule(problem, device, config):
            return None, f"its config breaks a rule of kernel {kernel.name!r} here: {constraint.sentence}"
    return config, ""


def _times_s(answer: Answer) -> tuple[float, float]:
    """Seconds of the kernel, with what may be lost, and of the library, by model or record; 0 if unknown."""
    kept = 1.0 - reckoned(answer.loss)
    if answer.predicted is not None:
        return answer.predicted.kernel_s / kept, answer.predicted.library_s or 0.0
    if answer.champion is None or not answer.champion.speedup:
        return 0.0, 0.0
    time_s = answer.champion.record.measurement.time_s or 0.0
    return time_s / kept, time_s * answer.champion.speedup


def _looked_up(key: ProblemKey, device: DeviceInfo | str, regime: str = "cold") -> Answer:
    """The answer from the user's records and the published ones; without the former where they are broken."""
    global _left_out_until_s
    if time.monotonic() >= _left_out_until_s:
        try:
            return lookup.answer(kept_open(patience_s=PATIENCE_S), key, device, regime)
        except StoreTrouble as error:
            warn_once(f"the records of your database are left out: {error}")
            _left_out_until_s = time.monotonic() + LEFT_OUT_S
    return lookup.answer(None, key, device, regime)


_left_out_until_s = 0.0
_WARNED: set[str] = set()


def warn_once(message: str) -> None:
    """Warns, unless the same was said before."""
    if message not in _WARNED:
        _WARNED.add(message)
        warnings.warn(message, CallableWarning, stacklevel=2)
