"""Runs files of declarations as modules that can import the files beside them.

While its files run, a folder of declarations is a package of its own: ``from ._operands import along_k``
finds ``_operands.py`` beside the file. Modules are compiled from the files' bytes, never from Python's bytecode
cache, which can miss an edit made within a second.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType

from tuner.errors import DeclarationError

#: The names of packages of declarations begin with this.
PREFIX = "tuner_declared_"

#: Package -> folder, for every folder from which declarations were loaded.
_FOLDERS: dict[str, Path] = {}
#: Held while declarations run: two threads must not drop each other's modules.
_LOADING = threading.RLock()


class _Reading(threading.local):
    """Files of declarations that this thread is running, the innermost last."""

    def __init__(self) -> None:
        self.files: list[Path] = []


_READING = _Reading()


def being_read() -> Path | None:
    """The file of declarations that calls this, directly or through others, while it is read."""
    return _READING.files[-1] if _READING.files else None


class _FileLoader(Loader):
    """Runs a module from the bytes of its file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def exec_module(self, module: ModuleType) -> None:
        """Compiles and runs the file as it is now."""
        exec(_compiled(self._path.read_bytes(), str(self._path)), vars(module))


@functools.lru_cache(256)
def _compiled(text: bytes, path: str) -> CodeType:
    """The code of a file with these bytes, which takes most of the time of reading declarations."""
    return compile(text, path, "exec", dont_inherit=True)


class _FolderLoader(Loader):
    """Makes the package of a folder of declarations; it has no code."""

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: the package has no code."""


class _SiblingFinder(MetaPathFinder):
    """Finds the packages of declarations and the modules in them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a package or module of declarations; None for any other.

        Raises:
            ModuleNotFoundError: There is no such file in the folder.
        """
        package, _, name = fullname.partition(".")
        folder = _FOLDERS.get(package)
        if folder is None:
            return None
        if not name:
            return ModuleSpec(package, _FolderLoader(), is_package=True)
        file = folder / f"{name}.py"
        if "." in name or not file.is_file():
            raise ModuleNotFoundError(f"there is no {name}.py in {folder}", name=fullname)
        return importlib.util.spec_from_file_location(fullname, file, loader=_FileLoader(file))


_FINDER = _SiblingFinder()


class Declarations:
    """Loads declarations together: a file that several of them import is read and run once."""

    def __init__(self) -> None:
        """Starts afresh: files that were loaded before are read again."""
        self._folders: set[Path] = set()

    def load(self, path: Path) -> ModuleType:
        """Runs a file of declarations.

        Args:
            path: The file, absolute.

        Raises:
            DeclarationError: The file, or something that it imports, cannot be imported.
        """
        package = PREFIX + hashlib.sha256(str(path.parent).encode()).hexdigest()[:16]
        name = f"{package}.{path.stem.replace('.', '_')}"
        spec = importlib.util.spec_from_file_location(name, path, loader=_FileLoader(path))
        if spec is None or path.suffix != ".py":
            raise DeclarationError(f"{path} is not a Python file; give one that ends in .py")
        with _LOADING:
            if _FINDER not in sys.meta_path:
                sys.meta_path.insert(0, _FINDER)
            _FOLDERS[package] = path.parent
            if path.parent not in self._folders:
                self._folders.add(path.parent)
                _forget(package)
            return _run(path, spec)


def _forget(package: str) -> None:
    """Drops a package and its modules, so that the next import reads the files again."""
    for name in [each for each in sys.modules if each == package or each.startswith(f"{package}.")]:
        del sys.modules[name]


def _run(path: Path, spec: ModuleSpec) -> ModuleType:
    module = importlib.util.module_from_spec(spec)
    # The file's classes look for their module here.
    sys.modules[spec.name] = module
    _READING.files.append(path)
    try:
        assert spec.loader is not None
        spec.loader.exec_module(module)
    except DeclarationError:
        raise
    except (Exception, SystemExit) as error:
        raise DeclarationError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        _READING.files.pop()
    return module
