"""grouped: rows of A in groups of unequal length, each group times a matrix of its own (a mixture of experts).

A is rows x K. B is a stack of K x N matrices, one for each group, or of N x K ones for the layout ``nt``. Group
g is the rows from ``offsets[g - 1]``, or 0, to before ``offsets[g]``: int32, on the device, never descending. A
group may have no rows. Rows at and after the last offset are not written. Every array is dense and row-major.

A problem's layout says how B is stored, and how rows are spread over groups: kernels are right for any offsets,
and the fastest depends on it. ``uniform``: each row's group is drawn with equal chances. ``zipf``: with chances
of 1, 1/2, 1/3... ``hot``: half of all rows are one group's. ``decode``: 1 to 8 rows each, as far as there are
rows for it.

Operands of 8 bits (e4m3) lie as in ``nt`` alone. Their scales, in float32, are parts of an epilogue: one for A
and one for each matrix (``scale-tensor``); one for each row of A and each column of each product
(``scale-line``); or one for 1 x 128 elements of A, stored by blocks of k, and for 128 x 128 of a matrix
(``scale-block``). Results are bfloat16, or what the epilogue says.
"""

from collections.abc import Mapping
from typing import Any

import numpy

from tuner import FLOAT8_DTYPES, SCALES, Baseline, Epilogue, Operation, Problem, Tensor, Work
from tuner.declare.rules import draws_of_scales, scales_of_stacks, smaller, values_of_stacks

#: 16-bit dtypes: operands and result are in them, sums in float32.
HALVES = ("float16", "bfloat16")
#: ``cudaDataType`` (library_types.h), and the ``cublasComputeType`` of sums in float32 (cublas_api.h).
DATA_TYPES, COMPUTE_32F = {"float32": 0, "float16": 2, "bfloat16": 14}, 68
DISTRIBUTIONS = ("uniform", "zipf", "hot", "decode")
#: Rows of a group that decodes, at the most.
DECODED = 8
#: Draws of the offsets that inputs are taken from.
DRAWS = 32
#: Kernels from the plainest one on.
LADDER = ("stacked", "tiled", "warp_mma", "wgmma")


def _tensors(p: Problem) -> tuple[Tensor, ...]:
    b, epilogue = (p.k, p.n) if p.layout[1] == "n" else (p.n, p.k), Epilogue.read(p.epilogue)
    scales = scales_of_stacks(epilogue.scale, p.rows, p.n, p.k, p.groups)
    return (
        Tensor("a", (p.rows, p.k), p.dtype),
        Tensor("b", (p.groups, *b), p.dtype),
        Tensor("offsets", (p.groups,), "int32"),
        *(Tensor(name, shape, "float32") for name, shape in scales.items()),
        Tensor("c", (p.rows, p.n), epilogue.dtype(p.dtype), output=True),
    )


def _work(p: Problem) -> Work:
    """Of B no more matrices are read than there are rows."""
    a, b, *others = (float(tensor.bytes) for tensor in p.tensors)
    read = b / p.groups * smaller(p.groups, p.rows)
    return Work(flops=2.0 * p.rows * p.n * p.k, bytes=a + read + sum(others))


