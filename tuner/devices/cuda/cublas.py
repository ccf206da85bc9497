"""cuBLAS's fastest product of 16-bit matrices: cublasGemmEx, or one of the algorithms that cuBLASLt proposes.

Where PyTorch is installed, torch.matmul is one more.

All of them sum in float32. Which is fastest is timed once for a problem, in turn and with the last-level cache
flushed; from then on it is called directly, so that nothing is copied or allocated.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import cupy
import numpy
from cupy_backends.cuda.libs import cublas

from tuner.declare.problem import Problem
from tuner.devices.protocol import LaunchFailed

#: Operand as stored, or transposed (cublasOperation_t).
OPERATION = {"n": 0, "t": 1}
#: First letter of a function in a dtype.
LETTER = {"float32": "s", "float64": "d"}
#: 1 and 0 by dtype, on the host. They are kept alive because functions receive their addresses.
_FACTORS: dict[str, numpy.ndarray[Any, Any]] = {}


@functools.cache
def function(name: str) -> Callable[..., int]:
    """Returns a function of the cuBLAS that this process has loaded, e.g. ``cublasSgemm_v2``."""
    cupy.cuda.device.get_cublas_handle()
    loaded = re.search(r"\S+/libcublas\.so[.\d]*$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    if loaded is None:
        raise LaunchFailed("cuBLAS is not loaded")
    found: Callable[..., int] = getattr(ctypes.CDLL(loaded[0]), name)
    return found


@functools.cache
def one_and_zero(dtype: str) -> tuple[Any, Any]:
    """Returns the host addresses of 1 and 0 in a dtype (``float32``, ``float64``)."""
    kind = {"float32": ctypes.c_float, "float64": ctypes.c_double}[dtype]
    return ctypes.byref(kind(1)), ctypes.byref(kind(0))


@dataclass(frozen=True)
class Bound:
    """A cuBLAS function in one dtype; callers pass addresses of arrays.

    Attributes:
        call: CuPy's wrapper; it takes a handle first, as the C function does.
        one: Host address of 1.
        zero: Host address of 0.
    """

    call: Callable[..., None]
    one: int
    zero: int

    @staticmethod
    def handle() -> int:
        """CuPy's handle for the current device."""
        return int(cupy.cuda.device.get_cublas_handle())


@functools.cache
def bound(name: str, dtype: str) -> Bound:
    """Binds a cuBLAS function to a dtype.

    Args:
        name: The function without its dtype's letter, e.g. ``gemv``.
        dtype: ``float32`` or ``float64``.
    """
    factors = _FACTORS.setdefault(dtype, numpy.array([1, 0], dtype))
    one = factors.ctypes.data
    return Bound(getattr(cublas, LETTER[dtype] + name), one, one + factors.itemsize)


def handle() -> ctypes.c_void_p:
    """CuPy's handle, on the current stream."""
    found = cupy.cuda.device.get_cublas_handle()
    stream = cupy.cuda.get_current_stream()
    if not stream.is_capturing():
        cublas.setStream(found, stream.ptr)
    return ctypes.c_void_p(found)


def check(status: int) -> None:
    """Raises an error if a call failed.

    Raises:
        LaunchFailed: The call failed; the message has cuBLAS's status.
    """
    if status:
        raise LaunchFailed(f"cuBLAS failed with status {status}")


#: ``cudaDataType`` and ``cublasComputeType`` (library_types.h, cublas_api.h).
FLOAT32, COMPUTE_32F = 0, 68
DATA_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
DEFAULT_ALGORITHM = -1
#: Attributes of cuBLASLt (cublasLt.h): the operands' operations, and the largest workspace.
TRANS_A, TRANS_B, MAX_WORKSPACE = 3, 4, 1
#: Of a finished result: which epilogue, the bias's address, its dtype; and the epilogue that does nothing.
EPILOGUE, BIAS_POINTER, BIAS_TYPE, DEFAULT_EPILOGUE = 7, 8, 26, 1
#: Proposals that are timed; a workspace as large as cuBLAS's own on Hopper; timings of each.
PROPOSALS, WORKSPACE_BYTES, SAMPLES = 8, 32 << 20, 7

#: Something that queues a product of the arrays at these addresses: of B, A and C; then that of what is added,
#: and of a bias, where it is finished by an epilogue.
Product = Callable[..., None]


