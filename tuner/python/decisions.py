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
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from tuner import lookup
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.detect import kind_of
from tuner.errors import InputError, NothingFound, StoreTrouble, TunerError
from tuner.lookup import Answer
from tuner.lookup.answers import DEFAULT, EXACT, reckoned
from tuner.lookup.asking import database_url, kept_open, opened
from tuner.lookup.legality import legal
from tuner.lookup.stale import builtin_now
from tuner.python.misses import LIBRARY, VARIABLE, chosen
from tuner.python.requests import CallRequest, problem_of
from tuner.results.record import ProblemKey

#: Seconds between two looks for champions that an operator changed.
LOOK_EVERY_S = 20.0
#: Seconds that a call waits for a database that is locked.
PATIENCE_S = 1.0
#: Lead over the library below which the library runs: within what noise, and a cache that is warm, may change.
LEAD = 1.02
#: Regimes beside ``cold`` in which the kernel must not have lost, where they were measured.
OTHER_REGIMES = ("hot",)
#: Seconds on the host of a call of PyTorch's own product, or of a kernel of one launch, and of each further
#: launch (H200, docs/results/callables-h200.md). With CuPy's arrays no call takes longer than CuPy's own.
CALL_S, LAUNCH_S = 18e-6, 6e-6
#: The longest kernel, out of cold caches, that the host's calls hide, and its least part of the library's
#: speed: where the device waits for calls, PyTorch's product by way of ours takes 4 to 7 us more than such a
#: kernel (same page).
HIDDEN_S, HIDDEN_LEAD = 13e-6, 0.9
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
        every_s: Seconds between two looks.
    """

    def __init__(self, every_s: float = LOOK_EVERY_S) -> None:
        """Begins nothing yet."""
        self.forget: Callable[[], None] = lambda: None
        self.every_s = every_s
        self._newest: dict[str, int | None] = {}
        self._process = 0

    def begin(self) -> None:
        """Watches the database that is asked now; starts the thread if this process has none yet.

        Raises:
            InputError: A file that may name the database cannot be read.
        """
        if (url := database_url()) not in self._newest:
            self._newest[url] = _newest_ruling(url)
        if self._process != os.getpid():
            self._process = os.getpid()
            threading.Thread(target=self._watch, name="tuner-crowns", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(self.every_s)
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
        with opened(url, patience_s=PATIENCE_S) or nullcontext() as store:
            return store.newest_ruling() if store is not None else 0
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
        in_graphs: True for a kernel that runs only where a graph is captured: elsewhere its call costs too
            much; False where it runs only elsewhere: it is no faster, and its call costs less.
    """

    problem: Problem
    device: DeviceInfo
    library: str
    why: str
    answer: Answer | None = None
    kernel: Kernel | None = None
    config: Config | None = None
    saves_s: float = 0.0
    in_graphs: bool | None = None

    @property
    def is_miss(self) -> bool:
        """Whether the problem has no answer of its own."""
        return self.answer is None or self.answer.match != EXACT

    def by_library(self, why: str) -> Decision:
        """The library runs instead."""
        return replace(self, kernel=None, config=None, saves_s=0.0, in_graphs=None, why=why)


@cache
def device_info(device: str) -> DeviceInfo:
    """Identity and limits of ``cpu`` or ``cuda:N``."""
    return kind_of(device).describe(int(device.partition(":")[2] or 0))


_decided: dict[tuple[ProblemKey, str], Decision] = {}


