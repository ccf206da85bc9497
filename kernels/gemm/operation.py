"""gemm: C = op(A) op(B), row-major C of M x N, op(A) of M x K, op(B) of K x N.

The layout's two letters say how A and B are stored: ``n`` as used, ``t`` transposed. So ``nt`` stores A as
M x K and B as N x K. Every array is dense and row-major.
"""

from collections.abc import Mapping
from typing import Any

from tuner import Baseline, Operation, Problem, Tensor, Work

#: 16-bit dtypes: operands and result are in them, sums in float32.
HALVES = ("float16", "bfloat16")
#: Kernels in the order of the published ladders; ours come last.
LADDER = (
    "naive", "vectorised", "blocked", "direct", "packed",
    "row_shared", "tiled", "register_tiled", "warp_tiled",
    "multivector", "thin", "shallow", "small", "double_sums",
    "one_product", "three_products", "promoted", "emulated", "half_tiled", "wgmma_tma",
)  # fmt: skip


def _tensors(p: Problem) -> tuple[Tensor, ...]:
    a = (p.m, p.k) if p.layout[0] == "n" else (p.k, p.m)
    b = (p.k, p.n) if p.layout[1] == "n" else (p.n, p.k)
    return (
        Tensor("a", a, p.dtype),
        Tensor("b", b, p.dtype),
        Tensor("c", (p.m, p.n), p.dtype, output=True),
    )


def _work(p: Problem) -> Work:
    return Work(flops=2.0 * p.m * p.n * p.k, bytes=float(sum(tensor.bytes for tensor in p.tensors)))


def _operands(p: Problem, arrays: Mapping[str, Any]) -> tuple[Any, Any]:
    a, b = arrays["a"], arrays["b"]
    return (a.T if p.layout[0] == "t" else a), (b.T if p.layout[1] == "t" else b)


def _reference(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> Any:
    a, b = _operands(p, arrays)
    return xp.matmul(a.astype(xp.float64), b.astype(xp.float64))


def _numpy(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> None:
    a, b = _operands(p, arrays)
    if p.dtype in HALVES:  # NumPy has no fast product in them; some dtypes of ml_dtypes have none at all
        arrays["c"][...] = xp.matmul(a.astype(xp.float32), b.astype(xp.float32))
    else:
        xp.matmul(a, b, out=arrays["c"])


def _cublas(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> None:
    """cublasSgemm or cublasDgemm, called directly so that nothing is copied or allocated.

    cuBLAS is column-major: a row-major C is its C transposed, so B comes first and the letters swap. For 16-bit
    numbers it is the fastest of cublasGemmEx and what cuBLASLt proposes.
    """
    from ctypes import c_void_p

    from tuner.devices import cublas

    if p.dtype in HALVES:
        from tuner.devices.cublas_half import best_product

        best_product(p, arrays["a"], arrays["b"], arrays["c"])
        return
    gemm = cublas.function("cublasSgemm_v2" if p.dtype == "float32" else "cublasDgemm_v2")
    a, b, c = arrays["a"], arrays["b"], arrays["c"]
    one, zero = cublas.one_and_zero(p.dtype)
    status = gemm(
        cublas.handle(), cublas.OPERATION[p.layout[1]], cublas.OPERATION[p.layout[0]], p.n, p.m, p.k,
        one, c_void_p(b.data.ptr), b.shape[1], c_void_p(a.data.ptr), a.shape[1],
        zero, c_void_p(c.data.ptr), p.n,
    )  # fmt: skip
    cublas.check(status)


def _choose_cublas(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> None:
    """Times cuBLAS's ways to multiply 16-bit matrices: `_cublas` takes the fastest."""
    if p.dtype in HALVES:
        from tuner.devices.cublas_half import choose

        choose(p, arrays["a"], arrays["b"], arrays["c"])


def _source_constants(p: Problem, target: str) -> dict[str, Any]:
    stored = {"A_TRANSPOSED": p.layout[0] == "t", "B_TRANSPOSED": p.layout[1] == "t"}
    if target == "cuda" and p.dtype in HALVES:
        return stored | {"BFLOAT": p.dtype == "bfloat16"}
    return stored | ({"SCALAR": "float" if p.dtype == "float32" else "double"} if target == "cuda" else {})


C_REFERENCE = """
const long long row = index / n, column = index % n;
double sum = 0;
for (long long p = 0; p < k; ++p) {
    const double left = a[A_TRANSPOSED ? p * m + row : row * k + p];
    const double right = b[B_TRANSPOSED ? column * k + p : p * n + column];
    sum += left * right;
}
return sum;
"""

OPERATION = Operation(
    name="gemm",
    verb="matmul",
    dims=("m", "n", "k"),
    dtypes=("float32", "float64", *HALVES),
    layouts=("nn", "nt", "tn", "tt"),
    emulated=("float32",),
    sums=dict.fromkeys(HALVES, "float32"),
    tensors=_tensors,
    work=_work,
    reference=_reference,
    terms=lambda p: p.k,
    constants=_source_constants,
    c_reference={"c": C_REFERENCE},
    baselines={
        "cuda": Baseline("cuBLAS", _cublas, prepare=_choose_cublas),
        "cpu": Baseline("NumPy", _numpy, names=dict.fromkeys(HALVES, "NumPy in float32")),
    },
)
