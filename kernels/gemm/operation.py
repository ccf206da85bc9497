"""gemm: C = op(A) op(B), row-major C of M x N, op(A) of M x K, op(B) of K x N.

The layout's two letters say how A and B are stored: ``n`` as used, ``t`` transposed. So ``nt`` stores A as
M x K and B as N x K. Every array is dense and row-major. An epilogue changes the result before it is stored:
activation(alpha * op(A) op(B) + beta * c_in + bias) + residual, of which a problem declares parts.

Operands of 8 bits (e4m3; one may be e5m2: ``a-e5m2``, ``b-e5m2``) lie as in ``nt`` alone, as tensor cores read
them. Their numbers may have scales, in float32, as parts of the epilogue: one for each operand
(``scale-tensor``); one for each row of A and column of B (``scale-line``); or one for 1 x 128 elements of A,
stored by blocks of k, and for 128 x 128 of B (``scale-block``: DeepGEMM's convention). Results are bfloat16, or
what the epilogue says.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy

from tuner import (
    E5M2,
    FLOAT8_DTYPES,
    SCALE_BLOCK,
    SCALES,
    Baseline,
    Epilogue,
    Operation,
    Problem,
    Scalar,
    Tensor,
    Work,
    ceil_div,
    dims_as_scalars,
)

#: 16-bit dtypes: operands and result are in them, sums in float32.
HALVES = ("float16", "bfloat16")
#: Dtypes that results with an epilogue may have.
FINISHED = ("float32", *HALVES, *FLOAT8_DTYPES)
#: alpha and beta while kernels are verified and timed: neither 1 nor 0, exact in every dtype.
FACTORS = {"alpha": 0.75, "beta": 0.5}
#: What multiplies 16-bit matrices on a GPU unless something else is chosen, by PyTorch, too.
GEMM_EX = "cublasGemmEx"
#: The same for products that it has no function for.
FIRST_CHOICE = "cuBLASLt's first choice"
#: ``cudaDataType`` (library_types.h).
DATA_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14, "float64": 1, "float8_e4m3fn": 28, E5M2: 29}
#: Parts of an epilogue by their numbers in epilogue.cuh.
BIASES = ("", "bias-row", "bias-col")
ACTIVATIONS = ("", "relu", "gelu", "gelu-tanh", "silu")
#: Kernels in the order of the published ladders; ours come last.
LADDER = (
    "cublaslt", "cublaslt_fp8", "naive", "vectorised", "blocked", "direct", "packed",
    "row_shared", "tiled", "register_tiled", "triton_tiled", "warp_tiled",
    "multivector", "thin", "shallow", "small", "double_sums",
    "one_product", "three_products", "promoted", "emulated", "half_tiled", "wgmma_tma", "wgmma_fp8",
)  # fmt: skip


def _tensors(p: Problem) -> tuple[Tensor, ...]:
    a = (p.m, p.k) if p.layout[0] == "n" else (p.k, p.m)
    b = (p.k, p.n) if p.layout[1] == "n" else (p.n, p.k)
    epilogue, result = Epilogue.read(p.epilogue), _result(p)
    factors = [
        Tensor(name, shape, epilogue.operand_dtype(name, p.dtype)) for name, shape in (("a", a), ("b", b))
    ]
    c = Tensor("c", (p.m, p.n), result, output=True)
    if not p.epilogue:
        return *factors, c
    return (
        *factors,
        *(Tensor(name, shape, "float32") for name, shape in _scales(p, epilogue.scale).items()),
        *(Tensor(name, epilogue.shape_of(name, p.m, p.n), result) for name in epilogue.unscaled.operands),
        c,
    )


def _result(p: Problem) -> str:
    """The result's dtype."""
    return Epilogue.read(p.epilogue).dtype(p.dtype) if p.dtype in FLOAT8_DTYPES else p.dtype


def _scales(p: Problem, scale: str) -> dict[str, tuple[Any, ...]]:
    """Shapes of the operands' scales, as stored: those of A's blocks lie by k, so that rows are neighbours."""
    blocks = ceil_div(p.k, SCALE_BLOCK)
    shapes: dict[str, tuple[Any, Any]] = {
        "": ((), ()), "scale-tensor": ((1,), (1,)), "scale-line": ((p.m,), (p.n,)),
        "scale-block": ((blocks, p.m), (ceil_div(p.n, SCALE_BLOCK), blocks)),
    }  # fmt: skip
    return dict(zip(("scale_a", "scale_b"), shapes[scale], strict=True)) if scale else {}


def _scalars(p: Problem) -> tuple[Scalar, ...]:
    factors = Epilogue.read(p.epilogue).factors
    return (*dims_as_scalars(p), *(Scalar(name, "float32", FACTORS[name], given=True) for name in factors))


def _work(p: Problem) -> Work:
    bytes_ = float(sum(tensor.bytes for tensor in p.tensors))
    flops = 2.0 * p.m * p.n * p.k
    if p.epilogue:
        flops = flops + float(Epilogue.read(p.epilogue).flops) * p.m * p.n
    return Work(flops=flops, bytes=bytes_)


