"""What a lookup is asked, and what it answers."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import IEEE, Problem
from tuner.declare.space import Config
from tuner.devices.detect import kind_of
from tuner.errors import TunerError
from tuner.results.measurement import VARIES, complaints
from tuner.results.objectives import KEEP, LIBRARY_BITS, told
from tuner.results.record import Champion, Pair, ProblemKey, Record

#: How near the record of an answer is to the question.
EXACT, PREDICTED, SIMILAR_DEVICE, DEFAULT = "exact", "predicted", "similar-device", "default"
#: The same where rows must have the same bits however many there are: a config of a set of one class of rows.
INVARIANT = "invariant"
#: Loss told where none could be measured: all that can be said is that it is no more.
UNMEASURED = 1.0
#: Loss that is reckoned with where none could be measured.
RECKONED = 0.2


@dataclass(frozen=True)
class Question:
    """What a lookup is asked.

    Attributes:
        problem: What is to be computed.
        device: Where.
        regime: How time was taken.
        kernel: Only this kernel; any when empty.
        catalogue: Kernels as they are now; None for the built-in ones.
        confirmed: True for champions only that won again in a fresh process, or were published.
        invariant: Dim whose size must not change the bits of a row; empty for none.
    """

    problem: ProblemKey
    device: DeviceInfo
    regime: str = "cold"
    kernel: str = ""
    catalogue: Catalogue | None = None
    confirmed: bool = False
    invariant: str = ""

    def __str__(self) -> str:
        kernel = f", kernel {self.kernel}" if self.kernel else ""
        rows = f", invariant by {self.invariant}" if self.invariant else ""
        return f"{self.problem} on {self.device.name} ({self.regime}{kernel}{rows})"


@dataclass(frozen=True)
class Loss:
    """What answers of a tier have cost on known records.

    Attributes:
        expected: Fraction of speed; `UNMEASURED` where it was not measured.
        cases: Known problems that were left out and asked for.
        said: What the figure rests on, or why there is none, for people.
        interval: What four of five such answers lose at the least and at the most; None where that is unknown.
    """

    expected: float = 0.0
    cases: int = 0
    said: str = "measured for this very problem"
    interval: tuple[float, float] | None = None


def reckoned(loss: Loss) -> float:
    """A loss as measured, or as it may well be where it was not."""
    return RECKONED if loss.expected >= UNMEASURED else loss.expected


@dataclass(frozen=True)
class Predicted:
    """What a model says of an answer.

    Attributes:
        kernel_s: Predicted seconds of the kernel that is named.
        library_s: The same of the library; None where there is none.
        interval_s: Seconds of what is answered: the interval that holds four of five; None where no time of the
            device supports one.
    """

    kernel_s: float
    library_s: float | None
    interval_s: tuple[float, float] | None

    @property
    def speedup(self) -> float:
        """Of the kernel over the library; 0 without one."""
        return self.library_s / self.kernel_s if self.library_s else 0.0

    def to_json(self) -> dict[str, Any]:
        """Seconds."""
        return {
            "kernel_time_s": self.kernel_s, "library_time_s": self.library_s,
            "time_interval_s": list(self.interval_s) if self.interval_s else None,
        }  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """What a lookup found.

    Attributes:
        champion: The problem's champion, with the library's record beside it; None unless it is ``exact``.
        match: What the answer rests on: ``exact``, ``predicted``, ``similar-device``, ``default`` or
            ``invariant``.
        loss: Fraction of speed that such an answer costs, as measured at problems left out.
        provisional: True where finals were never held and the best trial answers.
        stale: True where kernel, compiler or driver have changed since it was measured; None where that is
            not known.
        stale_reason: Why it is stale, or why that is not known.
        question: What was asked; None where the answer is that of its own record.
        default: Kernel and config where there is no record.
        predicted: What a model says; None where none was asked.
        library: Name of the library where it is expected to be faster; empty to go by the record's speed-up.
        reasons: Why this config, and why the library where it is that; for people.
    """

    champion: Champion | None
    match: str = EXACT
    loss: Loss = field(default_factory=Loss)
    provisional: bool = False
    stale: bool | None = False
    stale_reason: str = ""
    question: Question | None = None
    default: tuple[str, Config] = ("", Config({}))
    library: str = ""
    reasons: tuple[str, ...] = ()
    predicted: Predicted | None = None

    @property
    def record(self) -> Record | None:
        """The record that the answer comes from; None for ``default``."""
        return self.champion.record if self.champion else None

    @property
    def kernel(self) -> str:
        """Name of the kernel."""
        return self.champion.record.kernel if self.champion is not None else self.default[0]

    @property
    def config(self) -> Mapping[str, Any]:
        """A config of the kernel that is legal for the problem and device that were asked for."""
        return self.champion.record.config if self.champion is not None else self.default[1]

    @property
    def expected_loss(self) -> float:
        """Measured fraction of speed that such an answer costs; 0 for ``exact``, 1 where nothing is known."""
        return self.loss.expected

    @property
    def speedup(self) -> float:
        """Of the kernel over the library, by the record or the model; 0 where that is unknown."""
        if self.champion is not None:
            return self.champion.speedup
        return self.predicted.speedup if self.predicted is not None else 0.0

    @property
    def use(self) -> str:
        """``kernel``, or the library's name where the library is faster."""
        if self.library:
            return self.library
        if self.champion is None or self.champion.baseline is None or self.match != EXACT:
            return "kernel"
        return self.champion.baseline.kernel if 0 < self.champion.speedup < 1 else "kernel"

    def keeps(self, bits: str) -> bool:
        """Whether it is the problem's own champion with bits as `tuner.results.objectives.read_bits` reads."""
        if self.match != EXACT or self.champion is None:
            return False
        own, library = self.champion.record.measurement.bits, self.champion.baseline
        asked = (library.measurement.bits if library else "") if bits == LIBRARY_BITS else bits
        return bits in ("", KEEP) or own == asked not in ("", VARIES)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the figures are provisional; empty where they are not."""
        held = ("the study's finals were not held",) if self.provisional else ()
        return (*held, *(self.champion.doubts if self.champion else ()))

    @property
    def age_days(self) -> float | None:
        """Days since the record was measured; None without a record."""
        if self.champion is None:
            return None
        measured = datetime.fromisoformat(self.champion.record.measured_at)
        return max(0.0, (datetime.now(UTC) - measured).total_seconds() / 86400)

    def to_json(self) -> dict[str, Any]:
        """The answer as `best --json` prints it: seconds, TFLOPS, GB/s; ratios as fractions.

        Problem and device are those that were asked for. The figures are the record's, of the problem and
        device under ``record``; null where there is no record.
        """
        age, champion, record, asked = self.age_days, self.champion, self.record, self.question or self.record
        assert asked is not None, "an answer without a question is that of a record"
        place = _place_json(asked.problem, asked.device, asked.regime)
        own = _place_json(record.problem, record.device, record.regime) if record else {}
        pair, best = (champion.hardest, champion.library_best) if champion else (None, None)
        trials = {"total": 0, "measured": 0, "failed": 0} | dict(champion.trials if champion else {})
        return {
            **place, "kernel": self.kernel, "config": dict(self.config), **_figures(champion),
            "match": self.match, "expected_loss": self.expected_loss, "trials": trials,
            "record_id": record.id if record else "", "measured_at": record.measured_at if record else "",
            "use": self.use, "pairs": [pair.to_json() for pair in champion.pairs] if champion else [],
            "provisional": bool(self.doubts), "stale": self.stale, "stale_reason": self.stale_reason,
            "age_days": None if age is None else round(age, 3),
            "expected_loss_interval": list(self.loss.interval) if self.loss.interval else None,
            "loss_cases": self.loss.cases, "loss_said": self.loss.said, "reasons": list(self.reasons),
            "record": {name: own[name] for name in ("shape", "layout", "device", "regime")} if own else None,
            "error_limit": told(record.measurement) if record else None,
            "bits": record.measurement.bits if record else "",
            **({"rows": record.measurement.rows} if record and record.measurement.rows else {}),
            # The fastest form of the library that the champion was compared with; null where that is not kept.
            "hardest": _of_pair(pair),
            # The fastest of the library's own algorithms, which it runs only if asked to.
            "library_best": _of_pair(best),
            "provisional_reasons": list(self.doubts),
            "busy": list(complaints(record.measurement.circumstances, record.device.cores)) if record else [],
            "precision": asked.problem.precision,
            "predicted": self.predicted.to_json() if self.predicted else None, **asked.problem.told_epilogue,
        }  # fmt: skip


def _place_json(problem: ProblemKey, device: DeviceInfo, regime: str) -> dict[str, Any]:
    return {
        "operation": problem.operation, "shape": problem.dims, "dtype": problem.dtype, "layout": problem.layout,
        "device": {"name": device.name, "kind": device.kind}, "regime": regime,
    }  # fmt: skip


def _of_pair(pair: Pair | None) -> dict[str, Any] | None:
    return {"name": pair.other, "time_s": pair.time_s, "speedup": pair.comparison.ratio} if pair else None


def _figures(champion: Champion | None) -> dict[str, Any]:
    if champion is None:
        return dict.fromkeys(("time_s", "noise", "tflops", "gbps", "baseline", "speedup", "error"))
    record, baseline, told_baseline = champion.record, champion.baseline, None
    measurement, error = record.measurement, record.measurement.error
    if baseline is not None:
        threads = baseline.measurement.circumstances.get("threads")
        told_baseline = {
            "name": baseline.kernel,
            "version": baseline.versions.get("library", "").removeprefix(f"{baseline.kernel} "),
            "time_s": baseline.measurement.time_s, "tflops": baseline.tflops,
            **({} if threads is None else {"threads": int(threads)}),
            **({"bits": baseline.measurement.bits} if baseline.measurement.bits else {}),
        }  # fmt: skip
    return {
        "time_s": measurement.time_s, "noise": measurement.noise, "tflops": record.tflops, "gbps": record.gbps,
        "baseline": told_baseline,
        # 0 says that nothing was compared: no library, or one that could not be timed.
        "speedup": champion.speedup or None,
        "error": {"max_rel": error.max_rel, "rms_rel": error.rms_rel} if error else None,
        **({"in_programs": measurement.states} if measurement.states else {}),
    }  # fmt: skip


def declared_problem(question: Question, catalogue: Catalogue) -> Problem | None:
    """The problem that a question is about; None where its operation is not declared like that."""
    operation = catalogue.operations.get(question.problem.operation)
    try:
        return question.problem.of_operation(operation) if operation is not None else None
    except TunerError:
        return None


def tune_command(question: Question, origin: str = "") -> str:
    """The command that would make the lookup answer from a record of the problem itself.

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
    usual = {"dtype": "float32", "precision": IEEE, "regime": "cold"}
    chosen = {
        "kernel": question.kernel,
        "device": question.device.kind if kind_of(question.device.kind).is_host else "",
        **{name: getattr(problem, name) for name in ("dtype", "layout", "precision", "epilogue")},
        "regime": question.regime, "invariant": question.invariant,
    }  # fmt: skip
    options = (f"--{name} {value}" for name, value in chosen.items() if value not in ("", usual.get(name)))
    return " ".join([*words, *options])
