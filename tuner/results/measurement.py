"""The result of measuring a config: outcome, samples, error, compiler's report. Plain frozen data."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tuner.results.statistics import noise

#: Words in the reason of a failure for lack of memory.
OUT_OF_MEMORY = "out of memory"


def memory_reason(error: MemoryError) -> str:
    """Returns the reason reported for a failed allocation."""
    return f"{OUT_OF_MEMORY}: {error}" if str(error) else OUT_OF_MEMORY


class Outcome(enum.StrEnum):
    """How the measurement of a config ended."""

    MEASURED = "MEASURED"
    INVALID = "INVALID"
    COMPILE_FAILED = "COMPILE_FAILED"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    WRONG_RESULT = "WRONG_RESULT"
    INACCURATE = "INACCURATE"
    TIMED_OUT = "TIMED_OUT"
    CRASHED = "CRASHED"
    PRUNED = "PRUNED"

    @property
    def failed(self) -> bool:
        """True if the config has no valid time and none can be expected."""
        return self not in (Outcome.MEASURED, Outcome.PRUNED)


@dataclass(frozen=True)
class Error:
    """Distance of an output from its float64 reference.

    Attributes:
        max_rel: max |out - ref| / rms(ref).
        rms_rel: ||out - ref|| / ||ref||.
        bound_ratio: max |out - ref| / tolerance; above 1 the result is wrong.
        mean_rel: mean |out - ref| / rms(ref); 0 in older records.
    """

    max_rel: float
    rms_rel: float
    bound_ratio: float
    mean_rel: float = 0.0


@dataclass(frozen=True)
class CompileReport:
    """The compiler's report on a rendered kernel; 0 for what it does not report.

    Attributes:
        registers: 32-bit registers that a thread uses.
        spill_bytes: Bytes that a thread stores to local memory for lack of registers.
        shared_bytes: Static shared memory of a block.
        local_bytes: Stack frame of a thread.
        binary_hash: Hash of the machine code; kernels with equal hashes run alike.
        compiler: Name and version.
        launch_hash: `tuner.declare.kernel.Kernel.launch_hash` of what was measured; empty in older records.
    """

    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    local_bytes: int = 0
    binary_hash: str = ""
    compiler: str = ""
    launch_hash: str = ""


@dataclass(frozen=True)
class Measurement:
    """Everything that is known of a config after its trial.

    Attributes:
        outcome: How it ended.
        reason: Why, for every outcome but MEASURED.
        samples_s: One time per launch, in seconds, in the order of measurement.
        error: Distance from the reference; None if it was not verified.
        compiled: The compiler's report; None if it did not compile.
        stages_s: Seconds spent in ``compile``, ``load``, ``verify`` and ``time``.
        circumstances: Observations while timing: ``sm_clock_hz``, ``temperature_c``, ``power_w``,
            ``throttle_reasons``, ``throttled`` (samples taken again for a low clock), ``occupancy`` (share
            of a multiprocessor's threads that are resident); ``load_1min`` and ``clock_hz`` of a CPU; if energy
            is an objective, ``energy_j`` of one run, from ``power_w`` during back-to-back runs; under an error
            limit, the keys of `tuner.results.error_limit.ErrorLimit`; for finals and baselines, what other
            processes did meanwhile (`tuner.devices.machine_load`); for finals, reasons to doubt them
            (`tuner.results.doubts`).
    """

    outcome: Outcome
    reason: str = ""
    samples_s: tuple[float, ...] = ()
    error: Error | None = None
    compiled: CompileReport | None = None
    stages_s: Mapping[str, float] = field(default_factory=dict)
    circumstances: Mapping[str, float] = field(default_factory=dict)

    @property
    def time_s(self) -> float | None:
        """Median of the samples in seconds; None if there are none."""
        return statistics.median(self.samples_s) if self.samples_s else None

    @property
    def noise(self) -> float:
        """Median absolute deviation over the median, scaled to a normal's standard deviation."""
        return noise(self.samples_s)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a JSON object."""
        return asdict(self) | {"outcome": self.outcome.value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measurement:
        """Reads the output of `to_json`."""
        error, compiled = data.get("error"), data.get("compiled")
        return cls(
            outcome=Outcome(data["outcome"]),
            reason=data.get("reason", ""),
            samples_s=tuple(data.get("samples_s", ())),
            error=Error(**error) if error else None,
            compiled=CompileReport(**compiled) if compiled else None,
            stages_s=dict(data.get("stages_s", {})),
            circumstances=dict(data.get("circumstances", {})),
        )


def under(seen: Mapping[str, float], measured: Iterable[Measurement]) -> list[Measurement]:
    """Adds circumstances to the measurements that were timed."""
    return [
        replace(each, circumstances={**each.circumstances, **seen}) if each.samples_s else each
        for each in measured
    ]


def headline(reason: str) -> str:
    """The line of a reason that says most: Numba's errors begin with one that names a step of its own."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()] or [""]
    kind, step, _ = lines[0].partition("Failed in nopython mode pipeline")
    return (kind + lines[1] if step and len(lines) > 1 else lines[0]).rstrip(": ")
