"""Functions are written down with whatever they use, and compute the same afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
import numpy as np
import pytest
from numba import njit, prange

from tuner.declare.own_source import Module, definition, unwrapped
from tuner.declare.own_source import njit as compiled
from tuner.errors import DeclarationError

SCALE, SHIFTS = 3.0, (1, 2)


def helper(x: Any) -> Any:
    """Twice as much."""
    return 2 * x


def uses_all(a: Any, b: Any = 1) -> Any:
    """A docstring that goes."""
    return helper(a) * SCALE + np.float32(b) + SHIFTS[0] + math.sqrt(4)


@njit(fastmath=True)
def fast(x: Any) -> Any:
    return helper_of_fast(x) + 1


@njit
def helper_of_fast(x: Any) -> Any:
    return x * 2


def parallel(out: Any) -> None:
    for i in prange(out.size):
        out[i] = fast(i)


def loaded(function: Callable[..., Any], name: str = "found") -> Any:
    module = Module()
    module.take(function, name)
    namespace: dict[str, Any] = {}
    exec("import numba\n" + module.text, namespace)
    return namespace[name], module.text


def test_what_a_function_uses_comes_with_it() -> None:
    function, text = loaded(uses_all)
    assert function(5.0, 2) == uses_all(5.0, 2)
    assert "docstring" not in text
    assert "import numpy as np" in text


def test_lambdas_closures_and_members_of_libraries() -> None:
    def made(factor: float) -> Callable[[float], float]:
        return lambda x: x * factor

    assert loaded(made(1.5))[0](4.0) == 6.0
    assert loaded(lambda a, b: a @ b + numpy.ones(2))[0](numpy.eye(2), numpy.eye(2))[0, 0] == 2
    assert loaded(numpy.hypot)[0] is numpy.hypot
    assert loaded(math.hypot)[0](3, 4) == 5


def test_compiled_functions_keep_their_options() -> None:
    inner, options = unwrapped(fast)
    assert (inner.__name__, options) == ("fast", {"fastmath": True})
    assert compiled(options or {}) == "@numba.njit(fastmath=True, cache=True)"
    module = Module()
    module.take(parallel, "found")
    text = module.text
    assert "from numba import prange as prange" in text
    assert "@numba.njit(fastmath=True, cache=True)\ndef fast(x):" in text


def test_two_lambdas_alike_on_a_line_are_told_apart_by_nobody() -> None:
    pair = (lambda x: x + 1, lambda x: x + 2)
    with pytest.raises(DeclarationError, match="a function is one of its kind on its line, found 2"):
        definition(pair[0])


OPEN_FILE = open(__file__)  # noqa: SIM115, PTH123
OPEN_FILE.close()


def uses_a_file() -> Any:
    return OPEN_FILE


def test_what_cannot_be_written_down_is_told() -> None:
    with pytest.raises(
        DeclarationError, match="uses_a_file uses 'OPEN_FILE', TextIOWrapper; pass it as an arg"
    ):
        loaded(uses_a_file)
    namespace: dict[str, Any] = {}
    exec("def hidden(): pass", namespace)
    with pytest.raises(DeclarationError, match="a function's source must be found, that of hidden cannot be"):
        loaded(namespace["hidden"])
