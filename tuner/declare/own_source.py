"""Writes a Python function down as a module that needs nothing else, so that a worker process can load it.

A function of a script, a notebook or a REPL lives in ``__main__``, which no other process has. Its source is
taken, with whatever it uses: modules and their members are imported, the author's own functions follow it, and
plain values are written out.
"""

import ast
import builtins
import inspect
import itertools
import re
import site
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from tuner.declare.shapes import KernelArgument
from tuner.errors import DeclarationError

#: Values that are written out as they are.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
#: Options of Numba that its dispatchers keep beside those that were given.
_INTERNAL = ("nopython", "boundscheck", "cache")


def unwrapped(function: Any) -> tuple[Any, Mapping[str, Any] | None]:
    """The Python function of one that Numba compiles, and the options that it is compiled with.

    Returns:
        The function itself and None if Numba does not compile it.
    """
    inner = getattr(function, "py_func", None)
    if inner is None:
        return function, None
    return inner, {
        name: value for name, value in getattr(function, "targetoptions", {}).items() if name not in _INTERNAL
    }


def definition(function: Any) -> ast.FunctionDef:
    """The source of a function as a syntax tree; a lambda becomes a function of one return.

    Raises:
        DeclarationError: Its source cannot be found, or several functions alike begin on its line.
    """
    try:
        lines, line = inspect.findsource(function)[0], function.__code__.co_firstlineno
        if function.__name__ != "<lambda>":  # whose own lines need not be a statement
            block = inspect.getblock(lines[line - 1 :])
            lines, line = (["if True:\n", *block], 2) if block[0][0].isspace() else (block, 1)
        tree, takes = ast.parse("".join(lines)), inspect.getargs(function.__code__).args
    except (OSError, TypeError, AttributeError, SyntaxError):
        raise DeclarationError(
            f"a function's source must be found, that of {_name(function)} cannot be; define it in a "
            "file or in a notebook's cell"
        ) from None
    there = [part for part in tree.body if _first_line(part) <= line <= (part.end_lineno or line)]
    walked = itertools.chain.from_iterable(map(ast.walk, there))
    nodes = [node for node in walked if isinstance(node, ast.FunctionDef | ast.Lambda)]
    alike = {ast.dump(node): node for node in nodes if _first_line(node) == line and _takes(node) == takes}
    if len(alike) != 1:
        raise DeclarationError(
            f"a function is one of its kind on its line, found {len(alike)} that take {', '.join(takes)}; "
            "write it as a def"
        )
    [node] = alike.values()
    if isinstance(node, ast.FunctionDef):
        return node
    made = ast.FunctionDef("function", node.args, [ast.Return(node.body)], [], None, None)
    made.type_params = []  # type: ignore[attr-defined]
    return ast.fix_missing_locations(made)


def _first_line(node: ast.stmt | ast.expr) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min(part.lineno for part in (node, *decorators))


def _takes(node: ast.FunctionDef | ast.Lambda) -> list[str]:
    return [part.arg for part in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", function))


@dataclass
class Module:
    """A module in the making: what functions use stands before them.

    Attributes:
        without: Names that are left to whoever completes the module, such as a kernel's parameters.
        lines: Its text so far.
    """

    without: frozenset[str] = frozenset()
    lines: list[str] = field(default_factory=list)
    _known: dict[str, Any] = field(default_factory=dict)

    def add(self, function: Any, name: str, decorator: str = "") -> None:
        """Writes a function down under a name, after what it uses.

        Args:
            function: A Python function, or one that Numba compiles.
            name: Its name in the module.
            decorator: Line to stand above it; its own decorators are left out.

        Raises:
            DeclarationError: It uses something that cannot be written down.
        """
        inner, _ = unwrapped(function)
        node = definition(inner)
        node.name, node.decorator_list, node.returns = name, [], None
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
        self.add_node(node, inner, decorator)

    def add_node(self, node: ast.FunctionDef, function: Any, decorator: str = "") -> None:
        """Writes a function's syntax tree down, after what it uses.

        Args:
            node: The function as it is to stand there.
            function: The function, whose globals and closure have what it uses.
            decorator: Line to stand above it.
        """
        self._known.setdefault(node.name, function)
        reachable = _reachable(function)
        for used in sorted(_free_names(node) - self.without - {node.name}):
            if used in reachable:
                self._put(used, reachable[used], _name(function))
        if ast.get_docstring(node) is not None and len(node.body) > 1:
            del node.body[0]
        self.lines += ["", "", *([decorator] if decorator else []), ast.unparse(node)]

    def _put(self, name: str, value: Any, user: str) -> None:
        if name in self._known:
            if self._known[name] is value or _same(self._known[name], value):
                return
            raise DeclarationError(
                f"functions that are written down together use a name for one thing, {name!r} stands for two; "
                "rename one"
            )
        self._known[name] = value
        if isinstance(value, ModuleType):
            self.lines.insert(0, f"import {value.__name__} as {name}")
        elif isinstance(value, _PLAIN) or _is_plain_tuple(value):
            self.lines.append(f"{name} = {value!r}")
        elif not self.take(value, name):
            raise DeclarationError(
                f"what a function uses is modules, functions and plain values; {user} uses {name!r}, "
                f"{type(value).__name__}; pass it as an argument, or declare the kernel in a file"
            )

    def take(self, value: Any, name: str) -> bool:
        """Writes an author's own function down, or imports a library's; False for anything else."""
        inner, options = unwrapped(value)
        place = _importable(value)
        if isinstance(inner, FunctionType) and _is_authors(inner):
            self.add(value, name, "" if options is None else njit(options))
        elif place is not None:
            self.lines.insert(0, f"from {place[0]} import {place[1]} as {name}")
        else:
            return False
        return True

    @property
    def text(self) -> str:
        """The module's source."""
        return "\n".join(self.lines).strip() + "\n"


def njit(options: Mapping[str, Any]) -> str:
    """The decorator that compiles a function with these options, and caches the machine code."""
    given = {**options, "cache": True}
    return f"@numba.njit({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def _free_names(node: ast.FunctionDef) -> set[str]:
    """Names that a function reads and does not set itself."""
    nodes = list(ast.walk(node))
    own = {part.arg for part in nodes if isinstance(part, ast.arg)}
    own |= {part.name for part in nodes if isinstance(part, ast.FunctionDef)}
    names = [part for part in nodes if isinstance(part, ast.Name)]
    return {name.id for name in names} - own - {name.id for name in names if isinstance(name.ctx, ast.Store)}


def _reachable(function: Any) -> dict[str, Any]:
    """Globals and closure of a function; builtins stay what they are."""
    own = {name: value for name, value in function.__globals__.items() if name not in vars(builtins)}
    cells = function.__closure__ or ()
    return own | {
        name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells, strict=True)
    }