@dataclass(frozen=True)
class Fused:
    """What cuBLASLt does to a result: ``epilogue(alpha * product + beta * added + bias)``.

    Attributes:
        epilogue: ``cublasLtEpilogue_t``.
        alpha: Factor of the product.
        beta: Factor of the matrix that is added.
        biased: True if it is given a bias.
    """

    epilogue: int = DEFAULT_EPILOGUE
    alpha: float = 1.0
    beta: float = 0.0
    biased: bool = False


NOTHING = Fused()


class _Proposal(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int),
        ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4),
    )  # fmt: skip


#: Problem and device -> the product that was fastest.
_FASTEST: dict[tuple[Problem, int], Product] = {}


def choose(problem: Problem, a: Any, b: Any, c: Any) -> None:
    """Times all candidates on the arrays, once for a problem and device; `c` is written.

    Raises:
        LaunchFailed: None of them computes the product.
    """
    key = problem, cupy.cuda.runtime.getDevice()
    if key not in _FASTEST:
        _FASTEST[key] = fastest(candidates(problem), (b.data.ptr, a.data.ptr, c.data.ptr))


def best_product(problem: Problem, a: Any, b: Any, c: Any) -> None:
    """Queues a product by the one that `choose` found; by cublasGemmEx where nothing was chosen.

    Args:
        problem: gemm in a 16-bit dtype.
        a: CuPy array, as stored.
        b: The same.
        c: The same.

    Raises:
        LaunchFailed: cuBLAS fails.
    """
    found = _FASTEST.get((problem, cupy.cuda.runtime.getDevice())) or partial(_by_gemm_ex, problem)
    found(b.data.ptr, a.data.ptr, c.data.ptr)


def candidates(problem: Problem) -> dict[str, Product]:
    """All products by name: cublasGemmEx, what cuBLASLt proposes, its first choice first, and PyTorch's."""
    named = {"cublasGemmEx": partial(_by_gemm_ex, problem)} | {
        f"cublasLtMatmul {place}": each for place, each in enumerate(proposed(problem))
    }
    return named | ({"torch.matmul": by_torch} if (by_torch := torch_product(problem)) else {})


def fastest(products: dict[str, Product], addresses: tuple[int, ...]) -> Product:
    """The one with the least median time; one that fails is passed over."""
    index = cupy.cuda.runtime.getDevice()
    flush = cupy.empty(max(cupy.cuda.Device(index).attributes["L2CacheSize"], 1 << 20), dtype=cupy.uint8)
    times: dict[str, list[float]] = {name: [] for name in products}
    for _ in range(SAMPLES):
        for name, product in products.items():
            if name not in times:
                continue
            try:
                times[name].append(_timed(partial(product, *addresses), flush))
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
    seen: dict[int, Any] = {}

    def tensor(address: int, shape: tuple[int, ...], letter: str) -> Any:
        if address not in seen:
            size = 2 * shape[0] * shape[1]
            index = cupy.cuda.runtime.getDevice()
            memory = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(address, size, None, index), 0)
            # By way of whole numbers: DLPack of CuPy has no bfloat16 in every version.
            bits = torch.from_dlpack(cupy.ndarray(shape, "int16", memory))
            seen[address] = bits.view(getattr(torch, problem.dtype))
        return seen[address].T if letter == "t" else seen[address]

    to_a, to_b = problem.layout[0], problem.layout[1]
    m, n, k = problem.m, problem.n, problem.k

    def product(b: int, a: int, c: int) -> None:
        left = tensor(a, (m, k) if to_a == "n" else (k, m), to_a)
        right = tensor(b, (k, n) if to_b == "n" else (n, k), to_b)
        stream = cupy.cuda.get_current_stream().ptr
        try:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
                torch.matmul(left, right, out=tensor(c, (m, n), "n"))
        except RuntimeError as error:
            raise LaunchFailed(f"torch.matmul: {error}") from error

    return product


def _by_gemm_ex(problem: Problem, b: int, a: int, c: int) -> None:
    """cuBLAS is column-major: a row-major C is its C transposed, so B comes first and the letters swap."""
    kind = DATA_TYPES[problem.dtype]
    one, zero = one_and_zero("float32")
    (ld_b, ld_a), letters = _pitches(problem), problem.layout
    status = function("cublasGemmEx")(
        handle(), OPERATION[letters[1]], OPERATION[letters[0]],
        problem.n, problem.m, problem.k, one, ctypes.c_void_p(b), kind, ld_b, ctypes.c_void_p(a), kind, ld_a,
        zero, ctypes.c_void_p(c), kind, problem.n, COMPUTE_32F, DEFAULT_ALGORITHM,
    )  # fmt: skip
    check(status)


