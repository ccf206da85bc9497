"""Records and champions: what is stored of a trial, with full provenance. Plain frozen data."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tuner.declare.hardware import DeviceInfo
from tuner.results.doubts import doubts
from tuner.results.measurement import Measurement
from tuner.results.statistics import Comparison

if TYPE_CHECKING:
    from tuner.declare.kernel import Kernel
    from tuner.declare.problem import Problem

#: Clocks of two machines may be this far apart.
CLOCKS_APART = timedelta(days=1)
#: How the study begins that measures configs of some shapes at others, for what a lookup would lose.
ELSEWHERE = "missing times of"
#: What stands before the objectives in the name of a study that has several.
OBJECTIVES_OF_STUDY = ", objectives "


#: Number of the rules that results are judged by, and its name in `Record.versions`. Before 2 inputs were not
#: restored before a config nor compared after it: one that wrote into them made others wrong.
VERIFICATION, VERIFICATION_NAME = 2, "verification"


class Role(enum.StrEnum):
    """Why a record was measured."""

    TRIAL = "trial"
    FINAL = "final"
    BASELINE = "baseline"


def new_id() -> str:
    """A fresh UUID as text."""
    return str(uuid.uuid4())


def utc_now() -> str:
    """The present as an ISO 8601 text in UTC, to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def latest_credible() -> str:
    """The latest time of a record that is believed; what is later was told by a clock that stood ahead."""
    return (datetime.now(UTC) + CLOCKS_APART).isoformat(timespec="microseconds")


def rank_in_time(when: str) -> str:
    """Orders texts of `utc_now` by time, those of a time that is not yet come before all others.

    So a champion of a clock that stood years ahead does not reign until then.
    """
    return f"0{when}" if when > latest_credible() else when


@dataclass(frozen=True)
class ProblemKey:
    """What names a problem without its operation's code.

    Attributes:
        operation: Name.
        shape: (dim, value) pairs in the operation's order.
        dtype: Element type.
        layout: Layout or empty.
    """

    operation: str
    shape: tuple[tuple[str, int], ...]
    dtype: str
    layout: str

    @property
    def dims(self) -> dict[str, int]:
        """Shape as a mapping."""
        return dict(self.shape)

    def __str__(self) -> str:
        sizes = " x ".join(str(value) for _, value in self.shape)
        return " ".join(part for part in (self.operation, sizes, self.dtype, self.layout) if part)


@dataclass(frozen=True)
class Record:
    """A stored trial. Records are only ever added.

    Attributes:
        problem: What was computed.
        device: Where.
        regime: How time was taken: ``cold``, ``hot``, ``cold-graph``, ``hot-graph``.
        role: Why it was measured.
        kernel: Kernel's name; the library's for a baseline.
        config: The config; empty for a baseline.
        source_hash: `tuner.declare.kernel.Kernel.source_hash`, as it is today if an equivalent one was stored;
            empty for a baseline.
        measurement: Samples, outcome, error, compiler's report.
        work: ``flops`` and ``bytes`` of one run, so that rates need no operation's code.
        versions: Name -> version of all that took part (tuner, compiler, library, BLAS core type...).
        study: Name of the study.
        session: Id shared by all records of one run of a study; what was interleaved has the same one.
        origin: File that declares the kernel, for a user's own; empty for built-in ones.
        id: UUID.
        measured_at: ISO 8601, UTC.
    """

    problem: ProblemKey
    device: DeviceInfo
    regime: str
    role: Role
    kernel: str
    config: Mapping[str, Any]
    source_hash: str
    measurement: Measurement
    work: Mapping[str, float]
    versions: Mapping[str, str] = field(default_factory=dict)
    study: str = ""
    session: str = ""
    origin: str = ""
    id: str = field(default_factory=new_id)
    measured_at: str = field(default_factory=utc_now)

    @property
    def verification(self) -> int:
        """Number of the rules that the result was judged by."""
        return int(self.versions.get(VERIFICATION_NAME, 1))

    @property
    def tflops(self) -> float:
        """Work over median time; 0 without samples."""
        time_s = self.measurement.time_s
        return self.work["flops"] / time_s / 1e12 if time_s else 0.0

    @property
    def gbps(self) -> float:
        """Bytes that must move over median time, in GB/s; 0 without samples."""
        time_s = self.measurement.time_s
        return self.work["bytes"] / time_s / 1e9 if time_s else 0.0


