"""cuBLAS and cuBLASLt as CuPy has loaded them, called directly: nothing is copied or allocated.

A library as baseline is called by `ctypes`, which works while a stream is captured; callers' arrays go by
CuPy's wrappers, which are faster to call.

A product with an epilogue or in 16 bits is what users have today: the fastest of cublasGemmEx, the algorithms
that cuBLASLt proposes and, where PyTorch is installed, torch.matmul; all of them sum in float32.
`tuner.declare.epilogue.Epilogue.in_cublas` says which part of an epilogue cuBLASLt applies; one kernel behind
the product does the rest. Which is fastest, that kernel included, is timed once for a problem, in turn and with
the last-level cache flushed.
"""

from __future__ import annotations

import ctypes
import importlib
import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import cupy
import numpy
from cupy_backends.cuda.libs import cublas

from tuner.declare.epilogue import RESIDUAL, Epilogue
from tuner.declare.problem import Problem
from tuner.devices.cuda.element_wise import element_wise_source
from tuner.devices.cuda.launching import helper
from tuner.devices.protocol import LaunchFailed

#: Operand as stored, or transposed (cublasOperation_t).
OPERATION = {"n": 0, "t": 1}
#: First letter of a function in a dtype.
LETTER = {"float32": "s", "float64": "d"}


@cache
def library(name: str) -> Any:
    """``libcublas`` or ``libcublasLt``, which this process has loaded."""
    cupy.cuda.device.get_cublas_handle()
    loaded = re.search(rf"\S+/{name}\.so[.\d]*$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    if loaded is None:
        raise LaunchFailed(f"{name} is not loaded")
    return ctypes.CDLL(loaded[0])


def function(name: str) -> Callable[..., int]:
    """Returns a function of cuBLAS, e.g. ``cublasSgemm_v2``."""
    call: Callable[..., int] = getattr(library("libcublas"), name)
    return call


@cache
def one_and_zero(dtype: str) -> tuple[Any, Any]:
    """Returns references to 1 and 0 in a dtype (``float32``, ``float64``), for the host."""
    kind = {"float32": ctypes.c_float, "float64": ctypes.c_double}[dtype]
    return ctypes.byref(kind(1)), ctypes.byref(kind(0))


def handle() -> ctypes.c_void_p:
    """CuPy's handle, on the current stream."""
    own = cupy.cuda.device.get_cublas_handle()
    stream = cupy.cuda.get_current_stream()
    if not stream.is_capturing():
        cublas.setStream(own, stream.ptr)
    return ctypes.c_void_p(own)


def check(status: int) -> None:
    """Raises an error if a call failed.

    Raises:
        LaunchFailed: The call failed; the message has cuBLAS's status.
    """
    if status:
        raise LaunchFailed(f"cuBLAS failed with status {status}")


@dataclass(frozen=True)
class Bound:
    """A cuBLAS function in one dtype; callers pass addresses of arrays.

    Attributes:
        call: CuPy's wrapper; it takes a handle first, as the C function does.
        one: Host address of 1.
        zero: Host address of 0.
        factors: Memory of both, which lives as long.
    """

    call: Callable[..., None]
    one: int
    zero: int
    factors: Any

    @staticmethod
    def handle() -> int:
        """CuPy's handle for the current device."""
        return int(cupy.cuda.device.get_cublas_handle())


@cache
def bound(name: str, dtype: str) -> Bound:
    """Binds a cuBLAS function to a dtype.

    Args:
        name: The function without its dtype's letter, e.g. ``gemv``.
        dtype: ``float32`` or ``float64``.
    """
    factors = numpy.array([1, 0], dtype)
    one = factors.ctypes.data
    return Bound(getattr(cublas, LETTER[dtype] + name), one, one + factors.itemsize, factors)


# --- Products: which is fastest -------------------------------------------------------------------------------

#: ``cudaDataType`` and ``cublasComputeType`` (library_types.h, cublas_api.h).
FLOAT32, COMPUTE_32F = 0, 68
DATA_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
DEFAULT_ALGORITHM = -1
#: Attributes of cuBLASLt (cublasLt.h): the operands' operations, and the largest workspace.
TRANS_A, TRANS_B, MAX_WORKSPACE = 3, 4, 1
#: Of a finished result: which epilogue, the bias's address, its dtype; and the epilogue that does nothing.
EPILOGUE, BIAS_POINTER, BIAS_TYPE, DEFAULT_EPILOGUE = 7, 8, 26, 1
#: ``cublasLtEpilogue_t`` by activation and whether there is a bias.
EPILOGUES: Mapping[tuple[str, bool], int] = {
    ("", False): DEFAULT_EPILOGUE, ("relu", False): 2, ("", True): 4, ("relu", True): 6,
    ("gelu-tanh", False): 32, ("gelu-tanh", True): 36,
}  # fmt: skip
#: Proposals that are timed; a workspace as large as cuBLAS's own on Hopper; timings of each.
PROPOSALS, WORKSPACE_BYTES, SAMPLES = 8, 32 << 20, 7
#: Threads and blocks of the kernel behind a product.
_THREADS, _MOST_BLOCKS = 256, 4096

#: Something that queues a product of the arrays at these addresses: of B, A and C; then of what is added, and
#: of a bias, where there are such.
Product = Callable[..., None]


class Proposal(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int),
        ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4),
    )  # fmt: skip


