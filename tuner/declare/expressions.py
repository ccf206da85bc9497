"""Expressions written as text, turned into Python that holds for one config and for arrays of many.

``"BLOCK <= n and n % BLOCK == 0"`` is how people write a rule, and how Kernel Tuner takes its restrictions.
Constraints see NumPy arrays of many configs at once, for which ``and``, ``or``, ``not``, ``min`` and chained
comparisons do not work; they become what does.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from tuner.errors import DeclarationError

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