def _pitches(problem: Problem) -> tuple[int, int]:
    """Elements of a stored row of B and of A."""
    return (
        problem.n if problem.layout[1] == "n" else problem.k,
        problem.k if problem.layout[0] == "n" else problem.m,
    )


@cache
def _library() -> Any:
    """cuBLASLt, which cuBLAS has loaded beside itself."""
    handle()
    loaded = re.search(r"\S+/libcublasLt\.so[.\d]*$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    if loaded is None:
        raise LaunchFailed("cuBLASLt is not loaded")
    return ctypes.CDLL(loaded[0])


@cache
def _context(device: int) -> tuple[Any, Any]:
    """A device's handle of cuBLASLt, and a workspace; both stay."""
    handle = ctypes.c_void_p()
    check(_library().cublasLtCreate(ctypes.byref(handle)))
    return handle, cupy.empty(WORKSPACE_BYTES, dtype=cupy.uint8)


def _layout(kind: int, rows: int, columns: int, pitch: int) -> Any:
    made = ctypes.c_void_p()
    create = _library().cublasLtMatrixLayoutCreate
    sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(pitch)
    check(create(ctypes.byref(made), kind, *sizes))
    return made


def _set(setter: Any, of: Any, attribute: int, value: Any) -> None:
    check(setter(of, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))))


def proposed(problem: Problem, fused: Fused = NOTHING) -> list[Product]:
    """Products by the algorithms that cuBLASLt proposes; none if it proposes none.

    Args:
        problem: gemm in a dtype of `DATA_TYPES`.
        fused: What cuBLASLt does to the result.
    """
    lt, kind = _library(), DATA_TYPES[problem.dtype]
    handle, workspace = _context(cupy.cuda.runtime.getDevice())
    description, preference = ctypes.c_void_p(), ctypes.c_void_p()
    check(lt.cublasLtMatmulDescCreate(ctypes.byref(description), COMPUTE_32F, FLOAT32))
    for attribute, letter in ((TRANS_A, problem.layout[1]), (TRANS_B, problem.layout[0])):
        operation = ctypes.c_int32(OPERATION[letter])
        _set(lt.cublasLtMatmulDescSetAttribute, description, attribute, operation)
    if fused.epilogue != DEFAULT_EPILOGUE:
        _set(lt.cublasLtMatmulDescSetAttribute, description, EPILOGUE, ctypes.c_int32(fused.epilogue))
    if fused.biased:
        _set(lt.cublasLtMatmulDescSetAttribute, description, BIAS_TYPE, ctypes.c_int32(kind))
    ld_b, ld_a = _pitches(problem)
    m, n, k = problem.m, problem.n, problem.k
    of_b = _layout(kind, *((n, k) if problem.layout[1] == "n" else (k, n)), ld_b)
    of_a = _layout(kind, *((k, m) if problem.layout[0] == "n" else (m, k)), ld_a)
    of_c = _layout(kind, n, m, n)
    check(lt.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
    most = ctypes.c_uint64(WORKSPACE_BYTES)
    _set(lt.cublasLtMatmulPreferenceSetAttribute, preference, MAX_WORKSPACE, most)
    found, count = (_Proposal * PROPOSALS)(), ctypes.c_int()
    status = lt.cublasLtMatmulAlgoGetHeuristic(
        handle, description, of_b, of_a, of_c, of_c, preference, PROPOSALS, found, ctypes.byref(count)
    )
    if status:
        return []
    alpha, beta = ctypes.byref(ctypes.c_float(fused.alpha)), ctypes.byref(ctypes.c_float(fused.beta))

    def product(proposal: _Proposal, b: int, a: int, c: int, added: int = 0, bias: int = 0) -> None:
        stream = cupy.cuda.get_current_stream().ptr
        at_c, at_added = ctypes.c_void_p(c), ctypes.c_void_p(added or c)
        if fused.biased:
            _set(lt.cublasLtMatmulDescSetAttribute, description, BIAS_POINTER, ctypes.c_void_p(bias))
        status = lt.cublasLtMatmul(
            handle, description, alpha, ctypes.c_void_p(b), of_b, ctypes.c_void_p(a), of_a, beta, at_added,
            of_c, at_c, of_c, ctypes.byref(proposal, _Proposal.algorithm.offset),
            ctypes.c_void_p(workspace.data.ptr), ctypes.c_size_t(WORKSPACE_BYTES), ctypes.c_void_p(stream),
        )  # fmt: skip
        check(status)

    return [partial(product, each) for each in found[: count.value] if each.state == 0]
