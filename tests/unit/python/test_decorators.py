"""Functions of one's own that run their champions."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy
import pytest
from fixtures.fake_gpu import CupyArray, TorchTensor, aligned, install, on_gpu
from fixtures.own_kernels import PARAMS, VECTOR_ADD, add_arguments, double, plain_device

import tuner
from tuner.devices.detect import find
from tuner.errors import InputError, UnknownName
from tuner.python import decorators
from tuner.python.running import ConfigRunner
from tuner.study.locks import occupied


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Configs that were run; a fake board runs nothing in this process."""
    found: list[dict[str, Any]] = []

    class Ran(ConfigRunner):
        def __init__(self, kernel: Any, problem: Any, config: Any, *where: Any) -> None:
            super().__init__(kernel, problem, config, *where)
            self._config = dict(config)

        def run_for(self, arrays: Any, numbers: Any) -> Any:
            return lambda *given: found.append(self._config | {"shapes": [each.shape for each in given]})

    monkeypatch.setattr("tuner.python.decorators.ConfigRunner", Ran)
    return found


def adder(here: Path, **options: Any) -> tuner.TunedFunction:
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
    told = add.explain(*add_arguments(500))
    assert (told.use, told.match, told.config) == ("kernel", "exact", {"block_size_x": best})
    assert f"config        block_size_x={best}" in str(told)
    # In a process of its own, as it were, and at another shape.
    studies: list[object] = []
    plain = decorators.run_shown
    monkeypatch.setattr(decorators, "run_shown", lambda *given: studies.append(given) or plain(*given))
    again = adder(here, seconds=60)
    again(*add_arguments(500))
    assert (ran.pop()["block_size_x"], studies) == (best, [])
    with tuner.on_miss("measure"):
        again(*add_arguments(700))
    again(*add_arguments(700))
    assert len(studies) == 1
    assert ran.pop() == ran.pop()


def test_a_device_that_others_use_is_waited_for_and_then_the_first_config_runs(
    here: Path, ran: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    add = adder(here, on_miss="measure", seconds=60)
    held = find(f"fake:{here / 'device.json'}")
    with occupied(f"sqlite:///{here}/other.db", (held,), "another study"):
        monkeypatch.setattr(decorators, "LOCK_S", 0.3)
        with pytest.warns(UserWarning, match="another study.*; a config that is not tuned runs"):
            add(*add_arguments(500))
    assert ran.pop()["block_size_x"] == 32
    waiting = threading.Thread(target=add, args=add_arguments(600))
    monkeypatch.setattr(decorators, "LOCK_S", 30.0)
    with occupied(f"sqlite:///{here}/other.db", (held,), "another study"):
        waiting.start()
        time.sleep(0.3)
    waiting.join()
    assert ran.pop()["block_size_x"] != 32, "it was measured"


def turn(a: Any, out: Any, rows: int, cols: int, BLOCK: int = 4) -> None:
    for start in range(0, rows, BLOCK):
        for i in range(start, min(start + BLOCK, rows)):
            for j in range(cols):
                out[j, i] = a[i, j]


def test_sizes_that_are_equal_are_one_and_no_call_raises(here: Path) -> None:
    turned = tuner.kernel(BLOCK=[4, 8], on_miss="library")(turn)
    for shape in ((5, 5), (5, 7), (6, 6)):
        a, out = numpy.random.random(shape).astype("float32"), numpy.zeros(shape[::-1], "float32")
        turned(a, out, *shape)
        assert (out == a.T).all()
    assert turned.explain(out, out, 6, 6).problem == "turn 6 float32"
    told = tuner.kernel(BLOCK=[4], shapes={"a": "rows cols", "out": "cols rows"}, on_miss="library")(turn)
    assert told.explain(out, out, 6, 6).problem == "turn 6 x 6 float32"


@pytest.mark.parametrize("alpha", [(2.0, 2.0), (2.0, 3.0)])
def test_at_the_second_call_nothing_is_declared_asked_or_locked(
    alpha: tuple[float, float], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = tuner.kernel(BLOCK=[16, 64], on_miss="library", numbers="step")(fill)
    x, out = numpy.arange(100, dtype="float64"), numpy.zeros(100)
    tuned(x, out, alpha[0], 1)
    for name in ("KernelCode.problem", "answer", "views_of", "ConfigRunner.__init__"):
        monkeypatch.setattr(f"tuner.python.decorators.{name}", lambda *_: pytest.fail("asked again"))
    monkeypatch.setattr(tuned, "_lock", None)
    tuned(x, out, alpha[1], step=2)
    assert (out == alpha[1] * x + 2).all()
    assert (tuned.__name__, repr(tuned)) == (
        "fill", "<tuned kernel fill(x, out, alpha, step); BLOCK: 2 values>",
    )  # fmt: skip
    monkeypatch.undo()  # every second number of an array is another case, and no other result
    tuned(x[::2], out[:50], 2.0, 1)
    assert (out[:50] == 2 * x[::2] + 1).all()


def fill(x: Any, out: Any, alpha: float, step: int, BLOCK: int = 64) -> None:
    for start in range(0, x.size, BLOCK):
        for i in range(start, min(start + BLOCK, x.size)):
            out[i] = alpha * x[i] + step


@pytest.mark.parametrize("kind", [CupyArray, TorchTensor])
def test_cuda_text_runs_on_the_arrays_of_a_gpu(here: Path, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log = install(monkeypatch)
    add = adder(here, on_miss="library")
    c, a, b, n = add_arguments(500)
    arrays = [kind(on_gpu(each)) for each in (c, a, b)]
    for _ in range(2):
        add(*arrays, n)
    assert (arrays[0].host == a + b).all()
    assert log.runs == ["vector_add 500 float32"] * 2
    # A part of an array is refused before anything is tuned, even where one like it has run before.
    gaps = kind(aligned((1000,), "float32")[::2])
    with pytest.raises(InputError, match="a lies in memory row by row without gaps"):
        add(arrays[0], gaps, arrays[2], n)
    with pytest.raises(InputError, match="a begins at a multiple of 16 bytes"):
        add(arrays[0], kind(on_gpu(a, 4)), arrays[2], n)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: tuner.kernel(tile=[1])(double), UnknownName, r"option \(parameters are in capitals\) 'tile'"),
        (lambda: tuner.kernel()(double), InputError, "is tuned by its parameters, got none"),
        (lambda: tuner.kernel(BLOCK=[1], on_miss="g")(double), UnknownName, "unknown policy on_miss 'g'"),
        (lambda: tuner.kernel(BLOCK=[1])(double)(1, 2), InputError, "double takes 3 arguments"),
    ],
)
def test_what_is_wrong_is_told(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()
