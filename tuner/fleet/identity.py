"""Whether two machines would do the same: hashes of the code, of the kernels, and of a plan's own files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tuner.declare.folders import kernels_folder
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
