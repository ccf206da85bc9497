"""Which sizes name a problem, and how its arrays' shapes follow from them.

Whole-number arguments of a kernel are its sizes: ``add(a, b, out, n)``. Each extent of an array is one of
them, or a size of its own. Where two sizes are equal, nothing tells which one an extent is; the author says it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.errors import DeclarationError, InputError

#: Functions that an expression may call -> what they become in a file that imports NumPy and `tuner`.
FUNCTIONS = {"ceil_div": "ceil_div", "abs": "abs", "min": "numpy.minimum", "max": "numpy.maximum"}
#: What an expression is made of beside names, numbers and text.
_ALLOWED = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Call, ast.Name, ast.Constant,
    ast.Tuple, ast.List, ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.expr_context,
)  # fmt: skip


def as_python(text: str, names: Mapping[str, str], what: str) -> str:
    """The Python of an expression.

    Args:
        text: The expression.
        names: Name in it -> Python that it stands for.
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
    return ast.unparse(ast.fix_missing_locations(_Rewriter(names, text, what).visit(tree)))


def names_in(text: str) -> set[str]:
    """Names that occur in an expression; none if it cannot be parsed."""
    try:
        return {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}
    except SyntaxError:
        return set()


class _Rewriter(ast.NodeTransformer):
    """Replaces names, and what does not work on arrays."""

    def __init__(self, names: Mapping[str, str], text: str, what: str) -> None:
        self._names, self._text, self._what = names, text, what

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """What the name stands for."""
        if node.id not in self._names:
            known = ", ".join(self._names)
            raise DeclarationError(
                f"{self._what} knows the names {known}; got {node.id!r} in {self._text!r}; correct it"
            )
        return ast.parse(self._names[node.id], mode="eval").body

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """One of `FUNCTIONS`; several arguments of min and max are taken two by two."""
        name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        if name not in FUNCTIONS or node.keywords:
            raise DeclarationError(
                f"{self._what} may call {', '.join(FUNCTIONS)}; got {name} in {self._text!r}; write it without"
            )
        function = ast.parse(FUNCTIONS[name], mode="eval").body
        arguments: list[ast.expr] = [self.visit(each) for each in node.args]
        while name in ("min", "max") and len(arguments) > 2:
            arguments[:2] = [ast.Call(function, arguments[:2], [])]
        return ast.Call(function, arguments, [])

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """``and`` and ``or`` as ``&`` and ``|``."""
        operator: ast.operator = ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr()
        joined: ast.expr = self.visit(node.values[0])
        for each in node.values[1:]:
            joined = ast.BinOp(joined, operator, self.visit(each))
        return joined

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """``not x`` as ``x == False``, which holds for a truth value and for an array of them."""
        operand: ast.expr = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return ast.Compare(operand, [ast.Eq()], [ast.Constant(False)])
        return ast.UnaryOp(node.op, operand)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Chains as pairs joined by ``&``; ``in`` as any of the values."""
        sides = [node.left, *node.comparators]
        pairs = [self._pair(sides[at], operator, sides[at + 1]) for at, operator in enumerate(node.ops)]
        joined = pairs[0]
        for each in pairs[1:]:
            joined = ast.BinOp(joined, ast.BitAnd(), each)
        return joined

    def _pair(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> ast.expr:
        if not isinstance(operator, ast.In | ast.NotIn):
            return ast.Compare(self.visit(left), [operator], [self.visit(right)])
        if not isinstance(right, ast.Tuple | ast.List) or not right.elts:
            raise DeclarationError(f"{self._what} has values after `in`, got {self._text!r}; list some")
        wanted, join = (ast.Eq(), ast.BitOr()) if isinstance(operator, ast.In) else (ast.NotEq(), ast.BitAnd())
        found: ast.expr | None = None
        for each in right.elts:
            one = ast.Compare(self.visit(left), [wanted], [self.visit(each)])
            found = one if found is None else ast.BinOp(found, join, one)
        assert found is not None
        return found


@dataclass(frozen=True)
class Given:
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


@dataclass(frozen=True)
class Shapes:
    """The sizes of a problem, and the shapes of its arrays.

    Attributes:
        sizes: Dim -> size, in the order in which a problem names them.
        of: Array -> its extents as expressions over the dims.
    """

    sizes: Mapping[str, int]
    of: Mapping[str, tuple[str, ...]]


def shapes_of(arguments: Sequence[Given], told: Mapping[str, object]) -> Shapes:
    """The sizes and shapes of a kernel's arguments.

    Args:
        arguments: In the kernel's order.
        told: Array -> its extents, as the author wrote them: ``"m k"``, ``("m", "k + 1")``. May be empty.

    Raises:
        InputError: Nothing tells which size an extent is, or an extent is not as the author says.
        DeclarationError: What the author says cannot be read.
    """
    sizes = {each.name: int(each.value) for each in arguments if each.is_size}
    arrays = [each for each in arguments if each.shape is not None]
    unknown = told.keys() - {each.name for each in arrays}
    if unknown:
        raise InputError(
            f"shapes= names arrays ({', '.join(each.name for each in arrays)}), got {sorted(unknown)[0]!r}; "
            "correct it"
        )
    of = {name: _extents(name, text) for name, text in told.items()}
    _learn_names(arrays, of, sizes)
    for each in arrays:
        of[each.name] = _checked(each, of[each.name], sizes) if each.name in of else _found(each, sizes)
    if not sizes:
        raise InputError(
            "a problem has a size, and none of these arguments has one: no array with more than one element, "
            "no whole number; pass one"
        )
    return Shapes(sizes, {each.name: of[each.name] for each in arrays})


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


def _learn_names(arrays: Sequence[Given], of: Mapping[str, tuple[str, ...]], sizes: dict[str, int]) -> None:
    """Extents that are mere names give these names their sizes."""
    for each in arrays:
        assert each.shape is not None
        extents = of.get(each.name, ())
        if extents and len(extents) != len(each.shape):
            raise InputError(
                f"shapes= gives {each.name} {len(extents)} dims ({' '.join(extents)}), the array has "
                f"{len(each.shape)}: {each.shape}; correct one of them"
            )
        for name, size in zip(extents, each.shape, strict=False):
            if name.isidentifier():
                sizes.setdefault(name, size)


def _checked(array: Given, extents: tuple[str, ...], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Extents as Python over the dims, once they hold for the array."""
    assert array.shape is not None
    names = {name: name for name in sizes}
    for text, size in zip(extents, array.shape, strict=True):
        unknown = names_in(text) - sizes.keys()
        if unknown:
            raise InputError(
                f"an extent is made of sizes ({', '.join(sizes)}), {array.name} has {text!r}; name an extent "
                f"{sorted(unknown)[0]!r} alone somewhere, or pass it as a number"
            )
        python = as_python(text, names, f"the shape of {array.name}")
        found = int(eval(python, {"ceil_div": lambda x, y: -(-x // y)}, dict(sizes)))
        if found != size:
            raise InputError(
                f"{array.name} has shape {array.shape}, and shapes= says {text} = {found} where it has {size}; "
                "correct one of them"
            )
    return extents


def _found(array: Given, sizes: dict[str, int]) -> tuple[str, ...]:
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
            name = _fresh(sizes)
            sizes[name] = size
            extents.append(name)
    return tuple(extents)


def _fresh(taken: Mapping[str, int]) -> str:
    """A name for a size that has none."""
    return next(name for name in ("n", *(f"n{number}" for number in range(2, 99))) if name not in taken)
