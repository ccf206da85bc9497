"""Answers which kernel and config to use for a problem on a device, from the store; no device is touched.

So far there is one tier, the problem itself: a champion, or the best trial of a study whose finals never
came. Further tiers join `_TIERS`, each a function that answers or returns None.
"""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tuner.catalogue import Catalogue, builtin
from tuner.errors import NothingFound, UnknownName
from tuner.hardware import DeviceInfo
from tuner.record import Champion, ProblemKey, Record, Role

if TYPE_CHECKING:
    from tuner.store import Store

#: How many neighbours a message lists.
_NEIGHBOURS = 3


@dataclass(frozen=True)
class Answer:
    """What a lookup found.

    Attributes:
        champion: Record, baseline and trials that the answer rests on.
        match: How near the record is to the question: ``exact``.
        expected_loss: Measured fraction of speed that such an answer costs; 0 for ``exact``.
        provisional: True where finals were never held and the best trial answers.
        stale: True where the kernel has changed since it was measured; None where that is not known.
        stale_reason: Why it is stale, or why that is not known.
    """

    champion: Champion
    match: str = "exact"
    expected_loss: float = 0.0
    provisional: bool = False
    stale: bool | None = False
    stale_reason: str = ""

    @property
    def use(self) -> str:
        """``kernel``, or the library's name where the library was faster."""
        baseline = self.champion.baseline
        return baseline.kernel if baseline is not None and 0 < self.champion.speedup < 1 else "kernel"

    def to_json(self) -> dict[str, Any]:
        """The answer as `best --json` prints it: seconds, TFLOPS, GB/s; ratios as fractions."""
        record, champion = self.champion.record, self.champion
        measurement = record.measurement
        error = measurement.error
        return {
            "operation": record.problem.operation,
            "shape": record.problem.dims,
            "dtype": record.problem.dtype,
            "layout": record.problem.layout,
            "device": {"name": record.device.name, "kind": record.device.kind},
            "regime": record.regime,
            "kernel": record.kernel,
            "config": dict(record.config),
            "time_s": measurement.time_s,
            "noise": measurement.noise,
            "tflops": record.tflops,
            "gbps": record.gbps,
            "baseline": _baseline_json(champion.baseline),
            "speedup": champion.speedup,
            "error": {"max_rel": error.max_rel, "rms_rel": error.rms_rel} if error else None,
            "match": self.match,
            "expected_loss": self.expected_loss,
            "trials": {"total": 0, "measured": 0, "failed": 0} | dict(champion.trials),
            "record_id": record.id,
            "measured_at": record.measured_at,
            "use": self.use,
            "provisional": self.provisional,
            "stale": self.stale,
            "stale_reason": self.stale_reason,
        }


def _baseline_json(baseline: Record | None) -> dict[str, Any] | None:
    if baseline is None:
        return None
    version = baseline.versions.get("library", "").removeprefix(f"{baseline.kernel} ")
    time_s = baseline.measurement.time_s
    return {"name": baseline.kernel, "version": version, "time_s": time_s, "tflops": baseline.tflops}


@dataclass(frozen=True)
class Question:
    """What a lookup is asked.

    Attributes:
        problem: What is to be computed.
        device: Where.
        regime: How time was taken.
        kernel: Only this kernel; any when empty.
        catalogue: Kernels as they are now; None for the built-in ones.
    """

    problem: ProblemKey
    device: DeviceInfo
    regime: str = "cold"
    kernel: str = ""
    catalogue: Catalogue | None = None

    def __str__(self) -> str:
        kernel = f", kernel {self.kernel}" if self.kernel else ""
        return f"{self.problem} on {self.device.name} ({self.regime}{kernel})"


def answer(
    store: Store,
    problem: ProblemKey,
    device: DeviceInfo | str,
    regime: str = "cold",
    kernel: str | None = None,
    catalogue: Catalogue | None = None,
) -> Answer:
    """Which kernel and config to use.

    Args:
        store: Where records are.
        problem: What is to be computed.
        device: Where; a text is a name such as ``NVIDIA H200`` or a uuid.
        regime: How time was taken.
        kernel: Only this kernel.
        catalogue: Kernels as they are now; the built-in ones when None. Whether a kernel of a user's own
            file has changed is told only for a catalogue that is given: a lookup runs no code that a
            database names.

    Raises:
        NothingFound: No record answers; the message lists the nearest problems and the command to tune this.
        UnknownName: A device name that no record has.
    """
    where = _known_device(store, device) if isinstance(device, str) else device
    question = Question(problem, where, regime, kernel or "", catalogue)
    for tier in _TIERS:
        found = tier(store, question)
        if found is not None:
            stale, why = staleness(found.champion.record, catalogue)
            return replace(found, stale=stale, stale_reason=why)
    raise NothingFound(_nothing(store, question))