def _same(one: Any, other: Any) -> bool:
    return isinstance(one, _PLAIN) and type(one) is type(other) and bool(one == other)


def _is_plain_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(part, _PLAIN) or _is_plain_tuple(part) for part in value)


def _is_authors(function: FunctionType) -> bool:
    """True for a function that no installed library has."""
    paths = sysconfig.get_paths()
    libraries = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    file = Path(function.__code__.co_filename)
    return not any(map(file.is_relative_to, (*libraries, *site.getsitepackages())))


def _importable(value: Any) -> tuple[str, str] | None:
    """Module and name from which a member of a library can be imported.

    NumPy, Numba and math come first, by their public names: ``numpy.add``, ``numba.prange``.
    """
    for module in ("numpy", "numba", "math"):
        for name, member in vars(sys.modules.get(module) or ModuleType(module)).items():
            if member is value and not name.startswith("_"):
                return module, name
    module, name = str(getattr(value, "__module__", "")), str(getattr(value, "__name__", ""))
    known = module != "__main__" and getattr(sys.modules.get(module), name, None) is value
    return (module, name) if known else None


#: C++ type -> dtype. Unsigned numbers are passed as signed ones of the same size: sizes are below 2^31.
TYPES = {
    "float": "float32", "double": "float64", "half": "float16", "__half": "float16", "int": "int32",
    "int32_t": "int32", "unsigned": "int32", "uint32_t": "int32", "unsigned int": "int32", "long": "int64",
    "long long": "int64", "int64_t": "int64", "unsigned long": "int64", "unsigned long long": "int64",
    "size_t": "int64", "uint64_t": "int64", "unsigned char": "uint8", "uint8_t": "uint8",
}  # fmt: skip
_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_QUALIFIERS = re.compile(r"\b(?:const|__restrict__|__restrict|restrict|volatile|__grid_constant__)\b")


def taken_by(source: str, function: str) -> tuple[KernelArgument, ...]:
    """What a ``__global__`` function takes, in order; pointers without ``const`` are outputs.

    An array's shape is empty, and so is a dtype that the type's name does not say, such as that of a macro.

    Raises:
        DeclarationError: There is no such function, or it takes what cannot be read.
    """
    text = _COMMENTS.sub(" ", source)
    head = re.search(rf"__global__[^;{{}}]*?\b{re.escape(function)}\s*\(([^)]*)\)", text)
    if head is None:
        raise DeclarationError(
            f"the source has a __global__ function {function!r}, the name that was given, found none; give the "
            "name of one"
        )
    return tuple(_taken(argument, function) for argument in head[1].split(",") if argument.strip())


def _taken(text: str, function: str) -> KernelArgument:
    plain = " ".join(_QUALIFIERS.sub(" ", text).replace("*", " * ").replace("&", " & ").split())
    parts = re.fullmatch(r"(.*?)(\s\*)?\s(\w+)(\s*\[\s*\])?", plain)
    if parts is None or "*" in parts[1] or "&" in plain:
        raise DeclarationError(
            f"a kernel takes pointers and numbers, {function} takes {text.strip()!r}; pass it as one of them"
        )
    pointer = bool(parts[2] or parts[4])
    constant = re.search(r"\bconst\b[^*]*\*|\bconst\b[^*\[]*\[", text) is not None
    dtype = TYPES.get(parts[1].strip(), "")
    return KernelArgument(parts[3], dtype, () if pointer else None, output=pointer and not constant)


def callable_from_c(source: str, function: str) -> str:
    """The source with ``extern "C"`` before the function, which keeps its name as it is."""
    # Comments become blanks of the same length, so that places stay what they are.
    plain = _COMMENTS.sub(lambda match: " " * len(match[0]), source)
    head = re.search(rf"__global__[^;{{}}]*?\b{re.escape(function)}\s*\(", plain)
    if head is None or re.search(r'extern\s+"C"\s*(?:\{[^}]*)?$', plain[: head.start()]):
        return source
    return f'{source[: head.start()]}extern "C" {source[head.start() :]}'
