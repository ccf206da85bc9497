"""Follows a declaration while it computes with dims, so that an export holds for every shape.

A launch rule is a Python function of a problem. Run on a problem whose dims are expressions, it returns
expressions, which are then written down in C or in Python. Each expression also has its value for one
shape: where the rule asks something (``if p.m > 64``) the answer for that shape is taken, and the question is
kept as an assumption. An export checks its assumptions, so that it is right or refuses.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.declare import folders
from tuner.declare.launch import MAP_TYPES, PROMOTIONS, SWIZZLES, UNASKED_SHARED_BYTES, ceil_div
from tuner.declare.problem import Problem

#: How tightly an operator binds, in C as in Python, and what it computes. Conditions joined differently are put
#: in parentheses, as compilers ask.
_OPERATORS: Mapping[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "or": (1, operator.or_), "and": (1, operator.and_), "==": (2, operator.eq), "!=": (2, operator.ne),
    "<": (2, operator.lt), "<=": (2, operator.le), "+": (3, operator.add), "-": (3, operator.sub),
    "*": (4, operator.mul), "//": (4, operator.floordiv), "%": (4, operator.mod),
}  # fmt: skip
#: Operators from here on may be chained without parentheses: ``a - b - c``.
_CHAINS, _NEGATIVE, _ATOM = 3, 5, 6
#: Of each condition the operator that says the opposite. Sides change places where it is one of an order.
_OPPOSITES = {"<": "<=", "<=": "<", "==": "!=", "!=": "==", "and": "or", "or": "and"}


@dataclass
class Trace:
    """What one run of a rule assumed.

    Attributes:
        assumptions: Conditions that held, in the order met.
        rule: Sentence for people that assumptions made now belong to.
    """

    assumptions: list[Assumption] = field(default_factory=list)
    rule: str = ""

    def assume(self, condition: Expression, holds: bool) -> None:
        """Keeps what the traced shape answered; the same answer is kept once."""
        kept = condition if holds else ~condition
        left, sign, right = kept.parts
        if sign == "<=" and isinstance(left, int) and left <= least_of(right):
            return
        if all(kept.text != other.condition.text for other in self.assumptions):
            self.assumptions.append(Assumption(kept, self.rule))


@dataclass(frozen=True)
class Assumption:
    """A condition that an export must check, and the declared sentence behind it (may be empty)."""

    condition: Expression
    sentence: str = ""


@dataclass(eq=False, slots=True)
class Expression:
    """A dim, or what is computed from dims.

    Attributes:
        trace: Keeps what is assumed.
        text: In Python, on dims that are whole numbers and with ``ceil_div`` at hand.
        value: For the traced shape.
        least: The least that it may be.
        binds: How tightly its operator binds.
        parts: Its left side, operator and right side; of a negative number a minus and the number.
    """

    trace: Trace
    text: str
    value: Any
    least: float = -math.inf
    binds: int = _ATOM
    parts: tuple[Any, ...] = ()

    if TYPE_CHECKING:  # operators are added below

        def __getattr__(self, name: str) -> Any: ...

    def __neg__(self) -> Any:
        if self.binds == _NEGATIVE:
            return self.parts[1]
        return Expression(
            self.trace, f"-{_inside(self, _ATOM)}", -self.value, binds=_NEGATIVE, parts=("-", self)
        )

    def __invert__(self) -> Any:
        left, sign, right = self.parts
        if sign in ("and", "or"):
            left, right = ~left, ~right
        return _node(_OPPOSITES[sign], *((right, left) if sign in ("<", "<=") else (left, right)))

    def __bool__(self) -> bool:
        condition = self if isinstance(self.value, bool) else _node("!=", self, 0)
        self.trace.assume(condition, bool(self.value))
        return bool(self.value)

    def plain(self) -> Any:
        """The value, at the price of an assumption that it is this one."""
        if isinstance(self.value, bool):
            return bool(self)
        self.trace.assume(_node("==", self, self.value), True)
        return self.value

    def __int__(self) -> int:
        return int(self.plain())

    __index__ = __int__

    def __float__(self) -> float:
        return float(self.plain())

    def __hash__(self) -> int:
        return hash(self.plain())

    def __str__(self) -> str:
        return str(self.plain())

    def __format__(self, form: str) -> str:
        return format(self.plain(), form)


def _add_operators() -> None:
    """Gives `Expression` the operators of two operands.

    Some are followed; the others compute with the value itself, at the price of an assumption.
    """
    followed: dict[str, Callable[[Any, Any], Any]] = {
        "add": _sum, "mul": _product, "floordiv": _divided, "mod": partial(_divided, sign="%"),
        "gt": lambda left, right: _node("<", right, left), "ge": lambda left, right: _node("<=", right, left),
    }  # fmt: skip
    for name, sign in (("sub", "-"), ("lt", "<"), ("le", "<="), ("eq", "=="), ("ne", "!=")):
        followed[name] = partial(_node, sign)
    for name in ("and", "or"):
        followed[name] = partial(_joined, name)
    for name in ("truediv", "pow", "lshift", "rshift"):
        followed[name] = partial(_computed, getattr(operator, name))
    for name, write in followed.items():
        setattr(Expression, f"__{name}__", lambda a, b, write=write: write(a, b))
        setattr(Expression, f"__r{name}__", lambda a, b, write=write: write(b, a))


def _node(sign: str, left: Any, right: Any, least: float = -math.inf) -> Expression:
    binds, compute = _OPERATORS[sign]
    inner = _inside(left, binds if binds >= _CHAINS else binds + 1), sign, _inside(right, binds + 1)
    trace = left.trace if isinstance(left, Expression) else right.trace
    value = compute(value_of(left), value_of(right))
    return Expression(trace, " ".join(inner), value, least, binds, (left, sign, right))


def _sum(left: Any, right: Any) -> Any:
    if _is_plain(left, 0) or _is_plain(right, 0):
        return right if _is_plain(left, 0) else left
    return _node("+", left, right, least_of(left) + least_of(right))


def _product(left: Any, right: Any) -> Any:
    if _is_plain(left, 1) or _is_plain(right, 1):
        return right if _is_plain(left, 1) else left
    least = least_of(left), least_of(right)
    return _node("*", left, right, math.prod(least) if min(least) >= 0 else -math.inf)


def _divided(left: Any, right: Any, sign: str = "//") -> Any:
    """Division as C does it as well: of what is not negative. ``-x // y`` is minus the ceiling of x / y."""
    if sign == "//" and isinstance(left, Expression) and left.binds == _NEGATIVE and least_of(right) >= 1:
        return -_ceiling(left.parts[1], right)
    if least_of(left) >= 0 and least_of(right) >= 1:
        return _node(sign, left, right, 0)
    return _computed(_OPERATORS[sign][1], left, right)


