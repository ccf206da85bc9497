"""A config on a caller's arrays: only arrays that are as the kernel takes them are passed."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from fixtures.fake_gpu import H200, CupyArray, Log, Shared, TorchTensor, on_gpu
from fixtures.own_kernels import double

from tuner.devices.detect import find
from tuner.errors import InputError
from tuner.python.running import ConfigRunner
from tuner.python.tuning import resolved

SCALE = """
__global__ void scale(float *out, const float *x, float alpha, int step, int n) {
    int i = blockIdx.x * block_size_x + threadIdx.x;
    if (i < n) out[i] = alpha * x[i];
}
"""


def scaled(x: Any, alpha: float) -> Any:
    return alpha * x


@pytest.fixture(scope="module")
def runner() -> ConfigRunner:
    x = numpy.arange(60, dtype="float32")
    catalogue, problem = resolved(double, "", [x, x.copy(), 60], {"BLOCK": [16]})
    return ConfigRunner(catalogue.of("double")[0], problem, {"BLOCK": 16}, find("cpu").info)


def on_board(spec: str = "") -> ConfigRunner:
    """A kernel for a GPU that is made of the host's memory, tuned with an alpha of 2 at step 1."""
    x = numpy.ones(60, "float32")
    options = {"problem_size": "n", "reference": scaled, "numbers": ["step"]}
    arguments = [x, x.copy(), 2.0, 1, 60]
    catalogue, problem = resolved(SCALE, "scale", arguments, {"block_size_x": [32]}, **options)
    return ConfigRunner(catalogue.of("scale")[0], problem, {"block_size_x": 32}, H200, spec)


def ramp(beyond: int = 0) -> Any:
    return on_gpu(numpy.arange(60, dtype="float32"), beyond)


def test_outputs_are_made_or_taken(runner: ConfigRunner, gpu: Log) -> None:
    x = numpy.arange(60, dtype="float32")
    assert (runner(x) == 2 * x).all()
    out = numpy.zeros_like(x)
    assert runner(x, out=out) is out
    assert (runner(x, out) == 2 * x).all()
    x.flags.writeable = False
    assert (runner(x) == 2 * x).all()
    host = TorchTensor(ramp(), "cpu")
    made = runner(host)
    assert (type(made), made.device, (made.host == 2 * host.host).all()) == (TorchTensor, "cpu", True)


@pytest.mark.parametrize("kind", [CupyArray, TorchTensor])
def test_arrays_of_a_gpu_stay_there(kind: Any, gpu: Log) -> None:
    run, x = on_board(), kind(ramp())
    made = run(x)
    assert type(made) is kind
    assert (made.host == 2 * x.host).all()
    out = kind(ramp())
    assert run(x, out=out) is out
    assert (out.host == 2 * x.host).all()
    assert gpu.runs == ["scale 60 float32"] * 2
    # On the stream of the library that the arrays are of.
    assert gpu.streams == ([77, 77] if kind is TorchTensor else [])


def test_they_run_where_they_lie_and_other_libraries_get_their_own_back(gpu: Log) -> None:
    run = on_board("cuda:1")
    assert run(CupyArray(ramp(), 1)).device_id == 1
    assert run(TorchTensor(ramp(), "cuda:1")).device == "cuda:1"
    assert CupyArray.current == 0
    shared = run(Shared(ramp()))
    assert type(shared) is Shared
    assert (shared.host == 2 * ramp()).all()
    # Arrays of NumPy are copied to the GPU and back.
    x, out = numpy.arange(60, dtype="float32"), numpy.zeros(60, "float32")
    assert run(x, out=out) is out
    assert (out == 2 * x).all()
    assert gpu.devices == [1, 0, 1]


@pytest.mark.parametrize("kind", [CupyArray, TorchTensor])
def test_numbers_that_are_no_sizes_may_differ_from_call_to_call(kind: Any, gpu: Log) -> None:
    run, x = on_board(), kind(ramp())
    run(x)
    run(x, alpha=3.5, step=9)
    assert gpu.scalars == [(2.0, 1, 60), (3.5, 9, 60)]
    assert [type(each).__name__ for each in gpu.scalars[1]] == ["float32", "int32", "int32"]


ONES = numpy.ones(60, "float32")
FIXED = numpy.frombuffer(bytes(240), "float32")


@pytest.mark.parametrize(
    ("arrays", "outputs", "message"),
    [
        ((ONES,), {"n": 3}, "got 1 arrays, and n by name"),
        ((numpy.ones(61, "float32"),), {}, r"x is float32 of shape \(60,\), got float32 of shape \(61,\)"),
        ((numpy.ones(120, "float32")[::2],), {}, "row by row without gaps"),
        (([1.0] * 60,), {}, "x is an array, got list"),
        ((ONES, FIXED), {}, "out is written .* read-only"),
    ],
)
def test_other_arrays_are_refused(runner: ConfigRunner, arrays: Any, outputs: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        runner(*arrays, **outputs)


@pytest.mark.parametrize(
    ("x", "out", "message"),
    [
        (TorchTensor(ramp(), requires_grad=True), {}, r"x carries gradients, .* pass x.detach\(\)"),
        (CupyArray(ramp(beyond=4)), {}, "x begins at a multiple of 16 bytes"),
        (
            CupyArray(ramp()),
            {"out": CupyArray(ramp(), 1)},
            "lie on one device .* got out of CuPy on cuda:1, x of CuPy on cuda:0",
        ),
        (
            CupyArray(ramp()),
            {"out": TorchTensor(ramp())},
            "are of one library, got out of PyTorch .*, x of CuPy",
        ),
        (CupyArray(ramp()), {"out": ONES}, "got out of NumPy on cpu, x of CuPy on cuda:0; bring them"),
    ],
)
def test_other_arrays_of_a_gpu_are_refused(x: Any, out: Any, message: str, gpu: Log) -> None:
    with pytest.raises(InputError, match=message):
        on_board()(x, **out)
    assert gpu.runs == []


def test_a_kernel_for_the_cpu_takes_no_arrays_of_a_gpu(runner: ConfigRunner, gpu: Log) -> None:
    with pytest.raises(InputError, match=r"one device, the CPU, .* got x of CuPy on cuda:0"):
        runner(CupyArray(ramp()))