def _exact(store: Store, question: Question) -> Answer | None:
    """The champion of this very problem."""
    champion = store.champion(question.problem, question.device, question.regime, question.kernel or None)
    return Answer(champion) if champion else None


def _best_trial(store: Store, question: Question) -> Answer | None:
    """The fastest trial of a study whose finals never came, against the baseline as last measured.

    Kernels as they are now come first. Trials are timed one by one and the best of many is partly luck, so
    its speed is an upper bound.
    """
    of = question.problem, question.device, question.regime
    now = _hashes(question)
    anyhow = {question.kernel: ""} if question.kernel else None
    record = store.best_record(*of, kernels=now) or store.best_record(*of, kernels=anyhow)
    if record is None:
        return None
    baseline = store.best_record(*of, role=Role.BASELINE)
    ours, theirs = record.measurement.time_s, baseline.measurement.time_s if baseline else None
    speedup = theirs / ours if ours and theirs else 0.0
    return Answer(Champion(record, baseline, speedup, "ambiguous", store.counts(*of)), provisional=True)


_TIERS = (_exact, _best_trial)


def _hashes(question: Question) -> dict[str, str]:
    return {
        kernel.name: kernel.source_hash
        for kernel in (question.catalogue or builtin()).kernels
        if kernel.operation == question.problem.operation
        and kernel.target == question.device.kind
        and question.kernel in ("", kernel.name)
    }


def _known_device(store: Store, name: str) -> DeviceInfo:
    """The device of a name in the store, whatever its case, or of a uuid."""
    devices = store.devices()
    if not devices:
        raise NothingFound(f"nothing is tuned yet, so nothing is known of {name!r}; run `tuner tune` first")
    for device in devices:
        if name and name.casefold() in (device.name.casefold(), device.uuid.casefold()):
            return device
    raise UnknownName("device", name, [device.name for device in devices])


def staleness(record: Record, catalogue: Catalogue | None = None) -> tuple[bool | None, str]:
    """Whether the kernel has changed since the record was measured (None: not known), and why.

    Args:
        record: A kernel's record.
        catalogue: Kernels as they are now; the built-in ones when None, which say nothing of a kernel of a
            user's own file.
    """
    if catalogue is None and record.origin:
        return None, f"kernel {record.kernel!r} is declared in {record.origin}, which was not read"
    for kernel in (catalogue or builtin()).kernels:
        named = (kernel.operation, kernel.target, kernel.name)
        if named == (record.problem.operation, record.device.kind, record.kernel):
            if kernel.source_hash == record.source_hash:
                return False, ""
            return True, (
                f"kernel {record.kernel!r} has changed since: its source was {record.source_hash} and is "
                f"{kernel.source_hash}; tune again"
            )
    return True, f"kernel {record.kernel!r} is no longer declared; tune again"


def _nothing(store: Store, question: Question) -> str:
    """Why there is no answer, what is near, and what to do."""
    operation = question.problem.operation
    known = [champion.record for champion in store.champions(operation, question.device)]
    near = _nearest(question.problem, known)
    texts = [f"{record.problem} ({record.regime}, kernel {record.kernel})" for record in near[:_NEIGHBOURS]]
    told = f"the nearest that are: {'; '.join(texts)}" if texts else f"nor is any {operation} on that device"
    declared = question.catalogue and question.catalogue.operations.get(operation)
    origin = str(declared.origin or "") if declared else near[0].origin if near else ""
    command = tune_command(question, origin)
    return f"{question} is not tuned, {told}. Run `{command}`"


def _nearest(problem: ProblemKey, records: list[Record]) -> list[Record]:
    """Nearest first: same dtype and layout, then by the ratios of their dims."""

    def distance(record: Record) -> tuple[int, float, str]:
        other = record.problem
        differs = (other.dtype != problem.dtype) + (other.layout != problem.layout)
        ratios = [abs(math.log(other.dims.get(dim, 1) / size)) for dim, size in problem.shape]
        return differs, sum(ratios), str(other)

    return sorted(records, key=distance)


def tune_command(question: Question, origin: str = "") -> str:
    """The command that would make the lookup answer.

    Args:
        question: What has no answer.
        origin: The user's own file that declares the operation; empty for a built-in one.
    """
    problem = question.problem
    if origin:
        words = ["tuner", "tune", shlex.quote(origin)]
        words += [f"--set {dim}={size}" for dim, size in problem.shape]
    else:
        words = ["tuner", "tune", problem.operation, *(str(size) for _, size in problem.shape)]
    chosen = {
        "--kernel": question.kernel,
        "--device": "cpu" if question.device.kind == "cpu" else "",
        "--dtype": problem.dtype if problem.dtype != "float32" else "",
        "--layout": problem.layout,
        "--regime": question.regime if question.regime != "cold" else "",
    }
    return " ".join([*words, *(f"{option} {value}" for option, value in chosen.items() if value)])
