"""Finds operations and kernels, both the built-in ones in kernels/ and those in a user's own file."""

import functools
import hashlib
import importlib.util
import itertools
import sys
import threading
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from importlib.abc import MetaPathFinder
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from tuner.declare.folders import kernels_folder
from tuner.declare.kernel import Kernel
from tuner.declare.language import languages
from tuner.declare.problem import IEEE, Operation, Problem
from tuner.declare.space import Constraint
from tuner.errors import DeclarationError, InputError, UnknownName

#: The names of packages of declarations begin with this.
PREFIX = "tuner_declared_"

#: Held while declarations run: two threads must not drop each other's modules.
_LOADING = threading.RLock()


#: The file of declarations that is running here.
_READING: ContextVar[Path | None] = ContextVar("_READING", default=None)


def being_read() -> Path | None:
    """The file of declarations that calls this, directly or through others, while it is read."""
    return _READING.get()


@functools.lru_cache(256)
def _compiled(text: bytes, path: str) -> CodeType:
    """The code of a file with these bytes, which takes most of the time of reading declarations."""
    return compile(text, path, "exec", dont_inherit=True)


class _SourceLoader(SourceFileLoader):
    """Runs a module from the bytes of its file as it is now, and writes no bytecode beside it."""

    def get_code(self, fullname: str) -> CodeType:
        """Compiles the file."""
        path = self.get_filename(fullname)
        return _compiled(self.get_data(path), path)


class _SiblingFinder(MetaPathFinder):
    """Finds the files that declarations import from beside them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module of declarations; None for any other."""
        if not fullname.startswith(PREFIX) or not path:
            return None
        return FileFinder(path[0], (_SourceLoader, [".py"])).find_spec(fullname)


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
        package = ModuleType(PREFIX + hashlib.sha256(str(path.parent).encode()).hexdigest()[:16])
        package.__path__ = [str(path.parent)]
        name = f"{package.__name__}.{path.stem.replace('.', '_')}"
        if path.suffix != ".py":
            raise DeclarationError(f"{path} is not a Python file; give one that ends in .py")
        spec = importlib.util.spec_from_file_location(name, path, loader=_SourceLoader(name, str(path)))
        assert spec is not None, "a file with a loader has a spec"
        with _LOADING:
            if _FINDER not in sys.meta_path:
                sys.meta_path.insert(0, _FINDER)
            if path.parent not in self._folders:
                self._folders.add(path.parent)
                _forget(package.__name__)
                sys.modules[package.__name__] = package
            return _run(path, spec)


def _forget(package: str) -> None:
    """Drops a package and its modules, so that the next import reads the files again."""
    for name in [module for module in sys.modules if module == package or module.startswith(f"{package}.")]:
        del sys.modules[name]


def _run(path: Path, spec: ModuleSpec) -> ModuleType:
    module = importlib.util.module_from_spec(spec)
    # The file's classes look for their module here.
    sys.modules[spec.name] = module
    reading = _READING.set(path)
    try:
        assert spec.loader is not None
        spec.loader.exec_module(module)
    except DeclarationError:
        raise
    except (Exception, SystemExit) as error:
        raise DeclarationError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        _READING.reset(reading)
    return module


#: Rule of kernels that apply no epilogues.
NO_EPILOGUE = "the result is stored without an epilogue"


