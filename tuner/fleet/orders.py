"""What travels between the coordinator of a night and its workers. Plain data: no kernel, no function.

A problem travels by its name and by the names of its kernels. The worker finds both in its own files, and the
name of the study, which covers the sources, must come out the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tuner.declare import catalogue
from tuner.declare.folders import kernels_folder
from tuner.declare.hardware import DeviceInfo
from tuner.declare.space import Config
from tuner.night.plan import PlanItem
from tuner.night.sentinels import Contender, Pass, Watched
from tuner.night.work import Assignment, Done
from tuner.version import __version__

#: Endings of files that take part in what is measured.
SOURCES = (".py", ".cu", ".cuh", ".h", ".hpp", ".toml")


def identity_of(files: Iterable[str] = ()) -> dict[str, str]:
    """What this machine measures with: name -> version or hash, which is empty for a file that is not there.

    Args:
        files: Absolute paths of users' kernel files. Sources beside one that bear its name, or are shared
            there, are part of it.
    """
    package, kernels = Path(__file__).resolve().parents[1], kernels_folder()
    code = (path for path in package.rglob("*.py") if "kernels" not in path.relative_to(package).parts[:1])
    sources = (path for path in kernels.rglob("*") if path.suffix in SOURCES)
    return {
        "tile-tuner": __version__, "code of tile-tuner": _hash(package, code),
        "built-in kernels": _hash(kernels, sources),
        **{f"kernel file {file}": _hash(Path(file).parent, _beside(Path(file))) for file in sorted(files)},
    }  # fmt: skip


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Says in words how another machine differs; empty if it does not.

    Args:
        ours: The coordinator's `identity_of`.
        theirs: The worker's.
    """
    for name, own in ours.items():
        if theirs.get(name) != own:
            return (
                f"its {name} must be the coordinator's, {own}, got {theirs.get(name) or 'none'}; use the same "
                f"checkout or wheel, and the same kernel files at the same paths"
            )
    return ""


def _beside(file: Path) -> list[Path]:
    """A kernel file, sources that begin with its name, and those that files of its folder share."""
    if not file.is_file():
        return []
    named = (path for path in file.parent.iterdir() if path.suffix in SOURCES)
    return [path for path in named if path.name.startswith((file.stem, "_"))]


def _hash(folder: Path, files: Iterable[Path]) -> str:
    """Hash of names and contents; empty if there are none."""
    sources = sorted(files)
    digest = hashlib.sha256()
    for path in sources:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(folder)} {content}\n".encode())
    return digest.hexdigest()[:16] if sources else ""


@dataclass(frozen=True)
class NamedItem:
    """An item of a plan whose problem and kernels are names.

    Attributes:
        problem: The problem's names; see `tuner.declare.problem.Problem.to_json`.
        item: The item, without problem and catalogue.
    """

    problem: Mapping[str, Any]
    item: PlanItem

    @classmethod
    def of(cls, item: PlanItem) -> NamedItem:
        """Names the problem of an item."""
        nothing: Any = None
        return cls(item.problem.to_json(), replace(item, problem=nothing, catalogue=nothing))

    def resolve(self, catalogues: dict[Path | None, catalogue.Catalogue]) -> PlanItem:
        """Finds the item in this machine's files.

        Args:
            catalogues: File -> what it declares; filled as files are read.

        Raises:
            InputError: The file, the operation or a kernel is not here.
        """
        file = self.item.file
        if file not in catalogues:
            catalogues[file] = catalogue.from_file(file) if file else catalogue.builtin()
        names = dict(self.problem)
        operation = catalogues[file].operation(names.pop("operation"))
        return replace(self.item, problem=operation.problem(**names), catalogue=catalogues[file])


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
        files: Users' kernel files of the night, whose hashes it wants to know.
        database: Where records go.
    """

    files: Sequence[str]
    database: Database


@dataclass(frozen=True)
class WorkerReport:
    """A worker's answer to a greeting.

    Attributes:
        info: The device as the process knows it that opened it.
        versions: Versions of compiler, driver and libraries there.
        complaints: What is wrong with its device or machine; empty if it is well.
        host: Name of its machine.
        identity: Its code, kernels and files; see `identity_of`.
    """

    info: DeviceInfo
    versions: Mapping[str, str]
    complaints: tuple[str, ...] = ()
    host: str = ""
    identity: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Order:
    """A slice, or finals, for a worker.

    Attributes:
        night: Id of the run of the plan.
        claim: Number of the claim under which it is done.
        study: Name of the study, as it must come out on the worker.
        item: The problem.
        work: The work, without item and kernels.
        database: Where records go.
    """

    night: str
    claim: int
    study: str
    item: NamedItem
    work: Assignment
    database: Database

    @classmethod
    def of(cls, work: Assignment, night: str, claim: int, study: str, database: Database) -> Order:
        """Makes an order of a piece of work."""
        nothing: Any = None
        plain = replace(work, item=nothing, kernels=())
        return cls(night, claim, study, NamedItem.of(work.item), plain, database)


@dataclass(frozen=True)
class SentinelOrder:
    """Sentinels for a worker; it answers with a list of them for each pass.

    Attributes:
        problems: What to time: a problem, and who takes part by name, kernel and config.
        passes: Each takes fresh processes.
        limit_s: Seconds after which it has stalled.
    """

    problems: tuple[tuple[NamedItem, tuple[tuple[str, str, Mapping[str, Any]], ...]], ...]
    passes: tuple[Pass, ...]
    limit_s: float

    @classmethod
    def of(cls, problems: Sequence[Watched], passes: Sequence[Pass], limit_s: float) -> SentinelOrder:
        """Names problems and who takes part: kernels never travel."""
        named = []
        for watched in problems:
            problem = watched.problem
            item = PlanItem(problem, catalogue.Catalogue({}, ()), problem.operation.origin, watched.regime)
            contenders = tuple((one.name, one.kernel.name, dict(one.config)) for one in watched.contenders)
            named.append((NamedItem.of(item), contenders))
        return cls(tuple(named), tuple(passes), limit_s)

    def resolve(self, target: str, catalogues: dict[Path | None, catalogue.Catalogue]) -> list[Watched]:
        """Finds the problems in this machine's files.

        Args:
            target: Kind of the device.
            catalogues: As of `NamedItem.resolve`.

        Raises:
            InputError: A problem or kernel is not here.
        """
        resolved = []
        for named, contenders in self.problems:
            item = named.resolve(catalogues)
            operation, names = item.problem.operation.name, tuple(kernel for _, kernel, _ in contenders)
            kernels = {kernel.name: kernel for kernel in item.catalogue.of(operation, target, names)}
            known = (Contender(name, kernels[kernel], Config(config)) for name, kernel, config in contenders)
            resolved.append(Watched(item.problem, item.regime, tuple(known)))
        return resolved


@dataclass(frozen=True)
class WorkAnswer:
    """What came of an order.

    Attributes:
        claim: The order's claim.
        done: What came of it.
        trouble: Why the worker's device or machine is not to be used further; empty if it is well.
    """

    claim: int
    done: Done
    trouble: str = ""
