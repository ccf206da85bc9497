"""Callables on a real GPU: every kernel, on the caller's stream, from several threads, for all arrays."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from fixtures.callable_records import CATALOGUE, crowned
from fixtures.gpu_starts import sized

import tuner
from tuner.declare.kernel import Kernel
from tuner.declare.problem import TOLERANCE_FACTOR, Problem
from tuner.declare.space import Config
from tuner.devices.detect import gpus
from tuner.python.decisions import device_info

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.usefixtures("own_records")
#: Problems of each operation: even, odd, thin; layouts that need turning.
PROBLEMS = {
    "gemm": [((128, 192, 64), "nn"), ((129, 67, 45), "nt"), ((8, 512, 513), "tn"), ((300, 4, 250), "tt")],
    "gemv": [((256, 512), "n"), ((301, 67), "t"), ((67, 20000), "n")],
    "transpose": [((256, 128), ""), ((301, 67), "")],
    "bmm": [
        ((300, 32, 32, 32), "nn"), ((33, 129, 67, 45), "nt"), ((5, 128, 64, 512), "tn"), ((64, 8, 16, 8), "tt"),
    ],
}  # fmt: skip
KERNELS = [
    kernel
    for kernel in CATALOGUE.kernels
    if kernel.target == "cuda"
    and kernel.operation in PROBLEMS
    and kernel.serves("ieee")
    and kernel.scope.dtypes != tuner.FLOAT8_DTYPES  # `test_fp8_gpu` calls them
]
#: Configs whose run is more than a launch, beside the kernels' first ones.
MORE: dict[str, dict[str, Any]] = {
    "gemm naive": {"PITCH": 32}, "gemm tiled": {"BORDER": "pad"}, "gemm row_shared": {"PITCH": 32},
    "gemv constant": {"PIECE": 256},
}  # fmt: skip


def problem_of(operation: str, sizes: tuple[int, ...], layout: str, dtype: str = "float32") -> Problem:
    return sized(CATALOGUE.operation(operation), sizes, dtype, layout)


def problems_of(kernel: Kernel) -> list[Problem]:
    """The problems in float32, or in bfloat16 for a kernel of 16 bits."""
    dtype = "bfloat16" if kernel.scope.dtypes and "float32" not in kernel.scope.dtypes else "float32"
    return [problem_of(kernel.operation, *given, dtype) for given in PROBLEMS[kernel.operation]]


def legal(kernel: Kernel, problem: Problem) -> list[Config]:
    """The kernel's first configs that are legal here, and those of `MORE`."""
    device = device_info("cuda:0")
    more = MORE.get(f"{kernel.operation} {kernel.name}")
    configs = [*kernel.first_configs()]
    configs += [Config({**config, **more}) for config in configs[:1] if more]
    return [
        config
        for config in configs
        if all(each.for_speed or each.rule(problem, device, config) for each in kernel.constraints)
    ]


def chosen(kernel: Kernel, problem: Problem, config: Config, speedup: float = 2.0) -> None:
    """Has the kernel run (or the library, below a speed-up of 1) for the problem."""
    crowned(
        problem.operation.name, problem.dims, problem.dtype, problem.layout, dict(config), speedup, kernel.name,
        device_info("cuda:0"),
    )  # fmt: skip
    tuner.clear_caches()


def first(operation: str, sizes: tuple[int, ...], layout: str, name: str, dtype: str = "float32") -> None:
    """Has a kernel's first legal config run."""
    (kernel,) = CATALOGUE.of(operation, "cuda", (name,))
    problem = problem_of(operation, sizes, layout, dtype)
    chosen(kernel, problem, legal(kernel, problem)[0])


def operands(problem: Problem, seed: int = 0) -> list[Any]:
    """A caller's arrays for a problem: views where the layout says so."""
    random = cp.random.default_rng(seed)
    arrays = [
        (random.standard_normal(each.shape) * 8).astype(each.dtype)
        for each in problem.tensors
        if not each.output
    ]
    letters = problem.layout.ljust(len(arrays), "n")
    return [
        array.swapaxes(-1, -2) if letter == "t" else array
        for array, letter in zip(arrays, letters, strict=True)
    ]


def call_of(problem: Problem) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(
        tuner, {"gemm": "matmul", "bmm": "matmul"}.get(problem.operation.name, problem.operation.name)
    )
    return function


def wanted(arrays: list[Any]) -> Any:
    if len(arrays) == 1:
        return arrays[0].T
    return cp.matmul(*(each.astype(cp.float64) for each in arrays))