@dataclass(frozen=True)
class Catalogue:
    """Operations and their kernels.

    Attributes:
        operations: By name.
        kernels: In order of declaration: ladder order.
        shown: Kernels that only ladders have, in order; see `Scope.shown`.
    """

    operations: dict[str, Operation]
    kernels: tuple[Kernel, ...]
    shown: tuple[Kernel, ...] = ()

    def operation(self, name: str) -> Operation:
        """The operation of that name.

        Raises:
            UnknownName: There is none.
        """
        if name not in self.operations:
            raise UnknownName("operation", name, self.operations)
        return self.operations[name]

    def of(
        self, operation: str, target: str = "", only: tuple[str, ...] = (), precision: str = "",
        dtype: str = "", epilogue: str = "",
    ) -> tuple[Kernel, ...]:  # fmt: skip
        """Returns the kernels of an operation.

        Args:
            operation: Name.
            target: Kind of device, ``cuda`` or ``cpu``; all if empty.
            only: Kernel names to keep; all if empty.
            precision: Only kernels that serve it; all if empty.
            dtype: Only kernels that compute in it; all if empty.
            epilogue: Only kernels that apply epilogues; all if empty.

        Raises:
            UnknownName: There is no such operation, or no kernel has a name in `only`.
        """
        declared = self.operation(operation)
        serving = [
            kernel for kernel in self.kernels
            if kernel.operation == operation and target in ("", kernel.kind)
            and (not precision or kernel.serves(precision))
            and (not dtype or dtype in computed_dtypes(kernel, declared))
            and (not epilogue or kernel.scope.epilogues)
        ]  # fmt: skip
        known = [kernel.name for kernel in serving]
        for name in only:
            if name not in known:
                raise UnknownName(f"{target} kernel of {operation}".strip(), name, known)
        return tuple(kernel for kernel in serving if not only or kernel.name in only)

    def serving(self, problem: Problem, target: str, only: tuple[str, ...] = ()) -> tuple[Kernel, ...]:
        """Returns the kernels that serve a problem's precision, dtype and epilogue.

        Args:
            problem: Of an operation of this catalogue.
            target: ``cuda`` or ``cpu``.
            only: Kernel names to keep; all if empty.

        Raises:
            UnknownName: As `of`.
        """
        name = problem.operation.name
        return self.of(name, target, only, problem.precision, problem.dtype, problem.epilogue)


def computed_dtypes(kernel: Kernel, operation: Operation) -> tuple[str, ...]:
    """Dtypes of the operation in which the kernel computes; see `Scope.dtypes`."""
    dtypes = kernel.scope.dtypes or [dtype for dtype in operation.dtypes if dtype not in operation.sums]
    return tuple(dtype for dtype in operation.dtypes if dtype in dtypes)


def builtin() -> Catalogue:
    """Loads kernels/: a folder for each operation, with operation.py and a file for each kernel.

    Kernels come in the order of the operation's ``LADDER`` (names of kernels for each target); the others
    follow by name.
    """
    operations: dict[str, Operation] = {}
    kernels: list[Kernel] = []
    declarations = Declarations()
    for folder in sorted(path.parent for path in kernels_folder().glob("*/operation.py")):
        module = declarations.load(folder / "operation.py")
        operation = _the(module, Operation, folder / "operation.py")[0]
        operations[operation.name] = operation
        modules = [(path, declarations.load(path)) for path in _declarations(folder)]
        own = [
            _with_rules(kernel, operation) for path, module in modules for kernel in _the(module, Kernel, path)
        ]
        order = list(getattr(module, "LADDER", ()))
        kernels += sorted(own, key=lambda k: order.index(k.name) if k.name in order else len(order))
    usual = [kernel for kernel in kernels if not kernel.scope.shown]
    return Catalogue(
        operations, _with_fallbacks(usual), tuple(kernel for kernel in kernels if kernel.scope.shown)
    )


def _with_rules(kernel: Kernel, operation: Operation) -> Kernel:
    """The kernel with no legal config for dtypes, epilogues and precisions that it does not compute."""
    dtypes, rules = computed_dtypes(kernel, operation), []
    if len(dtypes) < len(operation.dtypes):
        rules.append(Constraint(f"elements are {' or '.join(dtypes)}", lambda p, d, c: p.dtype in dtypes))
    if operation.epilogues and not kernel.scope.epilogues:
        rules.append(Constraint(NO_EPILOGUE, lambda p, d, c: not p.epilogue))
    if IEEE not in kernel.scope.precisions:
        sentence = f"precision is {' or '.join(kernel.scope.precisions)}"
        rules.append(Constraint(sentence, lambda p, d, c: p.precision in kernel.scope.precisions))
    return replace(kernel, constraints=(*rules, *kernel.constraints)) if rules else kernel


