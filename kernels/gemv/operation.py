"""gemv: y = A x, for A of M x N.

The layout's letter says how A is stored: ``n`` as it is, M x N row-major; ``t`` transposed, N x M, which is A
column-major. Every array is dense.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tuner import Baseline, Operation, Problem, Tensor, Work

#: Kernels in the order of the published ladder; ours come last.
LADDER = ("naive", "row_per_thread", "coalesced", "constant", "shared", "shuffle", "blocked", "streaming")


def _tensors(p: Problem) -> tuple[Tensor, ...]:
    a = (p.m, p.n) if p.layout == "n" else (p.n, p.m)
    return Tensor("a", a, p.dtype), Tensor("x", (p.n,), p.dtype), Tensor("y", (p.m,), p.dtype, output=True)


def _work(p: Problem) -> Work:
    """A is read once: nothing of it is used twice, so memory is the limit."""
    return Work(flops=2.0 * p.m * p.n, bytes=float(sum(tensor.bytes for tensor in p.tensors)))


def _reference(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> Any:
    a = arrays["a"].T if p.layout == "t" else arrays["a"]
    return xp.matmul(a.astype(xp.float64), arrays["x"].astype(xp.float64))


def _numpy(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> None:
    xp.matmul(arrays["a"].T if p.layout == "t" else arrays["a"], arrays["x"], out=arrays["y"])


def _cublas(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> None:
    """cublasSgemv or cublasDgemv, called directly so that nothing is copied or allocated.

    cuBLAS is column-major: its argument has as many rows as an array here has columns.
    """
    from ctypes import c_void_p

    from tuner.devices.cuda import cublas

    gemv = cublas.function("cublasSgemv_v2" if p.dtype == "float32" else "cublasDgemv_v2")
    a, x, y = arrays["a"], arrays["x"], arrays["y"]
    one, zero = cublas.one_and_zero(p.dtype)
    status = gemv(
        cublas.handle(), cublas.OPERATION["t" if p.layout == "n" else "n"], a.shape[1], a.shape[0],
        one, c_void_p(a.data.ptr), a.shape[1], c_void_p(x.data.ptr), 1, zero, c_void_p(y.data.ptr), 1,
    )  # fmt: skip
    cublas.check(status)


def _bound_cublas(p: Problem) -> Callable[..., None]:
    """As `_cublas`, for callers' arrays; CuPy's own product calls another function."""
    from tuner.devices.cuda.cublas import OPERATION, bound

    gemv, turned = bound("gemv", p.dtype), OPERATION["t" if p.layout == "n" else "n"]
    rows, columns = (p.n, p.m) if p.layout == "n" else (p.m, p.n)

    def run(a: Any, x: Any, y: Any) -> None:
        at = a.data.ptr, x.data.ptr, y.data.ptr
        gemv.call(
            gemv.handle(), turned, rows, columns, gemv.one, at[0], rows, at[1], 1, gemv.zero, at[2], 1
        )  # fmt: skip

    return run


def _source_constants(p: Problem, target: str) -> dict[str, Any]:
    stored = {"A_TRANSPOSED": p.layout == "t"}
    return stored | ({"SCALAR": "float" if p.dtype == "float32" else "double"} if target == "cuda" else {})


C_REFERENCE = """
double sum = 0;
for (long long j = 0; j < n; ++j) sum += double(a[A_TRANSPOSED ? j * m + index : index * n + j]) * double(x[j]);
return sum;
"""

OPERATION = Operation(
    name="gemv",
    verb="matvec",
    dims=("m", "n"),
    dtypes=("float32", "float64"),
    layouts=("n", "t"),
    tensors=_tensors,
    work=_work,
    reference=_reference,
    terms=lambda p: p.n,
    constants=_source_constants,
    c_reference={"y": C_REFERENCE},
    baselines={"cuda": Baseline("cuBLAS", _cublas, bind=_bound_cublas), "cpu": Baseline("NumPy", _numpy)},
)