#: Problem and device -> the product that was fastest.
_FASTEST: dict[tuple[Problem, int], Product] = {}


def choose(problem: Problem, arrays: Mapping[str, Any]) -> None:
    """Times all candidates on the arrays, once for a problem and device; the output is written.

    Raises:
        LaunchFailed: None of them computes the product.
    """
    key = problem, cupy.cuda.runtime.getDevice()
    if key not in _FASTEST:
        _FASTEST[key] = fastest(candidates(*key), _addresses(arrays))


def best_product(problem: Problem, arrays: Mapping[str, Any]) -> None:
    """Queues the product that `choose` found, or the first that there is.

    Args:
        problem: gemm in a 16-bit dtype, or with an epilogue.
        arrays: CuPy arrays by name, as stored.

    Raises:
        LaunchFailed: The library fails.
    """
    key = problem, cupy.cuda.runtime.getDevice()
    product = _FASTEST.get(key) or next(iter(candidates(*key).values()), None)
    if product is None:
        raise LaunchFailed("neither cublasGemmEx nor cuBLASLt computes the product")
    product(*_addresses(arrays))


def _addresses(arrays: Mapping[str, Any]) -> tuple[int, ...]:
    """Of B, A, C, then what cuBLASLt adds, the bias, and the residual; 0 for what there is not."""
    names = ("b", "a", "c", "c_in", "bias", RESIDUAL)
    return tuple(arrays[name].data.ptr if name in arrays else 0 for name in names)


@cache
def candidates(problem: Problem, device: int) -> dict[str, Product]:
    """All products by name: cublasGemmEx, what cuBLASLt proposes, its first choice first, and PyTorch's."""
    fused, rest = Epilogue.read(problem.epilogue).in_cublas
    proposals = enumerate(proposed(problem, fused, device))
    products = {f"cublasLtMatmul {place}": product for place, product in proposals}
    if not fused and problem.dtype != "float32":
        products = {"cublasGemmEx": partial(_by_gemm_ex, problem)} | products
    by_torch = None if problem.epilogue else torch_product(problem)
    if by_torch is not None:
        products["torch.matmul"] = by_torch
    behind = finishing(problem, rest) if rest else None
    return {name: partial(_run, product, behind, fused) for name, product in products.items()}


def _run(product: Product, behind: Product | None, fused: Epilogue, *addresses: int) -> None:
    """The product, then the kernel behind it."""
    b, a, c, c_in, bias, residual = addresses
    product(b, a, c, residual if fused.residual else c_in, bias)
    if behind is not None:
        behind(c, bias, residual)


