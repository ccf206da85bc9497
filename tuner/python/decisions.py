"""Kernel or library? What the records say of a problem on a device, and what follows for a call.

A kernel runs where it was measured to be faster, or where the lookup expects it to be, by more than such
answers are measured to be off. Where nothing supports that, the library runs.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import IEEE, Problem
from tuner.declare.space import Config
from tuner.devices.detect import kind_of
from tuner.errors import NothingFound, StoreTrouble, TunerError
from tuner.lookup import Answer, answer
from tuner.lookup.answers import DEFAULT, EXACT, reckoned
from tuner.lookup.asking import database_url, kept_open, opened
from tuner.lookup.stale import builtin_now
from tuner.results.record import ProblemKey

#: Seconds between two looks.
LOOK_EVERY_S = 20.0


class Rereading:
    """The thread of one process.

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
        self._seen: dict[str, int | None] = {}
        self._process = 0

    def begin(self) -> None:
        """Watches the database that is asked now; starts the thread if this process has none yet.

        Raises:
            InputError: A file that may name the database cannot be read.
        """
        url = database_url()
        if url not in self._seen:
            self._seen[url] = None
            self._look(url)
        if self._process != os.getpid():
            self._process = os.getpid()
            threading.Thread(target=self._go_on, name="tuner-crowns", daemon=True).start()

    def _go_on(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._every_s):
            self.look()

    def look(self) -> None:
        """Looks once; a database that cannot be read is looked at again later."""
        for url in list(self._seen):
            self._look(url)

    def _look(self, url: str) -> None:
        try:
            newest = _newest(url)
        except (TunerError, OSError):
            return
        seen, self._seen[url] = self._seen[url], newest
        if seen is not None and newest != seen:
            self.forget()


def _newest(url: str) -> int:
    """Number of the latest entry that changes who answers; 0 without a database."""
    store = opened(url, patience_s=1.0)
    if store is None:
        return 0
    with store:
        return store.rulings.newest()


#: Seconds that a call waits for a database that is locked, and for which one that failed is not asked again.
PATIENCE_S, LEFT_OUT_S = 1.0, 60.0
#: Lead over the library below which the library runs: within what noise, and a cache that is warm, may change.
LEAD = 1.02
#: Regimes beside ``cold`` in which the kernel must not have lost, where they were measured.
OTHER_REGIMES = ("hot",)
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

    def worth_copying(self, copied_bytes: int, copies: int) -> bool:
        """Whether the kernel saves more than it costs to copy so many bytes first."""
        kind = kind_of(self.device.kind)
        return self.saves_s > copied_bytes / kind.copied_bytes_per_s + copies * kind.copy_s


def problem_of(key: ProblemKey) -> Problem:
    """The problem that a key names, of a built-in operation.

    Raises:
        UnknownName: No such operation, dtype or layout.
        InputError: A dim that is missing or below 1.
    """
    operation = builtin_now().operation(key.operation)
    return key.of_operation(operation)


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
    found = _decided(key, device)
    measured = found.answer is not None and found.answer.match == EXACT
    if key.precision == IEEE or found.kernel is not None or measured:
        return found
    plain = _decided(replace(key, precision=IEEE), device)
    if plain.kernel is None:
        return found
    return replace(plain, why=f"nothing is known of it {key.precision}, so as {IEEE}: {plain.why}")


def _decided(key: ProblemKey, device: DeviceInfo | str) -> Decision:
    """As `decide`, of the key's precision alone."""
    problem = problem_of(key)
    if isinstance(device, str):
        elsewhere = _looked_up(key, device)
        return _in_every_regime(_judged(_bare(problem, _device_of(elsewhere), elsewhere)), key)
    bare = _bare(problem, device)
    try:
        return _in_every_regime(_judged(_bare(problem, device, _looked_up(key, device))), key)
    except NothingFound as error:
        return replace(bare, why=f"no record tells of a kernel that is faster: {error}")
    except Exception as error:  # a lookup that fails must not break a product
        warn_once(f"the lookup of {key} failed, so the library is used: {type(error).__name__}: {error}")
        return replace(bare, why=f"the lookup failed: {error}")


def _bare(problem: Problem, device: DeviceInfo, found: Answer | None = None) -> Decision:
    """Before it is decided: the library's."""
    baseline = problem.operation.baselines.get(device.kind)
    return Decision(problem, device, baseline.named(problem) if baseline else "library", "", found)


