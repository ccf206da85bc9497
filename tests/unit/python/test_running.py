"""A config on a caller's arrays: only arrays that are as the kernel takes them are passed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
from fixtures.fake_gpu import H200, CupyArray, Log, Shared, TorchTensor, aligned, on_gpu
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


def test_outputs_are_made_or_taken(runner: ConfigRunner) -> None:
    x = numpy.arange(60, dtype="float32")
    assert (runner(x) == 2 * x).all()
    out = numpy.zeros_like(x)
    assert runner(x, out=out) is out
    assert (runner(x, out) == 2 * x).all()
    x.flags.writeable = False
    assert (runner(x) == 2 * x).all()


def test_a_tensor_of_pytorch_on_the_host_is_read_and_written_where_it_lies(
    runner: ConfigRunner, gpu: Log
) -> None:
    x, out = TorchTensor(ramp(), "cpu"), TorchTensor(ramp(), "cpu")
    assert runner(x, out=out) is out
    assert (out.host == 2 * x.host).all()
    made = runner(x)
    assert (type(made), made.device) == (TorchTensor, "cpu")
    assert (made.host == 2 * x.host).all()


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


def test_they_run_and_are_made_on_the_gpu_that_they_lie_on(gpu: Log) -> None:
    run = on_board()
    made = run(CupyArray(ramp(), 1))
    assert (made.device_id, gpu.devices) == (1, [1])
    assert run(TorchTensor(ramp(), "cuda:1")).device == "cuda:1"
    assert CupyArray.current == 0


def test_arrays_of_another_library_come_back_as_its_own(gpu: Log) -> None:
    made = on_board()(Shared(ramp()))
    assert type(made) is Shared
    assert (made.host == 2 * ramp()).all()


def test_arrays_of_numpy_are_copied_to_the_gpu_and_back(gpu: Log) -> None:
    x, out = numpy.arange(60, dtype="float32"), numpy.zeros(60, "float32")
    assert on_board("cuda:1")(x, out=out) is out
    assert (out == 2 * x).all()
    assert gpu.devices == [1]


@pytest.mark.parametrize("kind", [CupyArray, TorchTensor])
def test_numbers_that_are_no_sizes_may_differ_from_call_to_call(kind: Any, gpu: Log) -> None:
    run, x = on_board(), kind(ramp())
    run(x)
    run(x, alpha=3.5, step=9)
    assert gpu.scalars == [(2.0, 1, 60), (3.5, 9, 60)]
    assert [type(each).__name__ for each in gpu.scalars[1]] == ["float32", "int32", "int32"]


@pytest.mark.parametrize(
    ("arrays", "outputs", "message"),
    [
        ((), {}, "takes x, and maybe out by name; got 0 arrays"),
        ((numpy.ones(60, "float32"),), {"n": 3}, "got the name 'n'"),
        ((numpy.ones(61, "float32"),), {}, r"x is float32 of shape \(60,\), got float32 of shape \(61,\)"),
        ((numpy.ones(60),), {}, "got float64"),
        ((numpy.ones(60, ">f4"),), {}, "got >f4"),
        ((numpy.ones(120, "float32")[::2],), {}, "row by row without gaps"),
        (([1.0] * 60,), {}, "x is an array, got list"),
        ((numpy.ones(60, "float32"), numpy.broadcast_to(numpy.float32(1), 60)), {}, "out .* without gaps"),
        (
            (numpy.ones(60, "float32"), numpy.frombuffer(bytes(240), "float32")),
            {},
            "out is written .* read-only",
        ),
    ],
)
def test_other_arrays_are_refused(runner: ConfigRunner, arrays: Any, outputs: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        runner(*arrays, **outputs)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (lambda: (TorchTensor(ramp(), requires_grad=True),), r"x carries gradients, .* pass x.detach\(\)"),
        (lambda: (CupyArray(ramp(beyond=4)),), "x begins at a multiple of 16 bytes"),
        (lambda: (TorchTensor(aligned((120,), "float32")[::2]),), "x lies in memory row by row"),
        (
            lambda: (CupyArray(ramp()), CupyArray(ramp(), 1)),
            "all arrays of a call lie on one device, got out on cuda:1, x on cuda:0",
        ),
        (
            lambda: (CupyArray(ramp()), TorchTensor(ramp())),
            "all arrays of a call are of one library, got CuPy and PyTorch; convert",
        ),
        (lambda: (CupyArray(ramp()), numpy.ones(60, "float32")), "got out on cpu, x on cuda:0; bring them"),
    ],
)
def test_other_arrays_of_a_gpu_are_refused(arrays: Any, message: str, gpu: Log) -> None:
    given = arrays()
    named = {"out": given[1]} if len(given) > 1 else {}
    with pytest.raises(InputError, match=message):
        on_board()(given[0], **named)
    assert gpu.runs == []


def test_a_kernel_for_the_cpu_takes_no_arrays_of_a_gpu(runner: ConfigRunner, gpu: Log) -> None:
    with pytest.raises(InputError, match=r"the kernel is for the CPU, got arrays on cuda:0; pass"):
        runner(CupyArray(ramp()))


def test_the_folder_of_declarations_is_among_the_caches(runner: ConfigRunner) -> None:
    origin = runner.problem.operation.origin
    assert origin is not None
    assert Path(origin).parent.parent.name == "declared"