def close(got: Any, right: Any, terms: int) -> None:
    assert isinstance(got, cp.ndarray)
    assert got.shape == right.shape
    allowed = TOLERANCE_FACTOR * {2: 2.0**-8, 4: 2.0**-24, 8: 2.0**-53}[got.dtype.itemsize] * terms**0.5
    scale = cp.sqrt(cp.mean(cp.square(right))) + cp.abs(right)
    assert float((cp.abs(got.astype(cp.float64) - right) / scale).max()) <= allowed


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: f"{kernel.operation}-{kernel.name}")
def test_every_kernel_is_right_on_two_streams(kernel: Kernel, ran: list[str]) -> None:
    for problem in problems_of(kernel):
        for config in legal(kernel, problem):
            chosen(kernel, problem, config)
            call, streams = call_of(problem), [cp.cuda.Stream(non_blocking=True) for _ in range(2)]
            results = []
            for turn in range(4):
                with streams[turn % 2]:
                    arrays = operands(problem, seed=turn)
                    results.append((call(*arrays), arrays))
            cp.cuda.runtime.deviceSynchronize()
            for got, arrays in results:
                close(got, wanted(arrays), tuple(problem.dims.values())[-1])
    assert set(ran) <= {kernel.name}


def test_every_kernel_is_run_by_some_problem() -> None:
    device_info("cuda:0")
    for kernel in KERNELS:
        assert any(legal(kernel, problem) for problem in problems_of(kernel)), kernel.name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_library_is_right_where_it_runs(dtype: str) -> None:
    for operation, given in PROBLEMS.items():
        for sizes, layout in given:
            problem = problem_of(operation, sizes, layout, dtype)
            kernel = next(
                each
                for each in KERNELS
                if each.operation == operation
                and dtype in (each.scope.dtypes or (dtype,))
                and legal(each, problem)
            )
            chosen(kernel, problem, legal(kernel, problem)[0], speedup=0.5)
            arrays = operands(problem)
            assert tuner.explain(call_of(problem), *arrays).use == "cuBLAS"
            close(call_of(problem)(*arrays), wanted(arrays), sizes[-1])
            out = cp.full(wanted(arrays).shape, cp.nan, dtype)
            assert call_of(problem)(*arrays, out=out) is out
            close(out, wanted(arrays), sizes[-1])


def test_it_runs_behind_what_is_queued_on_the_callers_stream() -> None:
    first("gemm", (512, 512, 512), "nn", "register_tiled")
    a, b = cp.zeros((512, 512), cp.float32), cp.ones((512, 512), cp.float32)
    tuner.matmul(a, b)
    stream = cp.cuda.Stream(non_blocking=True)
    for _ in range(5):
        with stream:
            busy = cp.zeros(1 << 26, cp.float32)
            for _ in range(20):
                busy += 1
            a[...] = busy[0]
            got = tuner.matmul(a, b)
            a[...] = -1
        stream.synchronize()
        assert float(got[0, 0]) == 20 * 512


def test_a_stream_that_is_in_use_stays_the_current_one() -> None:
    """Only CuPy holds it: a first call that put another in its place would destroy it under its own launch."""
    first("gemm", (160, 160, 160), "nn", "register_tiled")
    a = cp.ones((160, 160), cp.float32)
    cp.cuda.Stream(non_blocking=True).use()
    try:
        handle = cp.cuda.get_current_stream().ptr
        close(tuner.matmul(a, a), cp.full((160, 160), 160.0), 160)
        assert cp.cuda.get_current_stream().ptr == handle
    finally:
        cp.cuda.Stream.null.use()


def test_threads_with_streams_of_their_own() -> None:
    cases = []
    for sizes, name in (((128, 192, 64), "register_tiled"), ((129, 67, 45), "tiled"), ((96, 33, 70), "naive")):
        problem = problem_of("gemm", sizes, "nn")
        (kernel,) = CATALOGUE.of("gemm", "cuda", (name,))
        chosen(kernel, problem, legal(kernel, problem)[-1])
        cases.append(problem)

    def work(seed: int) -> None:
        with cp.cuda.Stream(non_blocking=True) as stream:
            for turn in range(60):
                problem = cases[(seed + turn) % len(cases)]
                arrays = operands(problem, seed=seed * 100 + turn)
                got = tuner.matmul(*arrays)
                right = wanted(arrays)
                stream.synchronize()
                close(got, right, problem.k)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


def test_threads_on_one_stream() -> None:
    """Padded copies and constant memory belong to a stream: two threads must not mix what they queue there."""
    problem = problem_of("gemv", (67, 20000), "n")
    (kernel,) = CATALOGUE.of("gemv", "cuda", ("constant",))
    chosen(kernel, problem, legal(kernel, problem)[-1])
    stream = cp.cuda.Stream(non_blocking=True)
    given = [operands(problem, seed=seed) for seed in range(4)]
    cp.cuda.runtime.deviceSynchronize()

    def work(arrays: list[Any]) -> list[Any]:
        with stream:
            return [tuner.gemv(*arrays) for _ in range(50)]

    with ThreadPoolExecutor(len(given)) as pool:
        results = list(pool.map(work, given))
    stream.synchronize()
    for arrays, got in zip(given, results, strict=True):
        for each in got:
            close(each, wanted(arrays), 20000)