def decision_for(request: CallRequest) -> Decision | None:
    """What runs, by records and by what has to be copied; None where it is no problem for a kernel."""
    if request.invariant:
        return _of_rows(request)
    if request.problem is None:
        return None
    with LOCK:
        decision = _decided.get((request.problem, request.device))
        if decision is None:
            decision = decide(request.problem, device_info(request.device))
            keep(_decided, (request.problem, request.device), decision)
    if decision.kernel is None or decision.config is None:
        return decision
    if decision.is_miss and chosen().how == LIBRARY:
        why = f"it is not tuned, and the policy is {LIBRARY!r} ({VARIABLE}, tuner.on_miss)"
        return decision.by_library(f"{why}; else: {decision.why}")
    bits = request.bits or (chosen().bits if decision.is_miss else "")
    if bits and (decision.answer is None or not decision.answer.keeps(bits)):
        return decision.by_library(f"no kernel is known to give the bits of {decision.library}, as asked")
    kind, copies = kind_of(decision.device.kind), request.copied
    copied_bytes = sum(request.operands[tensor.argument].bytes for tensor in copies)
    if copies and decision.saves_s <= copied_bytes / kind.copied_bytes_per_s + len(copies) * kind.copy_s:
        names = ", ".join(tensor.argument for tensor in copies)
        why = f"a copy of {names} ({copies[0].copied}) is taken to cost more than the kernel saves"
        return decision.by_library(why)
    launch = decision.kernel.launched(decision.problem, decision.config)
    tensors = next(iter(request.operands.values())).family == "PyTorch"
    queued = launch.queued if launch is not None else 1  # by the library's own algorithm
    in_place = tensors and request.function == "matmul" and not copies
    cheapest = cheapest_call(request, decision) if launch is None else None
    is_cheaper = cheapest is not None and cheapest.kernel is not None and not cheapest.kernel.is_library
    if decision.in_graphs is False and (is_cheaper or not (in_place and queued == 1)):
        return decision.by_library(f"{decision.why}; this is none")
    if is_cheaper:
        return replace(decision, in_graphs=True, why=f"a kernel's eager call costs less; else: {decision.why}")
    if tensors and queued > 1 and decision.answer is not None:
        kernel_s, library_s = _times_s(decision.answer)
        call_s = CALL_S + (queued - 1) * LAUNCH_S
        if library_s and max(kernel_s, call_s) > max(library_s, CALL_S):
            why = (
                f"outside of CUDA graphs its call, as long as {queued} launches, takes {call_s * 1e6:.0f} us "
                f"of the host, and the library is done sooner; else: {decision.why}"
            )
            return replace(decision, in_graphs=True, why=why)
    return decision


def cheapest_call(request: CallRequest, decision: Decision) -> Decision | None:
    """What PyTorch's tensors are multiplied by where the device waits for calls of the library.

    Returns:
        The fastest finalist of one launch that is hardly slower than the library, else cuBLASLt's first choice;
        None where the device does not wait, or the library's bits are asked for.
    """
    bits = request.bits or (chosen().bits if decision.is_miss else "")
    tensors = next(iter(request.operands.values())).family == "PyTorch"
    in_place = tensors and request.function == "matmul" and not request.copied
    answer, problem, device = decision.answer, decision.problem, decision.device
    if bits or not in_place or answer is None or not 0.0 < _times_s(answer)[1] <= HIDDEN_S:
        return None
    kernels = {kernel.name: kernel for kernel in builtin_now().of(problem.operation.name, device.kind)}
    champion = answer.champion if answer.match == EXACT else None
    pairs, lead = (champion.own_pairs, champion.speedup) if champion is not None else ([], 0.0)
    for pair in sorted(pairs, key=lambda pair: pair.time_s):
        name, *words = pair.other.split()
        kernel = kernels.get(name)
        if kernel is None or lead < HIDDEN_LEAD * pair.comparison.ratio:
            continue
        named = ((of.name, value) for of in kernel.parameters for value in of.values)
        config = Config({name: value for name, value in named if f"{name}={value}" in words})
        is_legal = len(config) == len(kernel.parameters) and kernel.legal(problem, device, config)
        launch = kernel.launched(problem, config) if is_legal else None
        if launch is not None and launch.queued == 1:
            return replace(decision, kernel=kernel, config=config)
    own = [(of, one) for of in kernels.values() if of.name == "cublaslt" for one in of.first_configs()]
    firsts = (replace(decision, kernel=of, config=one) for of, one in own if of.legal(problem, device, one))
    return next(firsts, None)


def keep(kept: dict[Any, Any], key: Hashable, value: object) -> None:
    """Puts a value into a dict that holds `KEPT` at the most."""
    while len(kept) >= KEPT:
        del kept[next(iter(kept))]
    kept[key] = value


def forget_one(problem: ProblemKey, device: str) -> None:
    """Has a problem decided anew: it was measured."""
    _decided.pop((problem, device), None)


def forget() -> None:
    """Has everything decided anew, and warns once more."""
    _decided.clear()
    _WARNED.clear()


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
        if not isinstance(error, NothingFound):
            warn_once(f"the lookup of {key} failed, so the library is used: {type(error).__name__}: {error}")
        return _by_library(problem, device, f"no record tells of a kernel that is faster: {error}")


