"""bmm: C[i] = op(A[i]) op(B[i]) for a batch of matrices, each as in gemm.

A is a stack of M x K matrices, or of K x M for a layout that begins with ``t``; B one of K x N, or of N x K.
Every stack is dense and row-major, so that matrices follow each other at a constant stride. A layout that ends
with ``-a`` has one A for all products, one with ``-b`` one B; where rows of all A follow each
other, that is gemm.

Operands of 8 bits (e4m3) lie as in ``nt`` alone, with scales as `grouped` has them, of all rows of A.
"""

from collections.abc import Mapping
from typing import Any

from tuner import FLOAT8_DTYPES, SCALES, Baseline, Epilogue, Operation, Problem, Tensor, Work
from tuner.declare.rules import draws_of_scales, scales_of_stacks, values_of_stacks

#: 16-bit dtypes: operands and result are in them, sums in float32.
HALVES = ("float16", "bfloat16")
#: ``cudaDataType`` (library_types.h), and ``cublasComputeType`` of the sums (cublas_api.h).
DATA_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14, "float64": 1}
COMPUTE_TYPES = {"float32": 68, "float64": 70}
#: Kernels from the one for the smallest matrices on.
LADDER = ("stacked", "small_matrices", "whole", "tiled", "emulated", "warp_mma", "wgmma", "wgmma_turns")


def _tensors(p: Problem) -> tuple[Tensor, ...]:
    a = (p.m, p.k) if p.layout[0] == "n" else (p.k, p.m)
    b = (p.k, p.n) if p.layout[1] == "n" else (p.n, p.k)
    of_a, of_b = (1 if p.layout.endswith(suffix) else p.batch for suffix in ("-a", "-b"))
    return (
        Tensor("a", (of_a, *a), p.dtype),
        Tensor("b", (of_b, *b), p.dtype),
        *(Tensor(name, shape, "float32") for name, shape in _scales(p).items()),
        Tensor("c", (p.batch, p.m, p.n), Epilogue.read(p.epilogue).dtype(p.dtype), output=True),
    )


def _scales(p: Problem) -> dict[str, tuple[Any, ...]]:
    return scales_of_stacks(Epilogue.read(p.epilogue).scale, p.batch * p.m, p.n, p.k, p.batch)


def _work(p: Problem) -> Work:
    return Work(flops=2.0 * p.batch * p.m * p.n * p.k, bytes=float(sum(tensor.bytes for tensor in p.tensors)))


def _eights(xp: Any, p: Problem, arrays: Mapping[str, Any], out: Any) -> Any:
    """The library's products of 8-bit numbers, one after the other, in the dtype of `out`."""
    flat = {**arrays, "a": arrays["a"].reshape(-1, p.k)}
    for at in range(p.batch):
        rows = slice(at * p.m, (at + 1) * p.m)
        left, right = values_of_stacks(xp, p, flat, rows, at, str(out.dtype))
        xp.matmul(left, right.T, out=out[at])
    return out


