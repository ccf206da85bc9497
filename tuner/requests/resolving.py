"""What a call of `tuner.tune` is about: the problem, and the catalogue with the kernels that compete."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.declare.catalogue import Catalogue, builtin, from_file
from tuner.declare.folders import kernels_folder
from tuner.declare.kernel import Kernel
from tuner.declare.loading import being_read
from tuner.declare.problem import Operation, Problem
from tuner.errors import DeclarationError, InputError
from tuner.lookup.asking import parse_key
from tuner.requests.code import is_cuda, read_code
from tuner.requests.own import own_problem

#: Options of a problem beside its shape, in the order in which `Operation.problem` takes them.
_HOW = ("dtype", "layout", "precision", "epilogue")


def resolved(
    what: object, name: str, arguments: object, params: object, options: Mapping[str, Any]
) -> tuple[Catalogue, Problem]:
    """The problem that a call of `tuner.tune` is about, and the catalogue with its kernels.

    Args:
        what: What `tuner.tune` takes first.
        name: Name of a function in CUDA text.
        arguments: Of a kernel of one's own.
        params: Of a kernel of one's own.
        options: See `tuner.requests.tuning.ProblemOptions` and `OwnOptions`.

    Raises:
        InputError: It is about none, or it names something that is not there.
        DeclarationError: A declaration cannot be read, or is being read now.
    """
    reading = being_read()
    if reading is not None:
        raise DeclarationError(
            f"{reading} is read as declarations, by workers too, and calls tune meanwhile; put the call behind "
            'if __name__ == "__main__":'
        )
    if is_own(what, arguments, params):
        return _own(what, name, arguments, params, options)
    if isinstance(what, Problem):
        return _of_problem(what)
    if isinstance(what, Kernel | Operation):
        return _of_declared(what, options)
    if not isinstance(what, str | Path):
        raise InputError(
            "what is tuned is a problem in words, a file, a declared kernel, CUDA text or a function, got "
            f"{type(what).__name__}"
        )
    if str(what).endswith(".py"):
        catalogue = from_file(Path(what))
        return catalogue, _problem(catalogue.operations[catalogue.kernels[-1].operation], options)
    catalogue = builtin()
    words = " ".join([str(what), *(str(options[key]) for key in _HOW if options.get(key))])
    key = parse_key(words, catalogue)
    return catalogue, key.of_operation(catalogue.operation(key.operation))


def is_own(what: object, arguments: object, params: object) -> bool:
    """True for a kernel that is given as code with arguments, rather than declared."""
    if isinstance(what, Problem | Kernel | Operation):
        return False
    if isinstance(what, str | Path) and not is_cuda(str(what)):
        return arguments is not None and params is not None
    return arguments is not None or params is not None or isinstance(what, str) or callable(what)


def _own(
    what: object, name: str, arguments: object, params: object, options: Mapping[str, Any]
) -> tuple[Catalogue, Problem]:
    """A kernel of a user's own, declared in a file that is written for it."""
    code = read_code(what, name, params)
    if arguments is None:
        raise InputError(f"{code.name} is tuned on arguments like those of a call, got none; give arguments=")
    _, problem = own_problem(code, arguments, options)
    assert problem.operation.origin is not None, "it was read from a file"
    return from_file(problem.operation.origin), problem


def _problem(operation: Operation, options: Mapping[str, Any]) -> Problem:
    """A problem of an operation, whose sizes are given by name or in order.

    Raises:
        InputError: The sizes are not those of the operation.
    """
    shape = options.get("shape") or {}
    if not isinstance(shape, Mapping):
        sizes = [shape] if isinstance(shape, int) else list(shape)
        if len(sizes) != len(operation.dims):
            raise InputError(
                f"{operation.name} takes {' '.join(operation.dims)}, got {len(sizes)} sizes; give one for each"
            )
        shape = dict(zip(operation.dims, sizes, strict=True))
    return operation.problem(shape, *(options.get(key) or "" for key in _HOW))


def _of_problem(problem: Problem) -> tuple[Catalogue, Problem]:
    operation = problem.operation
    if operation.origin is not None:
        return from_file(operation.origin), problem
    catalogue = builtin()
    if _same(catalogue.operations.get(operation.name), operation):
        return catalogue, problem
    catalogue = from_file(_file_of(operation, "operation"))
    same = catalogue.operation(operation.name)
    how = (problem.dtype, problem.layout, problem.precision, problem.epilogue)
    return catalogue, same.problem(problem.dims, *how)


def _same(known: Operation | None, operation: Operation) -> bool:
    """True for an operation of the catalogue, which each reading of it makes anew."""
    return known is not None and _code_file(known) == _code_file(operation)


def _code_file(operation: Operation) -> str:
    code = getattr(operation.tensors, "__code__", None)
    return str(getattr(code, "co_filename", ""))


def _of_declared(what: Kernel | Operation, options: Mapping[str, Any]) -> tuple[Catalogue, Problem]:
    """The file that declares a kernel or an operation, since workers load it, and the problem."""
    if isinstance(what, Operation):
        catalogue, problem = _of_problem(_problem(what, options))
        return catalogue, problem
    file = what.declared_in or _file_of(what, "kernel")
    catalogue = builtin() if file.is_relative_to(kernels_folder()) else from_file(file)
    catalogue.of(what.operation, what.target, (what.name,))
    return catalogue, _problem(catalogue.operation(what.operation), options)


def _file_of(what: Kernel | Operation, kind: str) -> Path:
    """The file of the module that has a declared object, as a variable or in a list; scripts come last.

    Raises:
        DeclarationError: No module with a file has it.
    """
    found = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        values = list(vars(module).values()) if file and str(file).endswith(".py") else ()
        if any(what is each for value in values for each in _members(value)):
            beside = isinstance(what, Kernel) and not (Path(str(file)).parent / what.source).is_file()
            found.append((beside, module.__name__ == "__main__", Path(str(file)).resolve()))
    if not found:
        raise DeclarationError(
            f"workers load a {kind} from the file that declares it, and no module with a file has "
            f"{what.name!r}; write it to a file, e.g. {what.name}.py, import it from there, or give its path"
        )
    return min(found)[-1]


def _members(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)