def _of_rows(request: CallRequest) -> Decision:
    """The kernel of a set of configs of one class of rows: never the library, whose rows may change.

    Raises:
        InputError: It is no product for a kernel.
        NothingFound: No such set has been tuned, or it is not for as many rows.
    """
    key, dim, device = request.problem, request.invariant, device_info(request.device)
    if key is None or dim not in key.dims or key.operation != "gemm" or key.epilogue:
        why = request.why or f"it is {key}"
        raise InputError(f"matmul: invariant={dim!r} is for products of two matrices by kernels, but {why}")
    answer = lookup.answer(kept_open(patience_s=PATIENCE_S), key, device, invariant=dim)
    decision = _judged(problem_of(key), answer)
    if decision.kernel is None:
        raise NothingFound(f"{key} has no kernel that keeps its rows: {decision.why}")
    return decision


def _by_library(problem: Problem, device: DeviceInfo, why: str, answer: Answer | None = None) -> Decision:
    baseline = problem.operation.baselines.get(device.kind)
    return Decision(problem, device, baseline.named(problem) if baseline else "library", why, answer)


def _judged(problem: Problem, answer: Answer) -> Decision:
    """The decision that an answer leads to."""
    assert answer.question is not None, "a lookup keeps its question"
    device, reasons = answer.question.device, "; ".join(answer.reasons)
    by_library = partial(_by_library, problem, device, answer=answer)
    library = by_library("").library
    leads = answer.champion.leads if answer.champion is not None else ""
    measured = f"measured at {leads}" if leads else "measured, no library beside"
    kernel_s, library_s = _times_s(answer)
    lead = answer.speedup if answer.match == EXACT else 0.0
    longest_s = max(HIDDEN_S, min(library_s, CALL_S))
    hidden = device.kind == "cuda" and HIDDEN_LEAD <= lead < LEAD and 0.0 < kernel_s <= longest_s
    if answer.use != "kernel" and not hidden:
        return by_library(reasons or f"measured: the kernel reaches {answer.speedup:.3f} of its speed")
    if answer.match == DEFAULT:
        return by_library(reasons or "nothing near was measured")
    if 0 < lead < LEAD and not hidden:
        return by_library(f"{measured}, a lead too small to count on")
    kernels = {kernel.name: kernel for kernel in builtin_now().of(problem.operation.name, device.kind)}
    kernel = kernels.get(answer.kernel)
    if kernel is None:
        return by_library(f"kernel {answer.kernel!r} is not among the built-in ones, and no other code is run")
    if not legal(kernel, problem, device, [answer.config])[0][0]:
        return by_library(f"kernel {kernel.name!r} has other parameters or rules now; tune again")
    config = Config({parameter.name: answer.config[parameter.name] for parameter in kernel.parameters})
    kernel = kernel.as_recorded(answer.record.fallback if answer.record is not None else "", problem, device)
    why = "; ".join((measured, *answer.reasons)) if answer.match == EXACT else reasons
    if hidden:
        why = f"{measured}; for eager calls of one launch with PyTorch's tensors, which the device waits for"
    decided = Decision(problem, device, library, why, answer, kernel, config, max(0.0, library_s - kernel_s))
    return replace(decided, in_graphs=False) if hidden else decided


def _in_every_regime(decision: Decision, key: ProblemKey) -> Decision:
    """The library where it won in another regime: what a program finds in the caches is not known."""
    for regime in OTHER_REGIMES if decision.kernel and decision.in_graphs is None else ():
        other = _looked_up(key, decision.device, regime)
        timed = other.record is not None and other.record.regime == regime
        if timed and other.match == EXACT and (other.use != "kernel" or 0 < other.speedup < LEAD):
            return decision.by_library(
                f"in the {regime} regime the best kernel is {other.speedup:.3f} x {decision.library}"
            )
    return decision


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
    try:
        return lookup.answer(kept_open(patience_s=PATIENCE_S), key, device, regime)
    except StoreTrouble as error:
        warn_once(f"the records of your database are left out: {error}")
        return lookup.answer(None, key, device, regime)


_WARNED: set[str] = set()


def warn_once(message: str) -> None:
    """Warns, unless the same was said before."""
    if message not in _WARNED:
        _WARNED.add(message)
        warnings.warn(message, CallableWarning, stacklevel=2)
