"""Records and champions: stored trials with full provenance. Plain frozen data."""

from __future__ import annotations

import enum
import functools
import tomllib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from tuner.declare.folders import kernels_folder
from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import IEEE, PRECISIONS, worded
from tuner.errors import InputError
from tuner.results import codec
from tuner.results.measurement import KINDS_OF_INPUTS, Comparison, Measurement, doubts

if TYPE_CHECKING:
    from tuner.declare.kernel import Kernel
    from tuner.declare.problem import Operation, Problem

#: The clocks of two machines may differ by this much.
CLOCKS_APART = timedelta(days=1)
#: Prefix of studies that measure configs of some shapes at others, to learn what a lookup would lose.
ELSEWHERE = "missing times of"
#: Prefix of the objectives in the name of a study that has several.
OBJECTIVES_OF_STUDY = ", objectives "


#: Version of the rules by which results are judged, and its name in `Record.versions`. Before version 2, inputs
#: were not restored before a config nor compared after it, so a config that wrote into them made others wrong.
VERIFICATION, VERIFICATION_NAME = 2, "verification"


class Role(enum.StrEnum):
    """Why a record was measured."""

    TRIAL = "trial"
    FINAL = "final"
    BASELINE = "baseline"


def new_id() -> str:
    """Returns a fresh UUID as text."""
    return str(uuid.uuid4())


def checked_id(text: str) -> str:
    """Returns an id in the canonical spelling of UUIDs.

    Raises:
        InputError: It is not a UUID.
    """
    try:
        return str(uuid.UUID(text))
    except (ValueError, AttributeError, TypeError):
        raise InputError(
            f"a record is named by its id, a UUID such as {uuid.UUID(int=0)}, got {text!r}; `tuner records "
            f"list` shows ids in its last column"
        ) from None


#: A UUID, in its canonical spelling wherever it is stored.
Id = Annotated[str, checked_id]


def utc_now() -> str:
    """Returns the present time as ISO 8601 text in UTC, to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def latest_credible() -> str:
    """Returns the latest credible time of a record; a later one came from a clock that was ahead."""
    return (datetime.now(UTC) + CLOCKS_APART).isoformat(timespec="microseconds")


def rank_in_time(when: str) -> str:
    """Sort key for texts of `utc_now`: by time, with times in the future before all others.

    So a champion dated by a clock that was years ahead does not reign until then.
    """
    return f"0{when}" if when > latest_credible() else when


@dataclass(frozen=True)
class ProblemKey:
    """Identity of a problem, without its operation's code.

    Attributes:
        operation: Name.
        shape: (dim, value) pairs in the operation's order.
        dtype: Element type.
        layout: Layout or empty.
        precision: One of `tuner.declare.problem.PRECISIONS`.
        epilogue: `tuner.declare.epilogue.Epilogue.text`; empty for none.
    """

    operation: str
    shape: tuple[tuple[str, int], ...]
    dtype: str
    layout: str
    precision: str = IEEE
    epilogue: str = ""

    @classmethod
    def of(cls, problem: Problem) -> ProblemKey:
        """The key of a problem."""
        return cls(
            problem.operation.name, problem.shape, problem.dtype, problem.layout, problem.precision,
            problem.epilogue,
        )  # fmt: skip

    def of_operation(self, operation: Operation) -> Problem:
        """The problem of a declared operation that the key names.

        Raises:
            UnknownName: The operation has no such dim, dtype or layout; no such precision or epilogue.
            InputError: A dim is missing or below 1; precision or epilogue are not for it.
        """
        return operation.problem(self.dims, self.dtype, self.layout, self.precision, self.epilogue)

    def to_json(self) -> dict[str, Any]:
        """Returns the key as it is stored."""
        return {
            "operation": self.operation, "shape": [list(pair) for pair in self.shape], "dtype": self.arithmetic,
            "layout": self.layout,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProblemKey:
        """Reads the output of `to_json`."""
        texts = [data[name] for name in ("operation", "dtype", "layout")]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"operation, dtype and layout of a problem are texts, got {texts}")
        shape = tuple((str(dim), int(size)) for dim, size in data["shape"])
        dtype, *words = texts[1].split(" ")  # as `arithmetic`
        precision = next((word for word in words if word in PRECISIONS), IEEE)
        epilogue = next((word for word in words if word not in PRECISIONS), "")
        return cls(texts[0], shape, dtype, texts[2], precision, epilogue)

    @property
    def arithmetic(self) -> str:
        """Dtype, precision and epilogue as one text, as it is stored: ``float32``, ``float32 emulated``.

        The usual precision and no epilogue are not told: records and sums of before there were others say the
        same, and a version that knows no other takes ``float32 emulated`` for a dtype that it does not have.
        """
        words = (self.dtype, "" if self.precision == IEEE else self.precision, self.epilogue)
        return " ".join(word for word in words if word)

    @property
    def told_epilogue(self) -> dict[str, str]:
        """The epilogue as a field of JSON; no field where there is none, as before there were any."""
        return {"epilogue": self.epilogue} if self.epilogue else {}

    def as_keys(self) -> dict[str, Any]:
        """The key as fields of a JSON object for users."""
        return {
            "operation": self.operation, "shape": self.dims, "dtype": self.dtype, "layout": self.layout,
            "precision": self.precision, **self.told_epilogue,
        }  # fmt: skip

    @property
    def plain(self) -> ProblemKey:
        """The same without an epilogue."""
        return replace(self, epilogue="") if self.epilogue else self

    @property
    def dims(self) -> dict[str, int]:
        """Shape as a mapping."""
        return dict(self.shape)

    def __str__(self) -> str:
        sizes = " x ".join(str(value) for _, value in self.shape)
        return worded(self.operation, sizes, self.dtype, self.layout, self.precision, self.epilogue)


def rows_study(problem: ProblemKey, device: str, regime: str, dim: str) -> str:
    """Names the study of a device's configs whose rows do not depend on a dim, which counts them."""
    sizes = " x ".join(dim if name == dim else str(size) for name, size in problem.shape)
    words = worded(problem.operation, sizes, problem.dtype, problem.layout, problem.precision, problem.epilogue)
    return f"rows of {words} on {device}, {regime}"