def _ceiling(left: Expression, right: Any) -> Expression:
    text = f"ceil_div({left.text}, {in_python(right)})"
    least = 1 if left.least >= 1 else 0 if left.least >= 0 else -math.inf
    return Expression(left.trace, text, ceil_div(left.value, value_of(right)), least)


def _joined(sign: str, left: Any, right: Any) -> Any:
    """Conditions joined; with a plain truth value it is that, or the expression alone."""
    if isinstance(left, Expression) and isinstance(right, Expression):
        return _node(sign, left, right)
    condition, known = (left, bool(right)) if isinstance(left, Expression) else (right, bool(left))
    return condition if known == (sign == "and") else known


def _computed(compute: Callable[[Any, Any], Any], *operands: Any) -> Any:
    return compute(*(part.plain() if isinstance(part, Expression) else part for part in operands))


def _is_plain(value: Any, number: int) -> bool:
    return isinstance(value, (int, float)) and value == number


def _inside(part: Any, binds: int) -> str:
    return f"({part.text})" if isinstance(part, Expression) and part.binds < binds else in_python(part)


_add_operators()


def least_of(part: Any) -> float:
    """The least that a whole number may be; minus infinity for what need not be one."""
    if isinstance(part, Expression):
        return part.least
    return part if isinstance(part, int) else -math.inf


def value_of(part: Any) -> Any:
    """The value for the traced shape."""
    return part.value if isinstance(part, Expression) else part


def evaluate(part: Any, dims: Mapping[str, int]) -> Any:
    """The value for another shape."""
    return eval(part.text, {"ceil_div": ceil_div}, {**dims}) if isinstance(part, Expression) else part


def in_python(part: Any) -> str:
    """Written in Python, on dims that are whole numbers and with ``ceil_div`` at hand."""
    return part.text if isinstance(part, Expression) else repr(int(part) if isinstance(part, bool) else part)


def in_c(part: Any) -> str:
    """Written in C, on dims of type long long and with ``ceil_div`` at hand."""
    return in_python(part).replace(" // ", " / ").replace(" and ", " && ").replace(" or ", " || ")


def traced(problem: Problem) -> tuple[Problem, Trace]:
    """The problem with its dims as expressions, and the trace of what is done with it."""
    trace = Trace()
    shape: Any = tuple((name, Expression(trace, name, value, 1)) for name, value in problem.shape)
    return replace(problem, shape=shape), trace


def must_be_asked(shared_bytes: Any) -> bool:
    """Whether a launch needs leave for so much dynamic shared memory, or may, as it follows from the dims."""
    return not isinstance(shared_bytes, int) or shared_bytes > UNASKED_SHARED_BYTES


def filled(template: Path, filters: Mapping[str, Callable[[Any], Any]], **values: Any) -> str:
    """`tuner.declare.folders.filled` with filters for sizes, and the tables of tensor maps."""
    sizes = {"c": in_c, "py": in_python, "must_be_asked": must_be_asked}
    tables = {"data_types": MAP_TYPES, "swizzles": SWIZZLES, "promotions": PROMOTIONS}
    return folders.filled(template, {**sizes, **filters}, **tables, **values)
