"""Follows a declaration while it computes with dims, so that an export holds for every shape.

A launch rule is a Python function of a problem. Run on a problem whose dims are expressions, it returns
expressions, which are then written down in C or in Python. Each expression also has its value for one
shape: where the rule asks something (``if p.m > 64``) the answer for that shape is taken, and the question is
kept as an assumption. An export checks its assumptions, so that it is right or refuses.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tuner.declare.problem import Problem

_COMPUTE: Mapping[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "ceil": lambda left, right: -(-left // right), "<": operator.lt, "<=": operator.le, "==": operator.eq,
    "!=": operator.ne, "&": operator.and_, "|": operator.or_, "neg": operator.neg, "not": operator.not_,
}  # fmt: skip
#: not a < b is b <= a, and not a == b is a != b.
_OPPOSITES = {"<": "<=", "<=": "<", "==": "!=", "!=": "=="}
_IN_C = {"//": "/", "&": "&&", "|": "||", "not": "!"}
_IN_PYTHON = {"&": "and", "|": "or", "not": "not "}


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
        kept = condition if holds else _node("not", condition)
        if kept.operator == "<=" and _is_plain(kept.operands[0], 1) and _positive(kept.operands[1]):
            return
        if all(key_of(kept) != key_of(other.condition) for other in self.assumptions):
            self.assumptions.append(Assumption(kept, self.rule))


@dataclass(frozen=True)
class Assumption:
    """A condition that an export must check, and the declared sentence behind it (may be empty)."""

    condition: Expression
    sentence: str = ""


class Expression:
    """A dim, or what is computed from dims: an operator, its operands and its value for the traced shape."""

    __slots__ = ("operands", "operator", "trace", "value")

    def __init__(self, trace: Trace, operator: str, operands: tuple[Any, ...], value: Any) -> None:
        self.trace = trace
        self.operator = operator
        self.operands = operands
        self.value = value

    if TYPE_CHECKING:  # operators are added below

        def __getattr__(self, name: str) -> Any: ...

    __eq__: Any = lambda self, other: _node("==", self, other)
    __ne__: Any = lambda self, other: _node("!=", self, other)

    def __neg__(self) -> Any:
        return self.operands[0] if self.operator == "neg" else _node("neg", self)

    def __pos__(self) -> Any:
        return self

    def __invert__(self) -> Any:
        return _node("not", self)

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


def _computed(compute: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    return compute(_plain(left), _plain(right))


def _plain(value: Any) -> Any:
    return value.plain() if isinstance(value, Expression) else value


def _add_operators() -> None:
    """Gives `Expression` the operators of two operands.

    Some are followed; the others compute with the value itself, at the price of an assumption.
    """
    followed: dict[str, Callable[[Any, Any], Any]] = {
        "add": lambda a, b: a if _is_plain(b, 0) else b if _is_plain(a, 0) else _node("+", a, b),
        "sub": lambda a, b: _node("-", a, b),
        "mul": lambda a, b: a if _is_plain(b, 1) else b if _is_plain(a, 1) else _node("*", a, b),
        "floordiv": lambda a, b: _divide("//", a, b),
        "mod": lambda a, b: _divide("%", a, b),
        "and": lambda a, b: _joined("&", a, b),
        "or": lambda a, b: _joined("|", a, b),
        "lt": lambda a, b: _node("<", a, b),
        "le": lambda a, b: _node("<=", a, b),
        "gt": lambda a, b: _node("<", b, a),
        "ge": lambda a, b: _node("<=", b, a),
    }
    for name in ("truediv", "pow", "lshift", "rshift"):
        followed[name] = partial(_computed, getattr(operator, name))
    for name, write in followed.items():
        setattr(Expression, f"__{name}__", lambda a, b, write=write: write(a, b))
        setattr(Expression, f"__r{name}__", lambda a, b, write=write: write(b, a))


_add_operators()


def _node(operator: str, *operands: Any) -> Expression:
    trace = next(operand.trace for operand in operands if isinstance(operand, Expression))
    if operator == "not" and operands[0].operator in _OPPOSITES:
        left, right = operands[0].operands
        ordered = (right, left) if operands[0].operator in ("<", "<=") else (left, right)
        return Expression(trace, _OPPOSITES[operands[0].operator], ordered, not operands[0].value)
    return Expression(trace, operator, operands, _COMPUTE[operator](*map(value_of, operands)))


def _is_plain(value: Any, number: int) -> bool:
    return isinstance(value, (int, float)) and value == number


def _divide(operator: str, left: Any, right: Any) -> Any:
    """Division as C does it as well: of what is not negative. ``-x // y`` is minus the ceiling of x / y."""
    if operator == "//" and isinstance(left, Expression) and left.operator == "neg" and _positive(right):
        return -_node("ceil", left.operands[0], right)
    if _not_negative(left) and _positive(right):
        return _node(operator, left, right)
    return _computed(_COMPUTE[operator], left, right)


