"""Which sizes name a problem, and how its arrays' shapes follow from them.

Whole-number arguments of a kernel are its sizes: ``add(a, b, out, n)``. Each extent of an array is one of
them, or a size of its own. Where two sizes are equal, nothing tells which one an extent is; the author says it.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from tuner.errors import DeclarationError, InputError

#: Functions that an expression may call; all work on numbers and on arrays.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "ceil_div": lambda numerator, denominator: -(-numerator // denominator),
    "abs": abs,
    "min": lambda *values: functools.reduce(numpy.minimum, values),
    "max": lambda *values: functools.reduce(numpy.maximum, values),
}
#: What an expression is made of beside names, numbers and text.
_ALLOWED = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Call, ast.Name, ast.Constant,
    ast.Tuple, ast.List, ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.expr_context,
)  # fmt: skip


def expression(text: str, names: Collection[str], what: str) -> Callable[[Mapping[str, Any]], Any]:
    """The function that an expression is of the values of its names, which may be arrays.

    Args:
        text: The expression.
        names: What it may name.
        what: What the expression is, for messages: ``a restriction``.

    Raises:
        DeclarationError: It is no expression, or uses a name or a construct that is not known here.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        raise DeclarationError(
            f"{what} is an expression of Python, got {text!r}: {error.msg}; correct it"
        ) from None
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise DeclarationError(
                f"{what} is made of numbers, names, comparisons and {', '.join(FUNCTIONS)}, got {text!r} with "
                f"{type(node).__name__}; write it without, or declare the kernel in a file"
            )
    on_arrays = ast.fix_missing_locations(_OnArrays(names, text, what).visit(tree))
    code = compile(on_arrays, f"<{what}>", "eval")
    known = {f"_{name}": function for name, function in FUNCTIONS.items()}
    return lambda values: eval(code, {"__builtins__": {}, **known}, values)


def names_in(text: str) -> set[str]:
    """Names that occur in an expression; none if it cannot be parsed."""
    try:
        return {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}
    except SyntaxError:
        return set()