def test_views_and_results_that_are_given(ran: list[str]) -> None:
    for layout in ("nn", "tn", "nt", "tt"):
        first("gemm", (64, 96, 128), layout, "register_tiled")
    first("gemm", (96, 64, 128), "nn", "register_tiled")
    whole = cp.random.default_rng(0).standard_normal((300, 301)).astype(cp.float32)
    b = cp.ascontiguousarray(whole[:128, :96])
    views = {
        "dense": cp.ascontiguousarray(whole[:64, :128]),
        "gaps": whole[:64, 1:129],
        "turned with gaps": whole[:128, :64].T,
        "backwards": whole[63::-1, 127::-1],
        "begins in between": whole.ravel()[1 : 64 * 128 + 1].reshape(64, 128),
    }
    for a in views.values():
        close(tuner.matmul(a, b), wanted([a, b]), 128)
        out = whole[100:164, 100:196]
        assert tuner.matmul(a, b, out=out) is out
        close(out, wanted([a, b]), 128)
    turned = cp.empty((96, 64), cp.float32).T
    close(tuner.matmul(views["dense"], b, out=turned), wanted([views["dense"], b]), 128)
    square, other = (cp.ascontiguousarray(whole[:96, :96]) for _ in range(2))
    right = wanted([square, other])
    close(tuner.matmul(square, other, out=square), right, 96)


class ByDlpack:
    """Offers an array by DLPack alone."""

    def __init__(self, array: Any) -> None:
        self.array = array

    shape = property(lambda self: self.array.shape)

    def __dlpack__(self, **more: Any) -> Any:
        return self.array.__dlpack__(**more)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __array_namespace__(self) -> Any:
        return type("library", (), {"from_dlpack": staticmethod(lambda array: ByDlpack(cp.from_dlpack(array)))})


class ByInterface:
    """Offers an array by the CUDA array interface alone."""

    def __init__(self, array: Any) -> None:
        self.array = array

    shape = property(lambda self: self.array.shape)
    __cuda_array_interface__ = property(lambda self: self.array.__cuda_array_interface__)


@pytest.mark.parametrize("kind", [ByDlpack, ByInterface])
def test_other_libraries_share_their_memory(kind: Any, ran: list[str]) -> None:
    first("gemm", (64, 96, 128), "nt", "register_tiled")
    arrays = operands(problem_of("gemm", (64, 96, 128), "nt"))
    got = tuner.matmul(*map(kind, arrays))
    assert isinstance(got, ByDlpack if kind is ByDlpack else cp.ndarray)
    close(getattr(got, "array", got), wanted(arrays), 128)
    out = cp.zeros((64, 96), cp.float32)
    tuner.matmul(*map(kind, arrays), out=kind(out))
    close(out, wanted(arrays), 128)
    assert set(ran) == {"register_tiled"}


def test_pytorch_gets_tensors_back(ran: list[str]) -> None:
    torch = pytest.importorskip("torch")
    first("gemm", (64, 96, 128), "nt", "register_tiled")
    a, b = torch.randn(64, 128, device="cuda"), torch.randn(96, 128, device="cuda").T
    with torch.cuda.stream(torch.cuda.Stream()):
        got = tuner.matmul(a, b)
    torch.cuda.synchronize()
    assert torch.allclose(got, a @ b, rtol=1e-4, atol=1e-3)
    assert ran == ["register_tiled"]


def test_what_kernels_cannot_do_cupy_does() -> None:
    half = cp.ones((4, 4), cp.float16)
    assert tuner.matmul(half, half).dtype == cp.float16
    assert tuner.matmul(cp.ones((2, 3, 4)), cp.ones((4, 5))).shape == (2, 3, 5)
    assert tuner.matmul(cp.ones((3, 4)), cp.ones((2, 4, 5))).shape == (2, 3, 5)
    assert not tuner.matmul(cp.ones((3, 0)), cp.ones((0, 2))).any()
    assert float(tuner.matmul(cp.ones(5), cp.ones(5))) == 5.0
    with pytest.raises(ValueError, match="core dimensions"):
        tuner.matmul(cp.ones((2, 3)), cp.ones((2, 3)))
    with pytest.raises(TypeError, match="one library"):
        tuner.matmul(cp.ones((2, 2)), np.ones((2, 2)))


def test_a_warm_call_can_be_captured_into_a_graph() -> None:
    first("gemm", (128, 192, 64), "nn", "register_tiled")
    arrays = operands(problem_of("gemm", (128, 192, 64), "nn"))
    out = cp.empty((128, 192), cp.float32)
    tuner.matmul(*arrays, out=out)
    out.fill(0)
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.runtime.deviceSynchronize()
    with stream:
        stream.begin_capture()
        tuner.matmul(*arrays, out=out)
        graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()
    close(out, wanted(arrays), 64)


@pytest.mark.skipif(len(gpus()) < 2, reason="needs two GPUs")
def test_arrays_on_another_gpu_are_computed_there() -> None:
    with cp.cuda.Device(1):
        arrays = operands(problem_of("gemm", (128, 192, 64), "nn"))
    got = tuner.matmul(*arrays)
    assert got.device.id == 1
    with cp.cuda.Device(1):
        close(got, wanted(arrays), 64)
