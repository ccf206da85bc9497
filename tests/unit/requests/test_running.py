"""A config on a caller's arrays: only arrays that are as the kernel takes them are passed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
from fixtures.own_kernels import double

from tuner.devices.detect import find
from tuner.errors import InputError
from tuner.requests.running import Runner
from tuner.requests.resolving import resolved


@pytest.fixture(scope="module")
def runner() -> Runner:
    x = numpy.arange(60, dtype="float32")
    catalogue, problem = resolved(double, "", [x, x.copy(), 60], {"BLOCK": [16]}, {})
    return Runner(catalogue.of("double")[0], problem, {"BLOCK": 16}, find("cpu").info)


def test_outputs_are_made_or_taken(runner: Runner) -> None:
    x = numpy.arange(60, dtype="float32")
    assert (runner(x) == 2 * x).all()
    out = numpy.zeros_like(x)
    assert runner(x, out=out) is out
    assert (runner(x, out) == 2 * x).all()
    x.flags.writeable = False
    assert (runner(x) == 2 * x).all()


@pytest.mark.parametrize(
    ("arrays", "outputs", "message"),
    [
        ((), {}, "takes x, and maybe out by name; got 0 arrays"),
        ((numpy.ones(60, "float32"),), {"n": 3}, "got the name 'n'"),
        ((numpy.ones(61, "float32"),), {}, r"x is float32 of shape \(60,\), got float32 of shape \(61,\)"),
        ((numpy.ones(60),), {}, "got float64"),
        ((numpy.ones(120, "float32")[::2],), {}, "row by row without gaps"),
        (([1.0] * 60,), {}, "x is an array, got list"),
    ],
)
def test_other_arrays_are_refused(runner: Runner, arrays: Any, outputs: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        runner(*arrays, **outputs)


def test_the_folder_of_declarations_is_among_the_caches(runner: Runner) -> None:
    origin = runner.problem.operation.origin
    assert origin is not None
    assert Path(origin).parent.parent.name == "declared"