def _with_fallbacks(kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """Kernels whose fallbacks have the kernels that they name.

    Raises:
        UnknownName: There is no such kernel for the operation and target.
    """
    complete = []
    for kernel in kernels:
        fallback = kernel.scope.fallback
        if fallback is not None:
            plain = {
                other.name: other
                for other in kernels
                if (other.operation, other.target, other.scope.fallback)
                == (kernel.operation, kernel.target, None)
            }
            if fallback.name not in plain:
                raise UnknownName(f"fallback of kernel {kernel.name!r}", fallback.name, plain)
            among = tuple(plain.values())
            kernel = kernel.backed_by(replace(fallback, kernel=plain[fallback.name], among=among))
        complete.append(kernel)
    return tuple(complete)


def from_file(path: Path) -> Catalogue:
    """Loads a user's own file: its operation and kernels, under any module-level names.

    If a file declares only kernels, they join the kernels of the built-in operation that they name. It may
    import files beside it (``from ._mine import rule``).

    Raises:
        InputError: There is no such file.
        DeclarationError: The file cannot be imported, declares no kernel, or declares several operations.
        UnknownName: A kernel names an operation that neither the file nor the package has.
    """
    path = path.resolve()
    if not path.is_file():
        raise InputError(f"a kernel file must exist, found none at {path}; check the path")
    module = Declarations().load(path)
    kernels = _the(module, Kernel, path)
    operations = _instances(module, Operation)
    if len(operations) > 1:
        raise DeclarationError(f"{path} declares {len(operations)} operations; one file declares one")
    own = replace(operations[0], origin=path) if operations else None
    base = Catalogue({own.name: own}, ()) if own else builtin()
    for kernel in kernels:
        if kernel.operation not in base.operations:
            raise UnknownName(f"operation of kernel {kernel.name!r}", kernel.operation, base.operations)
    own_kernels = (_with_rules(kernel, base.operations[kernel.operation]) for kernel in kernels)
    return Catalogue(base.operations, _with_fallbacks((*base.kernels, *own_kernels)))


def _declarations(folder: Path) -> Iterator[Path]:
    """Finds the Python files that declare kernels.

    Left out are sources in Python (``.numba.py``), files whose names begin with ``_``, which declarations
    import, and folders of languages that no package here has.
    """
    for path in sorted(folder.glob("*/*.py")):
        if path.parent.name in languages() and path.name[0] != "_" and not path.suffixes[1:]:
            yield path


def _instances(module: ModuleType, kind: type) -> list:  # type: ignore[type-arg]
    """Module-level instances of a class, also inside module-level tuples and lists, in order."""
    values = [value if isinstance(value, tuple | list) else (value,) for value in vars(module).values()]
    members = itertools.chain.from_iterable(values)
    return list({id(member): member for member in members if isinstance(member, kind)}.values())


def _the(module: ModuleType, kind: type, path: Path) -> list:  # type: ignore[type-arg]
    instances = _instances(module, kind)
    if not instances:
        raise DeclarationError(f"{path} declares no {kind.__name__}; it needs a module-level one")
    return [instance.declared(path) if isinstance(instance, Kernel) else instance for instance in instances]


def kernels_json(catalogue: Catalogue, operation: str = "", target: str = "") -> list[dict[str, Any]]:
    """The kernels of an operation, or all, with parameters and constraints as JSON.

    Raises:
        UnknownName: There is no such operation.
    """
    chosen = catalogue.of(operation, target) if operation else catalogue.kernels
    return [
        {
            "operation": kernel.operation, "target": kernel.target, "name": kernel.name, "idea": kernel.idea,
            "parameters": {parameter.name: list(parameter.values) for parameter in kernel.parameters},
            "constraints": [constraint.sentence for constraint in kernel.constraints],
        }
        for kernel in chosen
        if target in ("", kernel.kind)
    ]  # fmt: skip