def _reference(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> Any:
    if p.dtype in FLOAT8_DTYPES:
        return _eights(xp, p, arrays, xp.empty((p.batch, p.m, p.n)))
    return _product(xp, p, arrays, "float64")


def _product(xp: Any, p: Problem, arrays: Mapping[str, Any], dtype: str, out: Any = None) -> Any:
    """The library's product of the stacks, in a dtype."""
    a, b = (arrays[name].astype(dtype, copy=False) for name in "ab")
    a, b = (
        stack.swapaxes(1, 2) if stored == "t" else stack
        for stack, stored in zip((a, b), p.layout[:2], strict=True)
    )
    return xp.matmul(a, b, out=out)


def _numpy(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> None:
    if p.dtype in FLOAT8_DTYPES:
        arrays["c"][...] = _eights(xp, p, arrays, xp.empty((p.batch, p.m, p.n), "float32"))
    elif p.dtype in HALVES:  # NumPy has no fast product in them
        arrays["c"][...] = _product(xp, p, arrays, "float32")
    else:
        _product(xp, p, arrays, p.dtype, arrays["c"])


def _cublas(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> None:
    """cublasGemmStridedBatchedEx, called directly so that nothing is copied or allocated.

    cuBLAS is column-major: a row-major C is its C transposed, so B comes first and the letters swap.
    """
    from ctypes import c_longlong, c_void_p

    from tuner.devices.cuda import cublas

    if p.dtype in FLOAT8_DTYPES:
        from tuner.devices.cublaslt.products import products_in_turn

        flat = {name: arrays[name].reshape(p.batch * p.m, -1) for name in "ac"}
        products_in_turn(p, {**arrays, **flat}, range(p.m, p.batch * p.m + 1, p.m))
        return
    a, b, c = (arrays[name] for name in "abc")
    kind, sums = DATA_TYPES[p.dtype], p.operation.sums.get(p.dtype, p.dtype)
    one, zero = cublas.one_and_zero(sums)
    a_step, b_step = (0 if s.shape[0] == 1 else s.shape[1] * s.shape[2] for s in (a, b))
    status = cublas.function("cublasGemmStridedBatchedEx")(
        cublas.handle(), cublas.OPERATION[p.layout[1]], cublas.OPERATION[p.layout[0]], p.n, p.m, p.k,
        one, c_void_p(b.data.ptr), kind, b.shape[2], c_longlong(b_step),
        c_void_p(a.data.ptr), kind, a.shape[2], c_longlong(a_step),
        zero, c_void_p(c.data.ptr), kind, p.n, c_longlong(p.m * p.n),
        p.batch, COMPUTE_TYPES[sums], cublas.DEFAULT_ALGORITHM,
    )  # fmt: skip
    cublas.check(status)


def _source_constants(p: Problem, target: str) -> dict[str, Any]:
    stored: dict[str, Any] = {
        "A_TRANSPOSED": p.layout[0] == "t", "B_TRANSPOSED": p.layout[1] == "t",
        "ONE_A": p.layout.endswith("-a"), "ONE_B": p.layout.endswith("-b"),
    }  # fmt: skip
    if target == "cuda" and p.dtype in FLOAT8_DTYPES:
        scales, result = ("", *SCALES).index(Epilogue.read(p.epilogue).scale), p.outputs[0].dtype
        of = {"EIGHT": 1, "SCALES": scales, "FLOAT_RESULT": result == "float32", "BFLOAT": result == "bfloat16"}
        return stored | of
    if target == "cuda" and p.dtype in HALVES:
        return stored | {"BFLOAT": p.dtype == "bfloat16"}
    return stored | ({"SCALAR": "float" if p.dtype == "float32" else "double"} if target == "cuda" else {})


C_REFERENCE = """
const long long matrix = index / (m * n), row = index / n % m, column = index % n;
double sum = 0;
for (long long p = 0; p < k; ++p) {
    double left = double(a[(ONE_A ? 0 : matrix * m * k) + (A_TRANSPOSED ? p * m + row : row * k + p)]);
    double right = double(b[(ONE_B ? 0 : matrix * k * n) + (B_TRANSPOSED ? column * k + p : p * n + column)]);
#if SCALES == 3
    left *= scale_a[p / 128 * batch * m + matrix * m + row];
    right *= scale_b[(matrix * ((n + 127) / 128) + column / 128) * ((k + 127) / 128) + p / 128];
#endif
    sum += left * right;
}
#if SCALES == 1
sum *= double(scale_a[0]) * scale_b[matrix];
#elif SCALES == 2
sum *= double(scale_a[matrix * m + row]) * scale_b[matrix * n + column];
#endif
return sum;
"""

OPERATION = Operation(
    name="bmm",
    dims=("batch", "m", "n", "k"),
    dtypes=("float32", "float64", *HALVES, *FLOAT8_DTYPES),
    layouts=("nn", "nt", "tn", "tt", "nn-a", "nt-a", "tn-a", "tt-a", "tn-b", "tt-b"),
    emulated=("float32",),
    layouts_of=dict.fromkeys(FLOAT8_DTYPES, ("nt",)),
    scaled=FLOAT8_DTYPES,
    sums=dict.fromkeys((*HALVES, *FLOAT8_DTYPES), "float32"),
    tensors=_tensors,
    work=_work,
    draws=lambda p, tensor, generator, count: draws_of_scales(tensor.name, p.k, generator, count),
    reference=_reference,
    terms=lambda p: p.k,
    constants=_source_constants,
    c_reference={"c": C_REFERENCE},
    baselines={
        "cuda": Baseline("cuBLAS", _cublas, names=dict.fromkeys(FLOAT8_DTYPES, "cuBLASLt in a loop")),
        "cpu": Baseline("NumPy", _numpy, names=dict.fromkeys((*HALVES, *FLOAT8_DTYPES), "NumPy in float32")),
    },
)
