"""Functions of one's own that run their champions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
from fixtures.own_kernels import PARAMS, VECTOR_ADD, add_arguments, double, plain_device

import tuner
from tuner.errors import InputError, UnknownName
from tuner.requests import first_call
from tuner.requests.decorators import TunedFunction
from tuner.requests.running import Runner

pytestmark = pytest.mark.usefixtures("no_mirror")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Configs that were run; a fake board runs nothing in this process."""
    found: list[dict[str, Any]] = []

    class Ran(Runner):
        def __init__(self, kernel: Any, problem: Any, config: Any, device: Any) -> None:
            super().__init__(kernel, problem, config, device)
            self._config = dict(config)

        def run(self, *arrays: Any) -> None:
            found.append(self._config | {"shapes": [each.shape for each in arrays]})

    monkeypatch.setattr("tuner.requests.decorators.Runner", Ran)
    return found


def adder(here: Path, **options: Any) -> TunedFunction:
    device = plain_device(here / "device.json")
    return tuner.cuda_kernel(
        VECTOR_ADD, "vector_add", PARAMS, problem_size="n", reference=numpy.add, device=device, **options
    )


def test_a_call_at_a_new_shape_follows_the_policy_and_later_ones_run_the_champion(
    here: Path, ran: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    add = adder(here)
    with tuner.on_miss("library"):
        add(*add_arguments(500))
    assert ran.pop() == {"block_size_x": 32, "shapes": [(500,)] * 3}
    tuned = add.tune(*add_arguments(500), trials=20, progress=False)
    best = tuned.config["block_size_x"]
    assert best != 32
    add(*add_arguments(500))
    assert ran.pop()["block_size_x"] == best
    assert add.explain(*add_arguments(500)).match == "exact"
    # In a process of its own, as it were, and at another shape.
    measured: list[object] = []
    plain = first_call.run_shown
    monkeypatch.setattr(
        first_call, "run_shown", lambda study, shown: measured.append(study) or plain(study, shown)
    )
    again = adder(here, seconds=60)
    again(*add_arguments(500))
    assert (ran.pop()["block_size_x"], measured) == (best, [])
    with tuner.on_miss("measure"):
        again(*add_arguments(700))
    again(*add_arguments(700))
    assert len(measured) == 1
    assert ran.pop() == ran.pop()


def test_a_function_of_numba_runs_on_the_cpu_as_it_does_without(here: Path) -> None:
    tuned = tuner.kernel(BLOCK=[16, 64], on_miss="library")(double)
    x = numpy.arange(100, dtype="float32")
    out = numpy.zeros_like(x)
    tuned(x, out, n=100)
    assert (out == 2 * x).all()
    assert tuned.__name__ == "double"
    assert "double(x, out, n); BLOCK: 2 values" in repr(tuned)


WRONG = (
    (lambda: tuner.kernel(tile=[1])(double), UnknownName, r"option \(parameters are in capitals\) 'tile'"),
    (lambda: tuner.kernel()(double), InputError, "is tuned by its parameters, got none"),
    (lambda: tuner.kernel(BLOCK=[1], on_miss="g")(double), UnknownName, "unknown policy on_miss 'g'"),
    (lambda: tuner.cuda_kernel(VECTOR_ADD, "vector_add", PARAMS, grids="n"), UnknownName, "'grids'; did you"),
    (lambda: tuner.kernel(BLOCK=[1])(double)(1, 2), InputError, "double takes 3 arguments"),
)


@pytest.mark.parametrize(("call", "kind", "message"), WRONG)
def test_what_is_wrong_is_told(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()
