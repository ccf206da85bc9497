"""Rules written as text hold for one config and for arrays of many."""

from __future__ import annotations

import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.declare.shapes import expression, names_in
from tuner.errors import DeclarationError

#: An expression -> the same in plain Python.
RULES = {
    "a <= b and b % 4 == 0": lambda a, b: a <= b and b % 4 == 0,
    "a < b or not b == 7": lambda a, b: a < b or b != 7,
    "1 <= a <= b <= 64": lambda a, b: 1 <= a <= b <= 64,
    "a in (1, 3, 7) or b not in [2, 4]": lambda a, b: a in (1, 3, 7) or b not in [2, 4],
    "min(a, b, 5) * max(a, b) > 20": lambda a, b: min(a, b, 5) * max(a, b) > 20,
    "1 <= min(a + 1, b) % 5 <= 3 and ceil_div(a, b) + 1 in (2, 4)": lambda a, b: (
        1 <= min(a + 1, b) % 5 <= 3 and math.ceil(a / b) + 1 in (2, 4)
    ),
    "ceil_div(a, b) == 1 and abs(a - b) < 3": lambda a, b: math.ceil(a / b) == 1 and abs(a - b) < 3,
}


def value_of(text: str, a: object, b: object) -> object:
    return expression(text, ("a", "b"), "a restriction")({"a": a, "b": b})


@pytest.mark.parametrize("text", RULES)
@given(pairs=st.lists(st.tuples(st.integers(1, 99), st.integers(1, 99)), min_size=1, max_size=20))
def test_a_rule_says_the_same_of_numbers_and_of_arrays(text: str, pairs: list[tuple[int, int]]) -> None:
    wanted = [bool(RULES[text](a, b)) for a, b in pairs]
    assert [bool(value_of(text, a, b)) for a, b in pairs] == wanted
    a, b = (numpy.array(each) for each in zip(*pairs, strict=True))
    assert numpy.asarray(value_of(text, a, b)).tolist() == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a <=", "is an expression of Python, got 'a <='"),
        ("a < c", r"knows the names a, b; got 'c' in 'a < c'"),
        ("sqrt(a) < b", "may call ceil_div, abs, min, max; got sqrt"),
        ("a.real < b", "is made of numbers, names, comparisons .* with Attribute"),
        ("__import__('os').system('true')", "is made of numbers, names, comparisons"),
        ("a in ()", "has values after `in`"),
    ],
)
def test_what_cannot_hold_is_told(text: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        value_of(text, 1, 2)


def test_names_are_found() -> None:
    assert names_in("ceil_div(n, 2 * BLOCK)") == {"ceil_div", "n", "BLOCK"}
    assert names_in("n +") == set()