def finishing(problem: Problem, rest: Epilogue) -> Product:
    """A kernel that applies the rest of an epilogue to C in place."""
    elements = problem.m * problem.n
    grid, block = (min(-(-elements // _THREADS), _MOST_BLOCKS), 1, 1), (_THREADS, 1, 1)
    kernel = helper(element_wise_source(problem, rest), "finish")
    sizes = numpy.int64(elements), numpy.int32(problem.n)

    def run(c: int, bias: int, residual: int) -> None:
        operands = (*((bias,) if rest.bias else ()), *((residual,) if rest.residual else ()))
        kernel(grid, block, (c, *operands, *sizes), 0)

    return run


def fastest(products: Mapping[str, Product], addresses: tuple[int, ...]) -> Product:
    """The one with the least median time; one that fails is passed over."""
    index = cupy.cuda.runtime.getDevice()
    flush = cupy.empty(max(cupy.cuda.Device(index).attributes["L2CacheSize"], 1 << 20), dtype=cupy.uint8)
    times: dict[str, list[float]] = {name: [] for name in products}
    for _ in range(SAMPLES):
        for name in list(times):
            try:
                times[name].append(_timed(partial(products[name], *addresses), flush))
            except LaunchFailed:
                del times[name]
    if not times:
        raise LaunchFailed("neither cublasGemmEx nor cuBLASLt computes the product")
    return products[min(times, key=lambda name: statistics.median(times[name]))]


def _timed(run: Callable[[], None], flush: Any) -> float:
    flush.fill(0)
    before, after = cupy.cuda.Event(), cupy.cuda.Event()
    before.record()
    run()
    after.record()
    after.synchronize()
    return float(cupy.cuda.get_elapsed_time(before, after))


def torch_product(problem: Problem) -> Product | None:
    """``torch.matmul`` on the same memory, where PyTorch is installed and finds the GPU; None elsewhere."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None

    @cache
    def tensor(address: int, rows: int, columns: int, letter: str) -> Any:
        shape = (rows, columns) if letter == "n" else (columns, rows)
        index = cupy.cuda.runtime.getDevice()
        memory = cupy.cuda.UnownedMemory(address, 2 * rows * columns, None, index)
        # By way of whole numbers: DLPack of CuPy has no bfloat16 in every version.
        bits = torch.from_dlpack(cupy.ndarray(shape, "int16", cupy.cuda.MemoryPointer(memory, 0)))
        stored = bits.view(getattr(torch, problem.dtype))
        return stored.T if letter == "t" else stored

    m, n, k = problem.m, problem.n, problem.k

    def product(b: int, a: int, c: int, *unused: int) -> None:
        left, right = tensor(a, m, k, problem.layout[0]), tensor(b, k, n, problem.layout[1])
        stream = cupy.cuda.get_current_stream().ptr
        try:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
                torch.matmul(left, right, out=tensor(c, m, n, "n"))
        except RuntimeError as error:
            raise LaunchFailed(f"torch.matmul: {error}") from error

    return product


def _by_gemm_ex(problem: Problem, b: int, a: int, c: int, *unused: int) -> None:
    """cuBLAS is column-major: a row-major C is its C transposed, so B comes first and the letters swap."""
    kind, letters = DATA_TYPES[problem.dtype], problem.layout
    one, zero = one_and_zero("float32")
    ld_b, ld_a = _stored(problem)[0][1], _stored(problem)[1][1]
    status = function("cublasGemmEx")(
        handle(), OPERATION[letters[1]], OPERATION[letters[0]],
        problem.n, problem.m, problem.k, one, ctypes.c_void_p(b), kind, ld_b, ctypes.c_void_p(a), kind, ld_a,
        zero, ctypes.c_void_p(c), kind, problem.n, COMPUTE_32F, DEFAULT_ALGORITHM,
    )  # fmt: skip
    check(status)


def _stored(problem: Problem) -> tuple[tuple[int, int], ...]:
    """Rows and columns of B, A and C as stored."""
    m, n, k = problem.m, problem.n, problem.k
    return (
        (k, n) if problem.layout[1] == "n" else (n, k), (m, k) if problem.layout[0] == "n" else (k, m), (m, n),
    )  # fmt: skip


@cache
def _context(device: int) -> tuple[Any, Any]:
    """A device's handle of cuBLASLt, and a workspace; both stay."""
    return _made("cublasLtCreate"), cupy.empty(WORKSPACE_BYTES, dtype=cupy.uint8)


def _made(name: str, *arguments: Any) -> ctypes.c_void_p:
    """What a function of cuBLASLt makes."""
    made = ctypes.c_void_p()
    check(getattr(library("libcublasLt"), name)(ctypes.byref(made), *arguments))
    return made


def _set(of: Any, kind: str, attribute: int, value: Any) -> None:
    setter = getattr(library("libcublasLt"), f"cublasLtMatmul{kind}SetAttribute")
    check(setter(of, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))))


def fused_terms(problem: Problem, fused: Epilogue) -> tuple[int, float, float]:
    """``cublasLtEpilogue_t``, and the factors of the product and of the matrix that is added to it."""
    values = {scalar.name: scalar.value for scalar in problem.scalars if scalar.given}
    beta = 1.0 if fused.residual else values.get("beta", 0.0)
    return EPILOGUES[fused.activation, bool(fused.bias)], values.get("alpha", 1.0), beta


def proposed(problem: Problem, fused: Epilogue, device: int) -> list[Product]:
    """Products by the algorithms that cuBLASLt proposes; none if it proposes none.

    Args:
        problem: gemm in a dtype of `DATA_TYPES`.
        fused: What cuBLASLt does to the result.
        device: The current GPU.
    """
    lt, kind = library("libcublasLt"), DATA_TYPES[problem.dtype]
    context, workspace = _context(device)
    epilogue, *factors = fused_terms(problem, fused)
    description = _made("cublasLtMatmulDescCreate", COMPUTE_32F, FLOAT32)
    attributes = {TRANS_A: OPERATION[problem.layout[1]], TRANS_B: OPERATION[problem.layout[0]]}
    attributes |= {EPILOGUE: epilogue} if epilogue != DEFAULT_EPILOGUE else {}
    attributes |= {BIAS_TYPE: kind} if fused.bias else {}
    for attribute, value in attributes.items():
        _set(description, "Desc", attribute, ctypes.c_int32(value))
    of_b, of_a, of_c = (
        _made(
            "cublasLtMatrixLayoutCreate", kind, ctypes.c_uint64(columns), ctypes.c_uint64(rows),
            ctypes.c_int64(columns),
        )
        for rows, columns in _stored(problem)
    )  # fmt: skip
    preference = _made("cublasLtMatmulPreferenceCreate")
    _set(preference, "Preference", MAX_WORKSPACE, ctypes.c_uint64(WORKSPACE_BYTES))
    proposals, count = (Proposal * PROPOSALS)(), ctypes.c_int()
    status = lt.cublasLtMatmulAlgoGetHeuristic(
        context, description, of_b, of_a, of_c, of_c, preference, PROPOSALS, proposals, ctypes.byref(count)
    )
    if status:
        return []
    alpha, beta = (ctypes.byref(ctypes.c_float(factor)) for factor in factors)

    def product(proposal: Proposal, b: int, a: int, c: int, added: int = 0, bias: int = 0) -> None:
        stream = cupy.cuda.get_current_stream().ptr
        if fused.bias:
            _set(description, "Desc", BIAS_POINTER, ctypes.c_void_p(bias))
        status = lt.cublasLtMatmul(
            context, description, alpha, ctypes.c_void_p(b), of_b, ctypes.c_void_p(a), of_a, beta,
            ctypes.c_void_p(added or c), of_c, ctypes.c_void_p(c), of_c,
            ctypes.byref(proposal, Proposal.algorithm.offset),
            ctypes.c_void_p(workspace.data.ptr), ctypes.c_size_t(WORKSPACE_BYTES), ctypes.c_void_p(stream),
        )  # fmt: skip
        check(status)

    return [partial(product, proposal) for proposal in proposals[: count.value] if proposal.state == 0]
