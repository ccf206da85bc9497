"""Kernel or library? What the records say of a problem on a device, and what follows for a call.

The rule: never slower than the library, as far as records tell. A kernel runs where it was measured to be at
least as fast; where nothing was measured, or what was measured does not carry over, the library runs.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tuner.catalogue import Catalogue, builtin
from tuner.errors import NothingFound, TunerError
from tuner.hardware import DeviceInfo
from tuner.kernel import Kernel
from tuner.lookup import Answer, answer
from tuner.problem import Problem
from tuner.record import ProblemKey
from tuner.space import Config

#: Where the user's own records are, unless ``TUNER_DB`` says otherwise: as for the command line.
DEFAULT_DATABASE = "sqlite:///studies.db"
#: Bytes of an array that are copied in a second, and seconds that any copy takes: what devices of recent
#: years surpass, since a copy that turns out quicker than assumed does no harm.
COPIED_BYTES_PER_S = {"cpu": 2e9, "cuda": 5e11}
COPY_S = {"cpu": 2e-6, "cuda": 10e-6}


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
        kind = self.device.kind
        return self.saves_s > copied_bytes / COPIED_BYTES_PER_S[kind] + copies * COPY_S[kind]


@cache
def catalogue() -> Catalogue:
    """The built-in kernels, read once."""
    return builtin()


def problem_of(key: ProblemKey) -> Problem:
    """The problem that a key names, of a built-in operation.

    Raises:
        UnknownName: No such operation, dtype or layout.
        InputError: A dim that is missing or below 1.
    """
    return catalogue().operation(key.operation).problem(key.dims, key.dtype, key.layout)


def decide(key: ProblemKey, device: DeviceInfo | str) -> Decision:
    """Looks the problem up, and chooses.

    Args:
        key: A problem of a built-in operation.
        device: Where; a text is the name of a device that need not be here.

    Raises:
        NothingFound: Nothing is known of a device of that name.
        UnknownName: No such device, operation, dtype or layout.
    """
    problem = problem_of(key)
    if isinstance(device, str):
        elsewhere = _looked_up(key, device)
        return _judged(_bare(problem, elsewhere.champion.record.device, elsewhere))
    bare = _bare(problem, device)
    try:
        return _judged(_bare(problem, device, _looked_up(key, device)))
    except NothingFound as error:
        return replace(bare, why=f"no record tells of a kernel that is faster: {error}")
    except Exception as error:  # a lookup that fails must not break a product
        warn_once(f"the lookup of {key} failed, so the library is used: {type(error).__name__}: {error}")
        return replace(bare, why=f"the lookup failed: {error}")


def _bare(problem: Problem, device: DeviceInfo, found: Answer | None = None) -> Decision:
    """Before it is decided: the library's."""
    baseline = problem.operation.baselines.get(device.kind)
    return Decision(problem, device, baseline.named(problem.dtype) if baseline else "library", "", found)


def _judged(bare: Decision) -> Decision:
    """The decision that an answer leads to."""
    problem, device, library, found = bare.problem, bare.device, bare.library, bare.answer
    assert found is not None

    def by_library(why: str) -> Decision:
        return replace(bare, why=why)

    champion = getattr(found, "champion", None)
    if found.use != "kernel":
        speedup = f" (the kernel reached {champion.speedup:.3f} of its speed)" if champion else ""
        return by_library(f"{found.use} was measured to be faster{speedup}")
    if champion is None or champion.record is None or found.match == "default":
        return by_library("nothing near was measured, so that no kernel is known to be faster")
    record = champion.record
    kernel = _declared(problem, device, record.kernel)
    if kernel is None:
        return by_library(f"kernel {record.kernel!r} is not among the built-in ones")
    config, illegal = _legal_config(kernel, problem, device, found)
    if config is None:
        return by_library(illegal)
    expected = champion.speedup * (1.0 - found.expected_loss)
    if champion.speedup and found.match != "exact" and expected < 1.0:
        return by_library(
            f"the {found.match} record is {champion.speedup:.3f} x {library}, and such answers lose "
            f"{found.expected_loss:.1%}, so that {library} is expected to be faster"
        )
    against = f"{champion.speedup:.3f} x {library}" if champion.speedup else "no library beside it"
    why = f"measured at {against}" if found.match == "exact" else f"its {found.match} record: {against}"
    return replace(bare, why=why, kernel=kernel, config=config, saves_s=_saves_s(problem, found))


def _declared(problem: Problem, device: DeviceInfo, name: str) -> Kernel | None:
    for kernel in catalogue().kernels:
        if (kernel.operation, kernel.target, kernel.name) == (problem.operation.name, device.kind, name):
            return kernel
    return None


def _legal_config(
    kernel: Kernel, problem: Problem, device: DeviceInfo, found: Answer
) -> tuple[Config | None, str]:
    """The answer's config where the kernel as it is now may run it here; else why not."""
    values = dict(getattr(found, "config", None) or found.champion.record.config)
    names = [parameter.name for parameter in kernel.parameters]
    if sorted(names) != sorted(values):
        return None, f"kernel {kernel.name!r} has other parameters now; tune again"
    config = Config({name: values[name] for name in names})
    for constraint in kernel.constraints:
        if not constraint.for_speed and not constraint.rule(problem, device, config):
            return None, f"its config breaks a rule of kernel {kernel.name!r} here: {constraint.sentence}"
    return config, ""


def _saves_s(problem: Problem, found: Answer) -> float:
    """By the record's times, scaled by work where it is another shape's."""
    record, baseline = found.champion.record, found.champion.baseline
    ours, theirs = record.measurement.time_s, baseline.measurement.time_s if baseline else None
    if not ours or not theirs:
        return 0.0
    unit = "flops" if record.work.get("flops") else "bytes"
    scale = getattr(problem.work, unit) / record.work[unit]
    return float(scale * (theirs - ours / (1.0 - found.expected_loss)))


def _looked_up(key: ProblemKey, device: DeviceInfo | str) -> Answer:
    """The answer from the user's store, or without one where it is missing or broken."""
    from tuner.store import Store

    url = os.environ.get("TUNER_DB") or DEFAULT_DATABASE
    try:
        with Store.open(url, read_only=True, patience_s=1.0) as store:
            return answer(store, key, device)
    except NothingFound:
        pass
    except TunerError as error:
        warn_once(f"records of the database {url} are left out: {error}")
    nowhere: Any = None
    return answer(nowhere, key, device)


_WARNED: set[str] = set()


def warn_once(message: str) -> None:
    """Warns, unless the same was said before."""
    if message not in _WARNED:
        _WARNED.add(message)
        warnings.warn(message, CallableWarning, stacklevel=2)


def forget_warnings() -> None:
    """Lets every warning be given once more."""
    _WARNED.clear()