def _judged(bare: Decision) -> Decision:
    """The decision that an answer leads to."""
    problem, device, library, found = bare.problem, bare.device, bare.library, bare.answer
    assert found is not None

    def by_library(why: str) -> Decision:
        return replace(bare, why=why)

    told = "; ".join(found.reasons)
    if found.use != "kernel":
        return by_library(told or f"measured: the kernel reaches {found.speedup:.3f} of its speed")
    if found.match == DEFAULT:
        return by_library(told or "nothing near was measured")
    kernel = _declared(problem, device, found.kernel)
    if kernel is None:
        return by_library(f"kernel {found.kernel!r} is not among the built-in ones, and no other code is run")
    config, illegal = _legal_config(kernel, problem, device, found)
    if config is None:
        return by_library(illegal)
    if found.match == EXACT and 0 < found.speedup < LEAD:
        return by_library(f"measured at {found.speedup:.3f} x {library}, a lead too small to count on")
    if found.match == EXACT:
        how = f"measured at {found.speedup:.3f} x {library}" if found.speedup else "measured, no library beside"
        told = "; ".join((how, *found.reasons))
    fallback = found.record.versions.get("fallback", "") if found.record is not None else ""
    kernel = kernel.as_recorded(fallback, problem, device)
    return replace(bare, why=told, kernel=kernel, config=config, saves_s=_saves_s(found))


def _in_every_regime(found: Decision, key: ProblemKey) -> Decision:
    """The library where it won in another regime: what a program finds in the caches is not known."""
    for regime in OTHER_REGIMES if found.kernel else ():
        other = _looked_up(key, found.device, regime)
        timed = other.record is not None and other.record.regime == regime
        if timed and other.match == EXACT and (other.use != "kernel" or 0 < other.speedup < LEAD):
            why = f"in the {regime} regime the best kernel is {other.speedup:.3f} x {found.library}"
            return replace(found, kernel=None, config=None, saves_s=0.0, why=why)
    return found


def _device_of(found: Answer) -> DeviceInfo:
    assert found.question is not None, "a lookup keeps its question"
    return found.question.device


def _declared(problem: Problem, device: DeviceInfo, name: str) -> Kernel | None:
    for kernel in builtin_now().kernels:
        if (kernel.operation, kernel.target, kernel.name) == (problem.operation.name, device.kind, name):
            return kernel
    return None


def _legal_config(
    kernel: Kernel, problem: Problem, device: DeviceInfo, found: Answer
) -> tuple[Config | None, str]:
    """The answer's config where the kernel as it is now may run it here; else why not."""
    values = dict(found.config)
    names = [parameter.name for parameter in kernel.parameters]
    if sorted(names) != sorted(values):
        return None, f"kernel {kernel.name!r} has other parameters now; tune again"
    config = Config({name: values[name] for name in names})
    for constraint in kernel.constraints:
        if not constraint.for_speed and not constraint.rule(problem, device, config):
            return None, f"its config breaks a rule of kernel {kernel.name!r} here: {constraint.sentence}"
    return config, ""


def _saves_s(found: Answer) -> float:
    """By the model or the record's times, less what may be lost."""
    if found.predicted is not None:
        kept_s = found.predicted.kernel_s / (1.0 - reckoned(found.loss))
        return max(0.0, (found.predicted.library_s or 0.0) - kept_s)
    if found.champion is None or not found.champion.speedup:
        return 0.0
    ours_s = found.champion.record.measurement.time_s or 0.0
    return float(ours_s * (found.champion.speedup - 1.0 / (1.0 - reckoned(found.loss))))


def _looked_up(key: ProblemKey, device: DeviceInfo | str, regime: str = "cold") -> Answer:
    """The answer from the user's records and the published ones; without the former where they are broken."""
    global _left_out_until_s
    if time.monotonic() < _left_out_until_s:
        return answer(None, key, device, regime)
    forked = os.getpid() != _PROCESS  # whose connections are another's
    store = None
    try:
        store = (opened if forked else kept_open)(patience_s=PATIENCE_S)
        return answer(store, key, device, regime)
    except StoreTrouble as error:
        warn_once(f"the records of your database are left out: {error}")
        _left_out_until_s = time.monotonic() + LEFT_OUT_S
        return answer(None, key, device, regime)
    finally:
        if forked and store is not None:
            store.close()


#: The process that loaded this module.
_PROCESS = os.getpid()
_left_out_until_s = 0.0
_WARNED: set[str] = set()


def warn_once(message: str) -> None:
    """Warns, unless the same was said before."""
    if message not in _WARNED:
        _WARNED.add(message)
        warnings.warn(message, CallableWarning, stacklevel=2)


def forget() -> None:
    """Has the database asked again where it was left out, and lets every warning be given once more."""
    global _left_out_until_s
    _left_out_until_s = 0.0
    _WARNED.clear()
