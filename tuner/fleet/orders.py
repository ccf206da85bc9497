"""What travels between the coordinator of a night and its workers. Plain data: no kernel, no function.

A problem travels by its name and by the names of its kernels. The worker finds both in its own files, and the
name of the study, which covers the sources, must come out the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.declare import catalogue
from tuner.declare.catalogue import Catalogue
from tuner.declare.folders import kernels_folder
from tuner.declare.hardware import DeviceInfo
from tuner.night.plan.items import PlanItem
from tuner.night.work import Done, Work
from tuner.results.measurement import Measurement
from tuner.results.sentinel import Terms
from tuner.version import __version__

#: Endings of files that take part in what is measured.
SOURCES = (".py", ".cu", ".cuh", ".h", ".hpp", ".toml")


@dataclass(frozen=True)
class Identity:
    """The code on a machine.

    Attributes:
        version: Version of tile-tuner.
        code: Hash of its modules.
        kernels: Hash of the built-in kernels.
        files: Path of a user's file -> hash of the sources beside it that bear its name, or are shared there.
    """

    version: str
    code: str
    kernels: str
    files: tuple[tuple[str, str], ...] = ()


def identity_of(files: Iterable[str] = ()) -> Identity:
    """Reads the identity of this machine.

    Args:
        files: Absolute paths of users' kernel files.
    """
    package = Path(__file__).resolve().parents[1]
    code = [path for path in package.rglob("*.py") if "kernels" not in path.relative_to(package).parts[:1]]
    kernels = kernels_folder()
    own = tuple((file, _hash(Path(file).parent, _beside(Path(file)))) for file in sorted(set(files)))
    return Identity(__version__, _hash(package, code), _hash(kernels, _sources(kernels)), own)


def difference(ours: Identity, theirs: Identity) -> str:
    """Says in words how another machine differs; empty if it does not.

    Args:
        ours: The coordinator's.
        theirs: The worker's.
    """
    if ours.version != theirs.version:
        return f"it has tile-tuner {theirs.version}, the coordinator {ours.version}; install the same version"
    if ours.code != theirs.code:
        return "its code of tile-tuner is another, of the same version; use the same checkout or wheel"
    if ours.kernels != theirs.kernels:
        return "its built-in kernels are others; use the same checkout or wheel"
    there = dict(theirs.files)
    for file, digest in ours.files:
        if not there.get(file):
            return f"it has no kernel file {file}; put the same one at the same path"
        if there[file] != digest:
            return f"its kernel file {file}, or a source beside it, is another; put the same one there"
    return ""


def _sources(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in SOURCES]


def _beside(file: Path) -> list[Path]:
    """A kernel file, sources that begin with its name, and those that files of its folder share."""
    if not file.is_file():
        return []
    named = (path for path in file.parent.iterdir() if path.suffix in SOURCES)
    return [path for path in named if path.name.startswith((file.stem, "_"))]


def _hash(folder: Path, files: Iterable[Path]) -> str:
    """Hash of names and contents; empty if there are none."""
    found = sorted(files)
    if not found:
        return ""
    digest = hashlib.sha256()
    for path in found:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(folder)} {content}\n".encode())
    return digest.hexdigest()[:16]


#: Environment variable of a study process with the URL by which its machine reaches the database.
DATABASE_VARIABLE = "TUNER_WORKER_DB"


@dataclass(frozen=True)
class ItemTold:
    """An item of a plan by its names; see `tuner.night.plan.items.PlanItem`."""

    operation: str
    file: str
    shape: Mapping[str, int]
    dtype: str
    layout: str
    precision: str
    epilogue: str
    regime: str
    kernels: tuple[str, ...]
    trials: int | None
    objectives: tuple[str, ...]
    error_limit: float | None

    @classmethod
    def of(cls, item: PlanItem) -> ItemTold:
        """Names an item."""
        problem = item.problem
        return cls(
            problem.operation.name, str(item.file or ""), dict(problem.shape), problem.dtype, problem.layout,
            problem.precision, problem.epilogue, item.regime, item.kernels, item.trials, item.objectives,
            item.error_limit,
        )  # fmt: skip

    def found(self, known: dict[str, Catalogue]) -> PlanItem:
        """Finds the item in this machine's files.

        Args:
            known: File -> what it declares; filled as files are read.

        Raises:
            InputError: The file, the operation or a kernel is not here.
        """
        if self.file not in known:
            known[self.file] = catalogue.from_file(Path(self.file)) if self.file else catalogue.builtin()
        declared = known[self.file]
        problem = declared.operation(self.operation).problem(
            dict(self.shape), self.dtype, self.layout, self.precision, self.epilogue
        )  # fmt: skip
        return PlanItem(
            problem, declared, Path(self.file) if self.file else None, self.regime, self.kernels, None,
            self.trials, self.objectives, self.error_limit,
        )  # fmt: skip


@dataclass(frozen=True)
class Database:
    """Where a worker's records go.

    Attributes:
        identity: UUID of the coordinator's database.
        url: The same database, as workers reach it.
    """

    identity: str
    url: str


@dataclass(frozen=True)
class Greeting:
    """A coordinator's first words to a worker.

    Attributes:
        night: Id of the run of the plan.
        identity: The coordinator's code, kernels and files.
        database: Where records go.
    """

    night: str
    identity: Identity
    database: Database


@dataclass(frozen=True)
class Report:
    """A worker's answer to a greeting.

    Attributes:
        host: Name of its machine.
        spec: The device there: ``cuda:0``.
        info: The device.
        versions: Versions of compiler, driver and libraries there.
        identity: Its code, kernels and files.
        complaints: What is wrong with its device or machine; empty if it is well.
    """

    host: str
    spec: str
    info: DeviceInfo
    versions: Mapping[str, str]
    identity: Identity
    complaints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Order:
    """A slice, or finals, for a worker.

    Attributes:
        night: Id of the run of the plan.
        claim: Number of the claim under which it is done.
        study: Name of the study, as it must come out on the worker.
        item: The problem.
        name: The problem's, unique in the night.
        turn: See `tuner.night.work.Work`, as for the following ones.
        parts: Seconds of each part.
        why: For finals, why the search ended.
        seconds: Seconds of the study from its opening on.
        finals_s: Seconds kept for the finals.
        library: The library's measurement on this board.
        seed: Seed of the search.
        sampler: Name of the search strategy.
        storage_url: Database for Optuna's tables.
        database: Where records go.
    """

    night: str
    claim: int
    study: str
    item: ItemTold
    name: str
    turn: int
    parts: tuple[float, ...]
    why: str
    seconds: float | None
    finals_s: float
    library: Measurement | None
    seed: int
    sampler: str
    storage_url: str | None
    database: Database

    @classmethod
    def of(cls, work: Work, night: str, claim: int, study: str, database: Database) -> Order:
        """Makes an order of a piece of work."""
        return cls(
            night, claim, study, ItemTold.of(work.item), work.name, work.turn, work.parts, work.why,
            work.seconds, work.finals_s, work.library, work.seed, work.sampler, work.storage_url, database,
        )  # fmt: skip


#: A problem, and who takes part: name, kernel and config.
Told = tuple[ItemTold, tuple[tuple[str, str, Mapping[str, Any]], ...]]


@dataclass(frozen=True)
class WatchOrder:
    """Sentinels for a worker; it answers with a list of them for each pass.

    Attributes:
        night: Id of the run of the plan.
        problems: What to time.
        passes: The fields of `tuner.night.sentinels.Pass`, for each pass.
        limit_s: Seconds after which it has stalled.
    """

    night: str
    problems: tuple[Told, ...]
    passes: tuple[tuple[str, int, Terms, int], ...]
    limit_s: float


@dataclass(frozen=True)
class Answer:
    """What came of an order.

    Attributes:
        claim: The order's claim.
        done: What came of it.
        trouble: Why the worker's device or machine is not to be used further; empty if it is well.
        seconds: Seconds that the worker was busy with it.
    """

    claim: int
    done: Done = field(default_factory=Done)
    trouble: str = ""
    seconds: float = 0.0