def _sizes(p: Problem, generator: Any) -> Any:
    """Rows of each group in `DRAWS` draws, shape (draws, groups)."""
    rows, groups = p.rows, p.groups
    distribution = p.layout.partition("-")[2]
    if distribution == "decode":
        most, least = max(DECODED, -(-rows // groups)), int(rows >= groups)
        left = numpy.full(groups, most - least)
        sizes = generator.multivariate_hypergeometric(left, rows - least * groups, DRAWS, method="marginals")
        return sizes + least
    chances = 1.0 / numpy.arange(1.0, groups + 1.0) if distribution == "zipf" else numpy.ones(groups)
    if distribution == "hot" and groups > 1:
        chances[0] = groups - 1.0
    sizes = generator.multinomial(rows, chances / chances.sum(), DRAWS)
    return generator.permuted(sizes, axis=1)


def _draws(p: Problem, tensor: Tensor, generator: Any, count: int) -> Any:
    """Offsets in whole draws; the matrices as usual."""
    if tensor.name == "offsets":
        return _sizes(p, generator).cumsum(axis=1)
    return draws_of_scales(tensor.name, p.k, generator, count)


def _product(xp: Any, p: Problem, arrays: Mapping[str, Any], dtype: str, out: Any) -> Any:
    """The library's products, one after the other, in a dtype."""
    ends = arrays["offsets"].tolist()
    for group, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if end > first:
            left, right = values_of_stacks(xp, p, arrays, slice(first, end), group, dtype)
            right = right.T if p.layout[1] == "t" else right
            if out.dtype == dtype:
                xp.matmul(left, right, out=out[first:end])
            else:
                out[first:end] = xp.matmul(left, right)
    return out


def _reference(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> Any:
    return _product(xp, p, arrays, "float64", xp.zeros((p.rows, p.n)))


def _numpy(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> None:
    """NumPy has no fast product in 16 bits."""
    _product(xp, p, arrays, "float32", arrays["c"])


def _cublas(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> None:
    """cublasGemmEx, once for each group, called directly so that nothing is copied or allocated.

    The host waits for the offsets, which a loop needs. cuBLAS is column-major: a row-major C is its C
    transposed, so B comes first.
    """
    from ctypes import c_void_p

    from tuner.devices.cuda import cublas

    if p.dtype in FLOAT8_DTYPES:
        from tuner.devices.cublaslt.products import products_in_turn

        products_in_turn(p, arrays, arrays["offsets"].tolist())
        return
    a, b, c = (arrays[name].data.ptr for name in "abc")
    kind, size, turned = DATA_TYPES[p.dtype], arrays["a"].itemsize, p.layout[1]
    one, zero = cublas.one_and_zero("float32")
    gemm, handle, ends = cublas.function("cublasGemmEx"), cublas.handle(), arrays["offsets"].tolist()
    for group, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if end > first:
            status = gemm(
                handle, cublas.OPERATION[turned], cublas.OPERATION["n"], p.n, end - first, p.k,
                one, c_void_p(b + group * p.k * p.n * size), kind, p.n if turned == "n" else p.k,
                c_void_p(a + first * p.k * size), kind, p.k,
                zero, c_void_p(c + first * p.n * size), kind, p.n, COMPUTE_32F, cublas.DEFAULT_ALGORITHM,
            )  # fmt: skip
            cublas.check(status)


def _source_constants(p: Problem, target: str) -> dict[str, Any]:
    stored: dict[str, Any] = {"A_TRANSPOSED": False, "B_TRANSPOSED": p.layout[1] == "t"}
    if target == "cuda" and p.dtype in FLOAT8_DTYPES:
        scales, result = ("", *SCALES).index(Epilogue.read(p.epilogue).scale), p.outputs[0].dtype
        of = {"EIGHT": 1, "SCALES": scales, "FLOAT_RESULT": result == "float32", "BFLOAT": result == "bfloat16"}
        return stored | of
    if target == "cuda":
        return stored | ({"BFLOAT": p.dtype == "bfloat16"} if p.dtype in HALVES else {"SCALAR": "float"})
    return stored


OPERATION = Operation(
    name="grouped",
    dims=("rows", "n", "k", "groups"),
    dtypes=("float32", *HALVES, *FLOAT8_DTYPES),
    layouts=tuple(f"{stored}-{distribution}" for distribution in DISTRIBUTIONS for stored in ("nn", "nt")),
    layouts_of=dict.fromkeys(FLOAT8_DTYPES, tuple(f"nt-{distribution}" for distribution in DISTRIBUTIONS)),
    parts={"rows": "groups"},
    scaled=FLOAT8_DTYPES,
    sums=dict.fromkeys((*HALVES, *FLOAT8_DTYPES), "float32"),
    tensors=_tensors,
    work=_work,
    draws=_draws,
    reference=_reference,
    terms=lambda p: p.k,
    constants=_source_constants,
    baselines={
        "cuda": Baseline("cuBLAS in a loop", _cublas, names=dict.fromkeys(FLOAT8_DTYPES, "cuBLASLt in a loop")),
        "cpu": Baseline(
            "NumPy in a loop",
            _numpy,
            names=dict.fromkeys((*HALVES, *FLOAT8_DTYPES), "NumPy in a loop, in float32"),
        ),
    },
)