def _not_negative(value: Any) -> bool:
    if not isinstance(value, Expression):
        return isinstance(value, int) and value >= 0
    return value.operator in ("dim", "+", "*", "//", "%", "ceil") and all(
        _not_negative(operand) for operand in value.operands if value.operator != "dim"
    )


def _positive(value: Any) -> bool:
    if not isinstance(value, Expression):
        return isinstance(value, int) and value > 0
    if value.operator in ("*", "ceil"):
        return all(_positive(operand) for operand in value.operands)
    if value.operator == "+":
        return _not_negative(value) and any(_positive(operand) for operand in value.operands)
    return value.operator == "dim"


def _joined(operator: str, left: Any, other: Any) -> Any:
    """``&`` or ``|``; with a plain truth value it is that, or the expression alone."""
    if not isinstance(left, Expression):
        left, other = other, left
    if isinstance(other, Expression):
        return _node(operator, left, other)
    return left if bool(other) == (operator == "&") else bool(other)


def value_of(each: Any) -> Any:
    """The value for the traced shape."""
    return each.value if isinstance(each, Expression) else each


def key_of(each: Any) -> Any:
    """Equal for expressions that are written alike."""
    if not isinstance(each, Expression):
        return each
    return (each.operator, *(key_of(operand) for operand in each.operands))


def evaluate(each: Any, dims: Mapping[str, int]) -> Any:
    """The value for another shape."""
    if not isinstance(each, Expression):
        return each
    if each.operator == "dim":
        return dims[each.operands[0]]
    return _COMPUTE[each.operator](*(evaluate(operand, dims) for operand in each.operands))


def in_c(each: Any) -> str:
    """Written in C, on dims of type long long and with ``ceil_div`` at hand."""
    return _written(each, _IN_C)[0]


def in_python(each: Any) -> str:
    """Written in Python, on dims that are whole numbers and with ``ceil_div`` at hand."""
    return _written(each, _IN_PYTHON)[0]


#: How tightly operators bind, in C as in Python; ``not`` is written as a call.
_BINDS = {"|": 1, "&": 2, "==": 4, "!=": 4, "<": 4, "<=": 4, "+": 5, "-": 5, "*": 6, "//": 6, "%": 6, "neg": 7}
_ATOM = 8


def _written(each: Any, spelt: Mapping[str, str]) -> tuple[str, int]:
    """The text, and how tightly it binds."""
    if not isinstance(each, Expression):
        return repr(int(each) if isinstance(each, bool) else each), _ATOM
    operator, operands = each.operator, each.operands
    if operator == "dim":
        return str(operands[0]), _ATOM
    texts = [_written(operand, spelt) for operand in operands]
    if operator == "ceil":
        return f"ceil_div({texts[0][0]}, {texts[1][0]})", _ATOM
    if operator == "not":
        return f"({spelt['not']}({texts[0][0]}))", _ATOM
    binds = _BINDS[operator]
    if operator == "neg":
        return f"-{_inside(texts[0], binds + 1)}", binds
    chains = operator in ("|", "&", "+", "-", "*", "//", "%")
    left = _inside(texts[0], binds if chains else binds + 1)
    # Conditions joined differently are put in parentheses for the reader, as compilers ask.
    left = f"({texts[0][0]})" if operator == "|" and texts[0][1] == _BINDS["&"] else left
    right = _inside(texts[1], _BINDS["&"] + 1 if operator == "|" else binds + 1)
    return f"{left} {spelt.get(operator, operator)} {right}", binds


def _inside(text: tuple[str, int], binds: int) -> str:
    return text[0] if text[1] >= binds else f"({text[0]})"


class TracedProblem(Problem):
    """A problem whose dims are expressions."""

    def __getattr__(self, name: str) -> Any:
        for dim, value in self.__dict__.get("shape", ()):
            if dim == name:
                return value
        raise AttributeError(name)


def traced(problem: Problem) -> tuple[TracedProblem, Trace]:
    """The problem with its dims as expressions, and the trace of what is done with it."""
    trace = Trace()
    shape: Any = tuple((name, Expression(trace, "dim", (name,), value)) for name, value in problem.shape)
    return TracedProblem(
        problem.operation, shape, problem.dtype, problem.layout, problem.precision, problem.epilogue
    ), trace