@dataclass(frozen=True)
class Record:
    """A stored trial. Records are only ever added.

    Attributes:
        problem: The problem that was solved.
        device: The device that measured it.
        regime: How times were taken: ``cold``, ``hot``, ``cold-graph``, ``hot-graph``.
        role: Why it was measured.
        kernel: Name of the kernel, or of the library for a baseline.
        config: The config; empty for a baseline.
        source_hash: `tuner.declare.kernel.Kernel.source_hash`, as it is today if an equivalent one was stored;
            empty for a baseline.
        measurement: Samples, outcome, error, compiler's report.
        work: ``flops`` and ``bytes`` of one run, so that rates need no operation's code.
        versions: Name -> version of everything involved (tuner, compiler, library, BLAS core type...).
        study: Name of the study.
        session: Id shared by all records of one run of a study; interleaved measurements have the same one.
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
    id: Id = field(default_factory=new_id)
    measured_at: str = field(default_factory=utc_now)

    @property
    def fallback(self) -> str:
        """The plain kernel behind a kernel that may refuse inputs, with its config; empty for the declared one.

        One that was not tested at all kinds of inputs does not count.
        """
        is_tested = KINDS_OF_INPUTS in self.measurement.circumstances
        return self.versions.get("fallback", "") if is_tested else ""

    @property
    def verification(self) -> int:
        """Version of the rules by which the result was judged."""
        return int(self.versions.get(VERIFICATION_NAME, 1))

    @property
    def tflops(self) -> float:
        """Work over median time, in TFLOPS; 0 without samples."""
        time_s = self.measurement.time_s
        return self.work["flops"] / time_s / 1e12 if time_s else 0.0

    @property
    def gbps(self) -> float:
        """Bytes that must move over median time, in GB/s; 0 without samples."""
        time_s = self.measurement.time_s
        return self.work["bytes"] / time_s / 1e9 if time_s else 0.0


def measured_as_now(record: Record, kernel: Kernel, problem: Problem) -> bool:
    """True if the kernel still compiles to the code that the record measured, and launches it the same way.

    Args:
        record: A record of the kernel, from any version of its source.
        kernel: The kernel as declared now.
        problem: The record's problem.

    Returns:
        False if the source has changed, or the constants or launch for the record's config. Older records
        without a hash of the launch are compared by source alone.
    """
    if record.source_hash != kernel.source_hash:
        return False
    then = record.measurement.compiled.launch_hash if record.measurement.compiled else ""
    if not then:
        return True
    try:
        return kernel.launch_hash(problem, record.config) == then
    except Exception:  # a launch rule is user code, and the config may no longer suit it
        return False


@dataclass(frozen=True)
class Retraction:
    """States that a record, a champion or an earlier retraction no longer counts.

    It is added like a record; nothing is deleted. Its target is named by UUID, so that databases can be merged
    in any order and no clock decides. The target counts again once every retraction of it is taken back.

    Attributes:
        of: UUID of the record, champion or retraction that no longer counts.
        reason: Reason in words; may be empty.
        id: UUID.
        made_at: ISO 8601, UTC.
    """

    of: Id
    reason: str = ""
    id: Id = field(default_factory=new_id)
    made_at: str = field(default_factory=utc_now)


@dataclass(frozen=True)
class Pair:
    """Two finalists, or one and a library, timed in the same rounds of the finals.

    Attributes:
        one: Kernel and config, or the library's name.
        other: Kernel and config of the other, or the library's name.
        time_s: The other's median in seconds.
        comparison: How `one` compares with `other`: ``faster`` means that `one` is faster.
    """

    one: str
    other: str
    time_s: float
    comparison: Comparison

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a JSON object, with the comparison's fields at the same level."""
        return {"one": self.one, "other": self.other, "time_s": self.time_s, **codec.to_json(self.comparison)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Pair:
        """Reads what `to_json` wrote."""
        comparison = codec.from_json(Comparison, data)
        return cls(str(data["one"]), str(data["other"]), float(data["time_s"]), comparison)


@dataclass(frozen=True)
class Champion:
    """The record that answers a lookup for a problem, device and regime, with the evidence for it.

    Attributes:
        record: The champion's record from the finals.
        baseline: The baseline's record from the same finals; None if the operation has no baseline.
        speedup: Median of the paired ratios time(baseline) / time(champion); 0 without a baseline.
        verdict: Comparison with the previous champion: ``first``, ``faster``, ``same``, ``slower``,
            ``ambiguous``.
        trials: ``total``, ``measured``, ``failed`` and a count for each outcome of the study.
        pairs: All pairs of the finals, those with the champion first; also the champion with the library set to
            another core type, which was timed separately. Empty in older champions.
        id: UUID.
        crowned_at: ISO 8601, UTC.
    """

    record: Record
    baseline: Record | None
    speedup: float
    verdict: str
    trials: Mapping[str, int]
    pairs: tuple[Pair, ...] = ()
    id: Id = field(default_factory=new_id)
    crowned_at: str = field(default_factory=utc_now)

    @property
    def place(self) -> tuple[Any, ...]:
        """What a present champion is unique for, in the order in which champions are listed."""
        record = self.record
        problem, device = record.problem, record.device
        shape = tuple(value for _, value in problem.shape)
        return (
            problem.operation, problem.arithmetic, problem.layout, shape, record.regime, device.kind,
            device.name,
        )  # fmt: skip

    @property
    def doubts(self) -> tuple[str, ...]:
        """Reasons why it is provisional, from the circumstances of its finals; empty if it is not."""
        return doubts(self.record.measurement.circumstances)

    def as_keys(self) -> dict[str, Any]:
        """Its kernel, config and figures as JSON, without its problem and device."""
        record = self.record
        return {
            "kernel": record.kernel, "config": dict(record.config), "time_s": record.measurement.time_s,
            "tflops": record.tflops, "gbps": record.gbps, "speedup": self.speedup or None, "leads": self.leads,
            "provisional_reasons": list(self.doubts), "record_id": record.id, "bits": record.measurement.bits,
        }  # fmt: skip

    @property
    def own_pairs(self) -> list[Pair]:
        """Those of the champion with others; none if pairs were not kept."""
        return [pair for pair in self.pairs if pair.one == self.pairs[0].one]

    @property
    def hardest(self) -> Pair | None:
        """The pair with the library in its fastest form, over all numbers of threads and core types.

        None if there is no library, or if pairs were not kept.
        """
        library = self.baseline.kernel if self.baseline else ""
        of_it = [pair for pair in self.own_pairs if library and f"{pair.other}, ".startswith(f"{library}, ")]
        return min(of_it, key=lambda pair: pair.comparison.ratio, default=None)

    @property
    def library_best(self) -> Pair | None:
        """The pair with the fastest of the library's own algorithms, which it runs only if asked to.

        None if none of them played, or if pairs were not kept.
        """
        from tuner.declare.language import languages  # it loads NumPy

        libraries = tuple(name for name, language in languages().items() if language.is_library)
        own = [pair for pair in self.own_pairs if pair.other.startswith(libraries)]
        return min(own, key=lambda pair: pair.comparison.ratio, default=None)

    @property
    def leads(self) -> str:
        """Its speed-ups over the library by itself and at its best, for people; empty without one."""
        best = self.library_best
        named = [(self.speedup, self.baseline.kernel)] if self.baseline and self.speedup else []
        named += [(best.comparison.ratio, f"the best of {best.other.split()[0]}")] if best else []
        return ", ".join(f"{ratio:.3f} x {name}" for ratio, name in named)


class Subject(NamedTuple):
    """What times are of, whatever the shape.

    Attributes:
        operation: Name.
        dtype: Element type, and the precision behind it if it is not the usual one (`ProblemKey.arithmetic`).
        kind: Of the device: ``cuda`` or ``cpu``.
        regime: How time was taken.
        device: Name of the device; any when empty.
    """

    operation: str
    dtype: str
    kind: str
    regime: str
    device: str = ""


@dataclass(frozen=True)
class Wanted:
    """How often a problem was asked on a device without an exact answer.

    Attributes:
        problem: The problem.
        kind: Of the device: ``cuda`` or ``cpu``.
        device: Its name.
        match: What the last answer rested on: ``predicted``, ``similar-device``, ``default`` ...; empty without
            one.
        calls: How often.
        saves_s: Seconds that tuning is predicted to save of these calls.
        first_at: When it was first asked, ISO 8601 in UTC; empty for counts that were not written yet.
        last_at: When it was last asked.
    """

    problem: ProblemKey
    kind: str
    device: str
    match: str
    calls: int
    saves_s: float
    first_at: str = ""
    last_at: str = ""

    def to_json(self) -> dict[str, Any]:
        """The fields, the problem's among them."""
        return {
            **self.problem.as_keys(), "device": {"name": self.device, "kind": self.kind}, "match": self.match,
            **self.counts(), "first_at": self.first_at, "last_at": self.last_at,
        }  # fmt: skip

    def counts(self) -> dict[str, Any]:
        """Calls and seconds alone."""
        return {"calls": self.calls, "saves_s": self.saves_s}


# --- source hashes that stand for the same machine code ---

#: A table for each kernel, in the folder of kernels: an older source hash and the hash that replaced it.
#: A pair needs a proof (``scripts/equivalents``): for the published configs and for random ones, the
#: rendered sources have the same tokens and launch, or compile to the same machine code. The table is applied
#: whenever a record is read, so records that arrive later profit, too.
EQUIVALENT_SOURCES = "equivalent_sources.toml"


@functools.cache
def _successors() -> Mapping[str, str]:
    """Older hash -> the hash that replaced it; empty if there is no table."""
    path = kernels_folder() / EQUIVALENT_SOURCES
    if not path.is_file():
        return {}
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return {old: new for table in tables.values() for old, new in table.items()}


@functools.cache
def latest_hash(source_hash: str) -> str:
    """Returns the hash of a kernel's source today if it is proven equivalent, else the hash itself."""
    known = {source_hash}
    while (after := _successors().get(source_hash)) is not None and after not in known:
        known.add(after)
        source_hash = after
    return source_hash


@functools.cache
def equivalent_hashes(source_hash: str) -> tuple[str, ...]:
    """Returns all hashes that stored records of this source may have, including its own."""
    latest = latest_hash(source_hash)
    older = {old for old in _successors() if latest_hash(old) == latest}
    return tuple(sorted({source_hash, latest, *older}))