def _draws(p: Problem, tensor: Tensor, generator: Any, count: int) -> Any:
    """With an epilogue, sums of the size of its operands: an activation is then met where it bends.

    Of 8 bits the scale of A sees to that: numbers themselves would leave their range.
    """
    size = 1 / math.sqrt(p.k)
    if tensor.name in ("scale_a", "scale_b"):
        scales = generator.uniform(0.75, 1.25, count)
        return scales * size if tensor.name == "scale_a" else scales
    if not p.epilogue or tensor.name != "a" or p.dtype in FLOAT8_DTYPES:
        return None
    return generator.standard_normal(count, dtype="float32") * numpy.float32(size)


def _operands(p: Problem, arrays: Mapping[str, Any]) -> tuple[Any, Any]:
    a, b = arrays["a"], arrays["b"]
    return (a.T if p.layout[0] == "t" else a), (b.T if p.layout[1] == "t" else b)


def _values(xp: Any, p: Problem, arrays: Mapping[str, Any], kind: Any) -> tuple[Any, Any]:
    """Operands as numbers of another dtype, those of 8 bits times their scales."""
    a, b = _operands(p, arrays)
    if p.dtype not in FLOAT8_DTYPES:
        return a.astype(kind), b.astype(kind)
    cells = numpy.arange(256, dtype="uint8")
    known = (xp.asarray(cells.view(tensor.dtype).astype(kind)) for tensor in p.inputs)
    a, b = (of[numbers.view("uint8").astype("int32")] for of, numbers in zip(known, (a, b), strict=False))
    scale = Epilogue.read(p.epilogue).scale
    if not scale:
        return a, b
    of_a, of_b = (arrays[name].astype(kind) for name in ("scale_a", "scale_b"))
    if scale == "scale-block":
        of_a = of_a.T.repeat(SCALE_BLOCK, 1)[:, : p.k]
        of_b = of_b.repeat(SCALE_BLOCK, 0)[: p.n].repeat(SCALE_BLOCK, 1)[:, : p.k].T
        return a * of_a, b * of_b
    return a * of_a[:, None], b * of_b


