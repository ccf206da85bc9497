"""Splits a rendered CPU kernel: each compiled function becomes a minimal module of its own.

A config is a list of constants at the top of a source. A function that reads few of them is the same for many
configs, but Numba caches by file and would compile it for each. So every function that Numba caches is moved
into a module of its own, with everything that it refers to, named by a hash of the text. Configs with the same
text share the module and its machine code.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

#: Decorators that make a function and have no other effect. Statements with other decorators are kept in every
#: part.
HARMLESS = frozenset({"njit", "jit", "intrinsic", "vectorize", "guvectorize", "cfunc", "lru_cache", "cache"})


@dataclass(frozen=True)
class _Statement:
    """A statement of a module.

    Attributes:
        first: Its first line, decorators included, counted from 0.
        end: The line after its last.
        names: Names that it defines.
        uses: All names that occur in it.
        always: True if it may do more than define names.
    """

    first: int
    end: int
    names: frozenset[str]
    uses: frozenset[str]
    always: bool


class Parts:
    """The statements of a module, and the names to which each refers."""

    def __init__(self, text: str) -> None:
        """Reads a module.

        Args:
            text: Its source.

        Raises:
            SyntaxError: The text is not Python.
        """
        self._lines = text.splitlines()
        self._statements = [_read(each) for each in ast.parse(text).body]

    def of(self, name: str) -> str:
        """Returns the source of the smallest module that defines a name as this one does.

        It includes every statement that may have an effect beyond defining names.
        """
        wanted = {name}
        taken: set[int] = set()
        while True:
            more = {
                number
                for number, each in enumerate(self._statements)
                if number not in taken and (each.always or each.names & wanted)
            }
            if not more:
                break
            taken |= more
            wanted.update(*(self._statements[number].uses for number in more))
        kept = (self._statements[number] for number in sorted(taken))
        lines = itertools.chain.from_iterable(self._lines[each.first : each.end] for each in kept)
        return "\n".join([*lines, ""])


def _read(node: ast.stmt) -> _Statement:
    decorators: Iterable[ast.expr] = getattr(node, "decorator_list", ())
    first = min([node.lineno, *(each.lineno for each in decorators)])
    uses = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    names = frozenset(_defined(node))
    always = not names and not _is_text(node)
    if isinstance(node, ast.ClassDef):
        always = bool(node.decorator_list or node.keywords)
    elif isinstance(node, ast.FunctionDef):
        always = not all(_name_of(each) in HARMLESS for each in decorators)
    return _Statement(first - 1, node.end_lineno or first, names, frozenset(uses), always)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _defined(node: ast.stmt) -> Iterator[str]:
    """Yields the names that a statement defines; none if it may have another effect, too."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        names = [each.asname or each.name.partition(".")[0] for each in node.names]
        if "*" not in names and getattr(node, "module", "") != "__future__":
            yield from names
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        leaves = [leaf for target in targets for leaf in _leaves(target)]
        if all(isinstance(leaf, ast.Name) for leaf in leaves):
            yield from (leaf.id for leaf in leaves if isinstance(leaf, ast.Name))


def _leaves(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _leaves(each)
    else:
        yield target


def _name_of(decorator: ast.expr) -> str:
    """Returns the last word of a decorator: ``njit`` of ``@numba.njit(cache=True)``."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