def measured_as_now(record: Record, kernel: Kernel, problem: Problem) -> bool:
    """Whether a record was measured with what the kernel compiles to and launches for the problem today.

    Args:
        record: A record of the kernel, of any source.
        kernel: The kernel as it is declared now.
        problem: The record's problem.

    Returns:
        False if the source, or the constants or launch for the record's config, have changed. Records from
        before launches were hashed are compared by their source alone.
    """
    if record.source_hash != kernel.source_hash:
        return False
    then = record.measurement.compiled.launch_hash if record.measurement.compiled else ""
    if not then:
        return True
    try:
        return kernel.launch_hash(problem, record.config) == then
    except Exception:  # a launch rule is a user's code, and the config may no longer suit it
        return False


@dataclass(frozen=True)
class Retraction:
    """Says that a record or champion does not count any more, or that an earlier retraction does not.

    It is added, as records are; nothing is deleted. What is taken back is named by UUID, so that databases may
    be merged in any order, and no clock decides: it counts again once every retraction of it is taken back.

    Attributes:
        of: UUID of the record, champion or retraction that is taken back.
        reason: Why, for people; may be empty.
        id: UUID.
        made_at: ISO 8601, UTC.
    """

    of: str
    reason: str = ""
    id: str = field(default_factory=new_id)
    made_at: str = field(default_factory=utc_now)


@dataclass(frozen=True)
class Pair:
    """Two that were timed in the same rounds of the finals.

    Attributes:
        one: Kernel and config, or the library's name.
        other: The same of the other.
        time_s: The other's median in seconds.
        comparison: Of the one with the other: ``faster`` says that the one is.
    """

    one: str
    other: str
    time_s: float
    comparison: Comparison

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a JSON object, those of the comparison beside the others."""
        return {"one": self.one, "other": self.other, "time_s": self.time_s, **asdict(self.comparison)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Pair:
        """Reads what `to_json` wrote."""
        ratio, low, high = (float(data[name]) for name in ("ratio", "low", "high"))
        found = Comparison(ratio, low, high, str(data["verdict"]))
        return cls(str(data["one"]), str(data["other"]), float(data["time_s"]), found)


@dataclass(frozen=True)
class Champion:
    """The record that answers a lookup for a problem, device and regime, with what it was judged by.

    Attributes:
        record: The champion's record from the finals.
        baseline: The baseline's record from the same finals; None where the operation has none.
        speedup: Median of the paired ratios time(baseline) / time(champion); 0 without a baseline.
        verdict: Against the champion before it: ``first``, ``faster``, ``same``, ``slower``, ``ambiguous``.
        trials: ``total``, ``measured``, ``failed`` and a count for each outcome of the study.
        pairs: Every two of the finals, those with the champion first, and the champion with the library told
            to use another core type, which was timed by itself; empty in champions from before they were kept.
        id: UUID.
        crowned_at: ISO 8601, UTC.
    """

    record: Record
    baseline: Record | None
    speedup: float
    verdict: str
    trials: Mapping[str, int]
    pairs: tuple[Pair, ...] = ()
    id: str = field(default_factory=new_id)
    crowned_at: str = field(default_factory=utc_now)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why it is provisional, by the circumstances of its finals; empty where it is not."""
        return doubts(self.record.measurement.circumstances)

    @property
    def hardest(self) -> Pair | None:
        """Its pair with the fastest form of the library: of all numbers of threads and core types.

        None without a library, or where pairs were not kept.
        """
        if self.baseline is None or not self.pairs:
            return None
        own, library = self.pairs[0].one, self.baseline.kernel
        with_library = [
            pair
            for pair in self.pairs
            if pair.one == own and (pair.other == library or pair.other.startswith(f"{library}, "))
        ]
        return min(with_library, key=lambda pair: pair.comparison.ratio, default=None)
