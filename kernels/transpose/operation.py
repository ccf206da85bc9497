"""transpose: B is A transposed; A of M x N and B of N x M, row-major and dense, elements of 4 or 8 bytes."""

from collections.abc import Callable, Mapping
from typing import Any

from tuner import Baseline, Operation, Problem, Tensor, Work

#: Kernels in the order of the published ladder; ours come last.
LADDER = ("naive", "blocked", "micro_tiles", "shared_tile", "padded_tile", "unrolled", "swizzled")
#: C's name of each dtype.
SCALARS = {"float32": "float", "float64": "double", "int32": "int"}


def _tensors(p: Problem) -> tuple[Tensor, ...]:
    return Tensor("a", (p.m, p.n), p.dtype), Tensor("b", (p.n, p.m), p.dtype, output=True)


def _work(p: Problem) -> Work:
    return Work(flops=0.0, bytes=float(sum(tensor.bytes for tensor in p.tensors)))


def _reference(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> Any:
    return arrays["a"].astype(xp.float64).T


def _numpy(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> None:
    xp.copyto(arrays["b"], arrays["a"].T)


def _cublas(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> None:
    """cublasSgeam or cublasDgeam; integers have no such function and are copied by CuPy.

    cuBLAS is column-major: A is given as N x M, transposed it is M x N, which row-major is B.
    """
    if p.dtype == "int32":
        _numpy(xp, p, arrays)
        return
    from ctypes import c_void_p

    from tuner.devices.cuda import cublas

    geam = cublas.function("cublasSgeam" if p.dtype == "float32" else "cublasDgeam")
    a, b = arrays["a"], arrays["b"]
    one, zero = cublas.one_and_zero(p.dtype)
    turned, plain = cublas.OPERATION["t"], cublas.OPERATION["n"]
    status = geam(
        cublas.handle(), turned, plain, p.m, p.n, one, c_void_p(a.data.ptr), p.n,
        zero, c_void_p(b.data.ptr), p.m, c_void_p(b.data.ptr), p.m,
    )  # fmt: skip
    cublas.check(status)


def _bound_cublas(p: Problem) -> Callable[..., None] | None:
    """As `_cublas`, for callers' arrays; CuPy's own copy calls another function."""
    if p.dtype == "int32":
        return None
    from tuner.devices.cuda.cublas import OPERATION as STORED
    from tuner.devices.cuda.cublas import bound

    geam, turned, plain = bound("geam", p.dtype), STORED["t"], STORED["n"]
    m, n = p.m, p.n

    def run(a: Any, b: Any) -> None:
        at, to = a.data.ptr, b.data.ptr
        geam.call(geam.handle(), turned, plain, m, n, geam.one, at, n, geam.zero, to, m, to, m)

    return run


OPERATION = Operation(
    name="transpose",
    dims=("m", "n"),
    dtypes=("float32", "float64", "int32"),
    tensors=_tensors,
    work=_work,
    reference=_reference,
    constants=lambda p, target: {"SCALAR": SCALARS[p.dtype]} if target == "cuda" else {},
    c_reference={"b": "return double(a[index % m * n + index / m]);"},
    baselines={
        "cuda": Baseline("cuBLAS", _cublas, names={"int32": "CuPy"}, bind=_bound_cublas),
        "cpu": Baseline("NumPy", _numpy, blas=False),
    },
)