def _reference(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> Any:
    sums = xp.matmul(*_values(xp, p, arrays, xp.float64))
    return Epilogue.read(p.epilogue).of(xp, sums, arrays | _factors(p)) if p.epilogue else sums


def _factors(p: Problem) -> dict[str, float]:
    return {each.name: each.value for each in p.scalars if each.given}


def _numpy(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> None:
    a, b = _operands(p, arrays)
    if p.epilogue:
        _finish(xp, p, arrays, a, b)
    elif p.dtype in (*HALVES, *FLOAT8_DTYPES):  # NumPy has no fast product in them, or none at all
        arrays["c"][...] = xp.matmul(*_values(xp, p, arrays, xp.float32))
    else:
        xp.matmul(a, b, out=arrays["c"])


def _finish(xp: Any, p: Problem, arrays: Mapping[str, Any], a: Any, b: Any) -> None:
    """NumPy's product, then one pass of NumPy after the other."""
    c = arrays["c"]
    sums = c if c.dtype == "float32" else xp.empty(c.shape, "float32")
    if p.dtype in FLOAT8_DTYPES:
        a, b = _values(xp, p, arrays, xp.float32)
    xp.matmul(a.astype(xp.float32, copy=False), b.astype(xp.float32, copy=False), out=sums)
    result = Epilogue.read(p.epilogue).of(xp, sums, arrays | _factors(p))
    if result is not c:
        c[...] = result


def _roundings(p: Problem) -> float:
    """How often the library rounds a result: once more where a kernel behind it finishes 16-bit numbers."""
    return 2.0 if p.dtype in HALVES and p.epilogue and Epilogue.read(p.epilogue).in_cublas[1] else 1.0


def _cublas(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> None:
    """cublasSgemm or cublasDgemm, called directly so that nothing is copied or allocated.

    cuBLAS is column-major: a row-major C is its C transposed, so B comes first and the letters swap. For 16-bit
    numbers it is cublasGemmEx, for an epilogue cuBLASLt's first proposal: what users get who do not choose.
    """
    from ctypes import c_void_p

    from tuner.devices.cuda import cublas

    if p.epilogue or p.dtype in (*HALVES, *FLOAT8_DTYPES):
        from tuner.devices.cublaslt.products import default_product

        default_product(p, arrays)
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


def _library_names(p: Problem) -> str:
    """What users who do not choose have on a GPU: cuBLASLt's epilogue as far as it goes, and a kernel.

    Until 2026-11-28 it was the fastest of what the library has, and had other names.
    """
    fused, rest = Epilogue.read(p.epilogue).in_cublas
    product = GEMM_EX if p.dtype in HALVES and not fused else FIRST_CHOICE
    return f"{product} + element-wise" if rest else product


def _epilogue_constants(p: Problem, target: str) -> dict[str, Any]:
    """What epilogue.cuh and epilogue.numba.py read, nothing where there is none; and what cuBLASLt is told."""
    if not p.epilogue and target != "cublaslt":
        return {}
    if target == "cpu":
        return {"EPILOGUE": p.epilogue}
    epilogue = Epilogue.read(p.epilogue)
    return {
        "EPILOGUE": int(bool(epilogue.unscaled)),
        "EPILOGUE_ALPHA": epilogue.alpha, "EPILOGUE_BETA": epilogue.beta,
        "EPILOGUE_BIAS": BIASES.index(epilogue.bias),
        "EPILOGUE_ACTIVATION": ACTIVATIONS.index(epilogue.activation),
        "EPILOGUE_RESIDUAL": epilogue.residual,
    }  # fmt: skip


def _source_constants(p: Problem, target: str) -> dict[str, Any]:
    stored = _epilogue_constants(p, target) | {
        "A_TRANSPOSED": p.layout[0] == "t",
        "B_TRANSPOSED": p.layout[1] == "t",
    }
    if p.dtype in FLOAT8_DTYPES:
        stored |= _of_eights(p, target)
    if target == "cublaslt":
        return stored | {"DTYPE": DATA_TYPES[p.dtype]}
    if target == "cuda" and _result(p) in HALVES:
        return stored | {"BFLOAT": _result(p) == "bfloat16"}
    if target != "cuda" or p.dtype in FLOAT8_DTYPES:
        return stored
    return stored | {"SCALAR": "float" if p.dtype == "float32" else "double"}


def _of_eights(p: Problem, target: str) -> dict[str, Any]:
    """Scales and the result's dtype that kernels for 8 bits are compiled for; numbers are scales.cuh's."""
    scales = ("", *SCALES).index(Epilogue.read(p.epilogue).scale)
    a, b = (DATA_TYPES[tensor.dtype] for tensor in p.inputs[:2])
    if target == "cublaslt":
        return {"SCALES": scales, "RESULT": DATA_TYPES[_result(p)], "A_TYPE": a, "B_TYPE": b}
    stored = {"EIGHT": 1, "SCALES": scales, "FLOAT_RESULT": _result(p) == "float32"}
    return (
        stored | {"A_E5M2": a == DATA_TYPES[E5M2], "B_E5M2": b == DATA_TYPES[E5M2]} if target == "cuda" else {}
    )


C_REFERENCE = """
const long long row = index / n, column = index % n;
double sum = 0;
for (long long p = 0; p < k; ++p) {
    double left = double(a[A_TRANSPOSED ? p * m + row : row * k + p]);
    double right = double(b[B_TRANSPOSED ? column * k + p : p * n + column]);
#if SCALES == 3
    left *= scale_a[p / 128 * m + row], right *= scale_b[column / 128 * ((k + 127) / 128) + p / 128];
#endif
    sum += left * right;
}
#if SCALES == 1
sum *= double(scale_a[0]) * scale_b[0];
#elif SCALES == 2
sum *= double(scale_a[row]) * scale_b[column];
#endif
#if EPILOGUE
#if EPILOGUE_ALPHA
sum *= alpha;
#endif
#if EPILOGUE_BETA
sum += beta * double(c_in[index]);
#endif
#if EPILOGUE_BIAS
sum += double(bias[EPILOGUE_BIAS == 1 ? row : column]);
#endif
#if EPILOGUE_ACTIVATION == 1
sum = sum > 0 ? sum : 0;
#elif EPILOGUE_ACTIVATION == 2
sum = 0.5 * sum * (1 + erf(sum * 0.70710678118654752));
#elif EPILOGUE_ACTIVATION == 3
sum = 0.5 * sum * (1 + tanh(0.79788456080286536 * (sum + 0.044715 * sum * sum * sum)));
#elif EPILOGUE_ACTIVATION == 4
sum = sum / (1 + exp(-sum));
#endif
#if EPILOGUE_RESIDUAL
sum += double(residual[index]);
#endif
#endif
return sum;
"""

OPERATION = Operation(
    name="gemm",
    verb="matmul",
    dims=("m", "n", "k"),
    dtypes=("float32", "float64", *HALVES, *FLOAT8_DTYPES),
    layouts=("nn", "nt", "tn", "tt"),
    layouts_of=dict.fromkeys(FLOAT8_DTYPES, ("nt",)),
    emulated=("float32",),
    epilogues=FINISHED,
    sums=dict.fromkeys((*HALVES, *FLOAT8_DTYPES), "float32"),
    tensors=_tensors,
    scalars=_scalars,
    draws=_draws,
    work=_work,
    reference=_reference,
    terms=lambda p: p.k,
    constants=_source_constants,
    c_reference={"c": C_REFERENCE},
    baselines={
        "cuda": Baseline(
            "cuBLAS",
            _cublas,
            names=dict.fromkeys(HALVES, GEMM_EX) | dict.fromkeys(FLOAT8_DTYPES, FIRST_CHOICE),
            finishing=_library_names,
            allowance=_roundings,
        ),
        "cpu": Baseline(
            "NumPy",
            _numpy,
            names=dict.fromkeys((*HALVES, *FLOAT8_DTYPES), "NumPy in float32"),
            finishing=lambda p: "NumPy + element-wise",
        ),
    },
)
