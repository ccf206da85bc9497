"""Rules written as text hold for one config and for arrays of many, as Python has them."""

from __future__ import annotations

import itertools
import math

import pytest

import tuner
from tuner.declare.own import rule
from tuner.declare.shapes import spelt
from tuner.declare.space import Config, Constraint, Space, choice
from tuner.errors import DeclarationError

#: An expression -> the same in plain Python.
RULES = {
    "a <= b and b % 4 == 0": lambda a, b: a <= b and b % 4 == 0,
    "a < b or not b == 7": lambda a, b: a < b or b != 7,
    "1 <= a <= b <= 64": lambda a, b: 1 <= a <= b <= 64,
    "a in (1, 3, 7) or b not in [2, 4]": lambda a, b: a in (1, 3, 7) or b not in [2, 4],
    "1 <= min(a + 1, b) % 5 <= 3 and ceil_div(a, b) + 1 in (2, 4)": lambda a, b: (
        1 <= min(a + 1, b) % 5 <= 3 and math.ceil(a / b) + 1 in (2, 4)
    ),
    "b == 7 or a % (b - 7) < max(2, abs(a - b))": lambda a, b: b == 7 or a % (b - 7) < max(2, abs(a - b)),
}
PARAMETERS = (choice("a", *range(1, 12)), choice("b", *range(1, 13)))


def constraint(text: str) -> Constraint:
    names = {"a": "c.a", "b": "c.b"}
    return rule(
        text, eval(f"lambda p, d, c: {spelt(text, names, 'a restriction')}", {"tuner": tuner}), ["a", "b"]
    )


@pytest.mark.parametrize("text", RULES)
def test_a_rule_says_of_a_space_what_python_says_of_each_config(text: str) -> None:
    space = Space.build(PARAMETERS, (constraint(text),), None, None)
    wanted = [(a, b) for a, b in itertools.product(*(each.values for each in PARAMETERS)) if RULES[text](a, b)]
    assert [tuple(config.values()) for config in space] == wanted
    assert constraint(text).rule(None, None, Config({"a": 3, "b": 4})) == RULES[text](3, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a <=", "is an expression of Python, got 'a <='"),
        ("a < c", "knows a, b, ceil_div, abs, min, max, got 'c' in 'a < c'"),
        ("__import__('os').system('true')", "got '__import__'"),
    ],
)
def test_what_cannot_hold_is_told(text: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        constraint(text)
