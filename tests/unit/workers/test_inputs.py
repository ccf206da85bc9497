"""Inputs that an operation draws itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy
import pytest
from fixtures.fake_device import TOY

from tuner.declare import catalogue
from tuner.declare.problem import Problem
from tuner.errors import DeclarationError
from tuner.workers.inputs import ROOM, Inputs


def inputs(draws: Callable[..., Any] | None, fixed: bool = False, n: int = 100) -> Inputs:
    operation = replace(catalogue.from_file(TOY).operation("toy"), draws=draws, fixed=fixed)
    problem: Problem = operation.problem({"n": n})
    return Inputs(numpy, problem, numpy.random.default_rng(1), 1)


def changed(inputs: Inputs) -> list[str]:
    """Names of the inputs that differ from what was placed there."""
    return [name for name, (cells, placed) in inputs.pairs().items() if (cells != placed).any()]


def test_own_numbers_are_drawn_anew_and_never_flipped() -> None:
    own = inputs(lambda p, tensor, generator, count: generator.choice([3.0, 5.0], count))
    first = own.arrays["x"].copy()
    assert set(first) == {3.0, 5.0}
    own.shuffle()
    assert set(own.arrays["x"]) == {3.0, 5.0}
    assert (own.arrays["x"] != first).any()
    own.flip()
    assert set(own.arrays["x"]) == {3.0, 5.0}
    assert changed(own) == []


def test_fixed_inputs_stay_as_they_are_and_writes_into_them_are_found() -> None:
    own = inputs(lambda p, tensor, generator, count: numpy.resize(numpy.arange(p.n), count), fixed=True)
    own.shuffle()
    assert own.arrays["x"].tolist() == list(range(100))
    own.arrays["x"][7] = 0
    assert changed(own) == ["x"]


def test_a_rule_that_returns_none_leaves_normal_numbers() -> None:
    assert (inputs(lambda *told: None).arrays["x"] == inputs(None).arrays["x"]).all()


def test_too_few_numbers_are_told() -> None:
    with pytest.raises(DeclarationError, match=rf"draws= of operation 'toy' gives {100 + ROOM} numbers for x"):
        inputs(lambda p, tensor, generator, count: numpy.zeros(3))
