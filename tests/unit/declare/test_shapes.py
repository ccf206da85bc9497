"""Sizes of a problem are found from its arguments, or the author is asked; expressions name them."""

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tuner
from tuner.declare.own import rule
from tuner.declare.shapes import KernelArgument, shapes_of, spelt
from tuner.declare.space import Config, Constraint, Space, choice
from tuner.errors import DeclarationError, InputError


def array(name: str, *shape: int) -> KernelArgument:
    return KernelArgument(name, "float32", shape)


def whole(name: str, value: int) -> KernelArgument:
    return KernelArgument(name, "int32", None, value)


def test_whole_numbers_are_sizes_and_extents_are_among_them() -> None:
    sizes, shapes, _ = shapes_of(
        [array("a", 30, 20), array("b", 20, 10), array("out", 30, 10), whole("m", 30)], {}
    )
    assert shapes == {"a": ("m", "n"), "b": ("n", "n2"), "out": ("m", "n2")}
    assert sizes == {"m": 30, "n": 20, "n2": 10}
    alone = shapes_of([array("x", 100), array("total", 1), whole("n", 100), whole("radius", 3)], {})
    assert alone == ({"n": 100, "radius": 3}, {"x": ("n",), "total": ("1",)}, {})
    with pytest.raises(InputError, match="a problem has a size"):
        shapes_of([array("a", 1)], {})


def test_equal_sizes_are_asked_about_and_can_be_told() -> None:
    arguments = [array("a", 8, 8), array("out", 8, 8), whole("m", 8), whole("n", 8)]
    with pytest.raises(InputError, match=r"m and n are equal here \(8\), .* shapes=\{'a': 'm n'"):
        shapes_of(arguments, {})
    _, shapes, _ = shapes_of(arguments, {"a": "m n", "out": ("n", "m")})
    assert shapes == {"a": ("m", "n"), "out": ("n", "m")}


def test_equal_sizes_are_one_where_the_author_cannot_be_asked() -> None:
    arguments = [array("a", 8, 8), array("out", 8, 9), whole("rows", 8), whole("cols", 8), whole("step", 8)]
    sizes, shapes, tied = shapes_of(arguments, {"out": "rows wide"}, ["step"], tie=True)
    assert (sizes, tied) == ({"rows": 8, "wide": 9}, {"cols": "rows"})
    assert shapes["a"] == ("rows", "rows")


def test_extents_may_be_computed() -> None:
    found = shapes_of([array("image", 34, 12), array("out", 32, 10)], {"image": "h + 2, w + 2", "out": "h w"})
    assert found == ({"h": 32, "w": 10}, {"image": ("h + 2", "w + 2"), "out": ("h", "w")}, {})


@pytest.mark.parametrize(("told", "kind", "message"), [
    ({"b": "n"}, InputError, "shapes= names arrays"),
    ({"a": "n m"}, InputError, r"shapes= gives a 2 dims \(n m\), the array has 1"),
    ({"a": "n + 1"}, InputError, r"a has shape \(12,\), and shapes= says n \+ 1 = 11 where it has 12"),
    ({"a": "2 * q"}, DeclarationError, "knows n, .*, got 'q'"),
    ({"a": 5}, DeclarationError, 'is written like "m k"'),
])  # fmt: skip
def test_wrong_shapes_are_told(told: dict[str, object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        shapes_of([array("a", 12), whole("n", 10)], told)


@given(sizes=st.lists(st.integers(2, 50), min_size=1, max_size=4, unique=True), data=st.data())
def test_shapes_give_back_the_arrays(sizes: list[int], data: st.DataObject) -> None:
    assume(len(sizes) == len(set(sizes)))
    arrays = [
        array(f"a{number}", *data.draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=3)))
        for number in range(3)
    ]
    numbers = [whole(f"s{at}", size) for at, size in enumerate(sizes)]
    found, shapes, _ = shapes_of([*arrays, *numbers], {})
    for each in arrays:
        assert tuple(found[name] for name in shapes[each.name]) == each.shape


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


@pytest.mark.parametrize(("text", "message"), [
    ("a <=", "is an expression of Python, got 'a <='"),
    ("a < c", "knows a, b, ceil_div, abs, min, max, got 'c' in 'a < c'"),
    ("__import__('os').system('true')", "got '__import__'"),
])  # fmt: skip
def test_what_cannot_hold_is_told(text: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        constraint(text)