class _OnArrays(ast.NodeTransformer):
    """Refuses unknown names, and replaces what does not work on arrays."""

    def __init__(self, names: Collection[str], text: str, what: str) -> None:
        self._names, self._text, self._what = names, text, what

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A name that is known."""
        if node.id not in self._names:
            known = ", ".join(self._names)
            raise DeclarationError(
                f"{self._what} knows the names {known}; got {node.id!r} in {self._text!r}; correct it"
            )
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """One of `FUNCTIONS`."""
        name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        if name not in FUNCTIONS or node.keywords:
            raise DeclarationError(
                f"{self._what} may call {', '.join(FUNCTIONS)}; got {name} in {self._text!r}; write it without"
            )
        return ast.Call(ast.Name(f"_{name}", ast.Load()), [self.visit(argument) for argument in node.args], [])

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """``and`` and ``or`` as ``&`` and ``|``."""
        self.generic_visit(node)
        return _joined(node.values, ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr())

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """``not x`` as ``x == False``, which holds for a truth value and for an array of them."""
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            return ast.Compare(node.operand, [ast.Eq()], [ast.Constant(False)])
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Chains as pairs joined by ``&``; ``in`` as any of the values."""
        self.generic_visit(node)
        sides = zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)
        return _joined([self._pair(*pair) for pair in sides], ast.BitAnd())

    def _pair(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> ast.expr:
        if not isinstance(operator, ast.In | ast.NotIn):
            return ast.Compare(left, [operator], [right])
        if not isinstance(right, ast.Tuple | ast.List) or not right.elts:
            raise DeclarationError(f"{self._what} has values after `in`, got {self._text!r}; list some")
        equal, join = (ast.Eq(), ast.BitOr()) if isinstance(operator, ast.In) else (ast.NotEq(), ast.BitAnd())
        return _joined([ast.Compare(left, [equal], [value]) for value in right.elts], join)


def _joined(conditions: Sequence[ast.expr], operator: ast.operator) -> ast.expr:
    return functools.reduce(lambda left, right: ast.BinOp(left, operator, right), conditions)


@dataclass(frozen=True)
class KernelArgument:
    """An argument as it was passed.

    Attributes:
        name: Its name.
        dtype: Its dtype.
        shape: Of an array; None for a number.
        value: Of a number.
        output: True for an array that the kernel writes.
        free: True for a number that is no size, be it whole: a config does not depend on it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None = None
    value: float = 0
    output: bool = False
    free: bool = False

    @property
    def is_size(self) -> bool:
        """True for a whole number of 1 or more that an author did not call free."""
        return self.shape is None and not self.free and self.dtype in ("int32", "int64") and self.value >= 1


def shapes_of(
    arguments: Sequence[KernelArgument], told: Mapping[str, object]
) -> tuple[dict[str, int], dict[str, tuple[str, ...]]]:
    """The sizes and shapes of a kernel's arguments.

    Args:
        arguments: In the kernel's order.
        told: Array -> its extents, as the author wrote them: ``"m k"``, ``("m", "k + 1")``. May be empty.

    Returns:
        Dim -> size, in the order in which a problem names them; array -> its extents over the dims.

    Raises:
        InputError: Nothing tells which size an extent is, or an extent is not as the author says.
        DeclarationError: What the author says cannot be read.
    """
    sizes = {argument.name: int(argument.value) for argument in arguments if argument.is_size}
    arrays = [argument for argument in arguments if argument.shape is not None]
    unknown = told.keys() - {array.name for array in arrays}
    if unknown:
        raise InputError(
            f"shapes= names arrays ({', '.join(array.name for array in arrays)}), got {sorted(unknown)[0]!r}; "
            "correct it"
        )
    of = {name: _extents(name, text) for name, text in told.items()}
    _learn_names(arrays, of, sizes)
    for array in arrays:
        of[array.name] = _checked(array, of[array.name], sizes) if array.name in of else _guessed(array, sizes)
    if not sizes:
        raise InputError(
            "a problem has a size, and none of these arguments has one: no array with more than one element, "
            "no whole number; pass one"
        )
    return sizes, {array.name: of[array.name] for array in arrays}


def _extents(name: str, text: object) -> tuple[str, ...]:
    if isinstance(text, str):
        words = text.split()
        plain = all(word.isidentifier() or word.isdecimal() for word in words)
        parts = text.split(",") if "," in text else words if plain else [text]
        return tuple(part.strip() for part in parts if part.strip())
    if isinstance(text, Sequence) and all(isinstance(each, str | int) for each in text):
        return tuple(str(each) for each in text)
    raise DeclarationError(
        f'the shape of an array is written like "m k" or ("m", "k + 1"), got {text!r} for {name}; correct it'
    )


def _learn_names(
    arrays: Sequence[KernelArgument], of: Mapping[str, tuple[str, ...]], sizes: dict[str, int]
) -> None:
    """Extents that are mere names give these names their sizes."""
    for array in arrays:
        assert array.shape is not None
        extents = of.get(array.name, ())
        if extents and len(extents) != len(array.shape):
            raise InputError(
                f"shapes= gives {array.name} {len(extents)} dims ({' '.join(extents)}), the array has "
                f"{len(array.shape)}: {array.shape}; correct one of them"
            )
        for name, size in zip(extents, array.shape, strict=False):
            if name.isidentifier():
                sizes.setdefault(name, size)


def _checked(array: KernelArgument, extents: tuple[str, ...], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Extents over the dims, once they hold for the array."""
    assert array.shape is not None
    for text, size in zip(extents, array.shape, strict=True):
        unknown = names_in(text) - sizes.keys()
        if unknown:
            raise InputError(
                f"an extent is made of sizes ({', '.join(sizes)}), {array.name} has {text!r}; name an extent "
                f"{sorted(unknown)[0]!r} alone somewhere, or pass it as a number"
            )
        extent = int(expression(text, sizes, f"the shape of {array.name}")(sizes))
        if extent != size:
            raise InputError(
                f"{array.name} has shape {array.shape}, and shapes= says {text} = {extent} where it has "
                f"{size}; correct one of them"
            )
    return extents


def _guessed(array: KernelArgument, sizes: dict[str, int]) -> tuple[str, ...]:
    """Extents of an array that the author says nothing of; each of no known size becomes a size of its own."""
    assert array.shape is not None
    known, extents = dict(sizes), []
    for axis, size in enumerate(array.shape):
        fitting = [name for name, value in known.items() if value == size]
        if size == 1 and not fitting:
            extents.append("1")
        elif len(fitting) == 1:
            extents.append(fitting[0])
        elif fitting:
            example = " ".join(fitting[: len(array.shape)])
            raise InputError(
                f"{' and '.join(fitting)} are equal here ({size}), so that nothing tells which of them axis "
                f"{axis} of {array.name} is; say it: shapes={{{array.name!r}: {example!r}, ...}}, or give "
                "sizes that differ"
            )
        else:
            name = next(name for name in ("n", *(f"n{number}" for number in range(2, 99))) if name not in sizes)
            sizes[name] = size
            extents.append(name)
    return tuple(extents)
