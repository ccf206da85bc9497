# ruff: noqa: F821
"""C = op(A) op(B) with an epilogue, by one call of cublasLtMatmul with the algorithm that the config names.

cuBLASLt is column-major: a row-major C is its C transposed, so B comes first and the letters swap. Sums are in
float32 (``CUBLAS_COMPUTE_32F``), never in TF32 or less. Constants above are those of operation and config.
PROPOSAL is the place, from 1, among what ``cublasLtMatmulAlgoGetHeuristic`` proposes; where it is 0, the others
name the algorithm, and ``cublasLtMatmulAlgoCheck`` says whether it computes the problem.

Numbers of types and attributes are cublasLt.h's and library_types.h's.
"""

import ctypes
import functools
import re
import threading
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

FLOAT32, COMPUTE_32F = 0, 68
#: ``cublasLtMatmulPreferenceAttributes_t``; ``cublasLtReductionScheme_t``: shares of k are added up in float32.
REDUCTIONS, IN_FLOAT32 = 3, 2
#: ``cublasLtMatmulDescAttributes_t`` and ``cublasLtMatmulPreferenceAttributes_t``.
TRANS_A, TRANS_B, EPILOGUE_KIND, BIAS_POINTER, BIAS_TYPE, MAX_WORKSPACE = 3, 4, 7, 8, 26, 1
#: ``cublasLtMatmulAlgoConfigAttributes_t``, with the values that the config gives.
ATTRIBUTES = (
    (1, c_uint32(TILE)),
    (6, c_uint32(STAGES)),
    (8, c_uint16(CLUSTER)),
    (5, c_uint32(CUSTOM)),
    (2, c_int32(SPLIT_K)),
    (3, c_uint32(REDUCTION)),
    (4, c_uint32(SWIZZLE)),
)
#: ``cublasLtEpilogue_t`` by activation (relu, gelu-tanh) and bias (for each column).
EPILOGUES = {(0, 0): 1, (1, 0): 2, (0, 2): 4, (1, 2): 6, (3, 0): 32, (3, 2): 36}
#: A workspace as large as cuBLAS's own on Hopper; proposals that are asked for.
WORKSPACE_BYTES, PROPOSALS = 32 << 20, 8
#: A function of cuBLASLt, and its arguments but for the stream behind them: numbers and addresses; one of them
#: in a tuple stands for a pointer to it.
Call = tuple[str, tuple[Any, ...]]
#: ``cublasStatus_t``.
STATUSES = {
    3: "allocation failed",
    7: "invalid value",
    8: "architecture mismatch",
    13: "execution failed",
    14: "internal error",
    15: "not supported",
}


class Result(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


class Product:
    """A product of one shape, ready but for stream, workspace and addresses.

    Attributes:
        operands: What cuBLASLt is asked with: handle, description, layouts.
        workspace_bytes: Device memory that a run needs; runs that may overlap need one each.
    """

    def __init__(self, library: Any, handle: int, m: int, n: int, k: int) -> None:
        """Describes the product, and chooses the algorithm.

        Args:
            library: cuBLASLt, as ctypes has loaded it.
            handle: Of cuBLASLt on the current device.
            m: Rows of C.
            n: Columns of C.
            k: Terms of a sum.

        Raises:
            RuntimeError: cuBLASLt refuses the algorithm, or proposes fewer; the message says why.
        """
        self._made, self._lock = [], threading.Lock()
        self._library, self._handle = library, c_void_p(handle)
        self._description = self._make("cublasLtMatmulDescCreate", "MatmulDesc", COMPUTE_32F, FLOAT32)
        for attribute, value in (
            (TRANS_A, int(B_TRANSPOSED)),
            (TRANS_B, int(A_TRANSPOSED)),
            (EPILOGUE_KIND, EPILOGUES[EPILOGUE_ACTIVATION, EPILOGUE_BIAS]),
            *([(BIAS_TYPE, DTYPE)] if EPILOGUE_BIAS else []),
        ):
            self._set(self._description, "Desc", attribute, c_int32(value))
        self._b = self._layout(n, k) if B_TRANSPOSED else self._layout(k, n)
        self._a = self._layout(k, m) if A_TRANSPOSED else self._layout(m, k)
        self._c = self._layout(m, n)
        self.operands = self._handle, self._description, self._b, self._a, self._c, self._c
        self._algorithm, self.workspace_bytes = self._proposed() if PROPOSAL else self._named()

    def _make(self, create: str, kind: str, *arguments: Any) -> c_void_p:
        made = c_void_p()
        self.check(create, byref(made), *arguments)
        self._made.append((kind, made))
        return made

    def _layout(self, rows: int, columns: int) -> c_void_p:
        """Of a row-major matrix, which cuBLASLt sees transposed."""
        sizes = c_uint64(columns), c_uint64(rows), c_int64(columns)
        return self._make("cublasLtMatrixLayoutCreate", "MatrixLayout", DTYPE, *sizes)

    def _set(self, of: Any, kind: str, attribute: int, value: Any) -> None:
        size = c_size_t(ctypes.sizeof(value))
        self.check(f"cublasLtMatmul{kind}SetAttribute", of, attribute, byref(value), size)

    def check(self, name: str, *arguments: Any) -> None:
        """Calls a function of cuBLASLt.

        Raises:
            RuntimeError: It refuses.
        """
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: {STATUSES.get(status, f'status {status}')}")

    def proposals(self) -> list[Result]:
        """What the heuristic proposes, its first choice first."""
        preference = self._make("cublasLtMatmulPreferenceCreate", "MatmulPreference")
        self._set(preference, "Preference", MAX_WORKSPACE, c_uint64(WORKSPACE_BYTES))
        if DTYPE != FLOAT32:
            self._set(preference, "Preference", REDUCTIONS, c_uint32(IN_FLOAT32))
        results, count = (Result * PROPOSALS)(), c_int()
        wanted = preference, PROPOSALS, results, byref(count)
        self.check("cublasLtMatmulAlgoGetHeuristic", *self.operands, *wanted)
        return [result for result in results[: count.value] if not result.state]

    def _proposed(self) -> tuple[Any, int]:
        """The proposal of that place, and the bytes of its workspace."""
        results = self.proposals()
        if len(results) < PROPOSAL:
            raise RuntimeError(
                f"cuBLASLt proposes {len(results)} algorithms here, and none is number {PROPOSAL}"
            )
        return results[PROPOSAL - 1].algorithm, results[PROPOSAL - 1].workspace

    def _named(self) -> tuple[Any, int]:
        """The algorithm that the config names, and the bytes of its workspace."""
        algorithm, result = (c_uint64 * 8)(), Result()
        types = COMPUTE_32F, FLOAT32, DTYPE, DTYPE, DTYPE, DTYPE
        self.check("cublasLtMatmulAlgoInit", self._handle, *types, ALGORITHM, byref(algorithm))
        for attribute, value in ATTRIBUTES:
            self._set(algorithm, "AlgoConfig", attribute, value)
        self.check("cublasLtMatmulAlgoCheck", *self.operands, byref(algorithm), byref(result))
        if result.state or result.workspace > WORKSPACE_BYTES:
            raise RuntimeError(f"it needs {result.workspace} bytes of workspace, and has {WORKSPACE_BYTES}")
        return algorithm, result.workspace

    def calls(self, workspace: int, alpha: int, beta: int, *addresses: Any) -> list[Call]:
        """What a run calls.

        Args:
            workspace: Address of `workspace_bytes`; 0 where there are none.
            alpha: Address of the factor of the product, in float32.
            beta: Likewise of what is added.
            addresses: Of the operation's tensors, or what stands for them.
        """
        a, b, *more, c = addresses
        added = more[0] if EPILOGUE_BETA else more[-1] if EPILOGUE_RESIDUAL else c
        bias = [self._pointing(BIAS_POINTER, more[EPILOGUE_BETA])] if EPILOGUE_BIAS else []
        operands = alpha, b, self._b.value, a, self._a.value, beta, added, self._c.value, c, self._c.value
        chosen = ctypes.addressof(self._algorithm), workspace, self.workspace_bytes
        return [*bias, ("cublasLtMatmul", (self._handle.value, self._description.value, *operands, *chosen))]

    def _pointing(self, attribute: int, address: Any) -> Call:
        """The call that makes an attribute of the description an address."""
        return "cublasLtMatmulDescSetAttribute", (self._description.value, attribute, (address,), 8)

    def __call__(self, stream: int, workspace: int, numbers: Any, *addresses: int) -> None:
        """Queues a run.

        Args:
            stream: Handle.
            workspace: Address of `workspace_bytes`.
            numbers: Of `factors`.
            addresses: Of the operation's tensors.

        Raises:
            RuntimeError: cuBLASLt refuses.
        """
        with self._lock:  # the description is read by the call
            for name, given in self.calls(workspace, *map(ctypes.addressof, numbers), *addresses):
                words = (byref(c_uint64(*one)) if isinstance(one, tuple) else c_uint64(one) for one in given)
                self.check(name, *words, c_void_p(stream))

    def __del__(self) -> None:
        """Gives back what was made."""
        for kind, made in self._made:
            getattr(self._library, f"cublasLt{kind}Destroy")(made)


def factors(*given: float) -> tuple[c_float, c_float]:
    """Alpha and beta in memory, of those of the two that a caller gives, in this order."""
    alpha, *rest = given if EPILOGUE_ALPHA else (1.0, *given)
    beta = rest[0] if rest else float(EPILOGUE_RESIDUAL)
    return c_float(alpha), c_float(beta)


@functools.cache
def _prepared(device: int, stream: int, m: int, n: int, k: int) -> tuple[Product, Any]:
    """A product on a device and a stream, with its workspace."""
    import cupy

    cupy.cuda.device.get_cublas_handle()
    path = re.search(r"\S+/libcublasLt\.so[.\d]*$", Path("/proc/self/maps").read_text(), re.MULTILINE)[0]
    library, handle = ctypes.CDLL(path), c_void_p()
    if library.cublasLtCreate(byref(handle)):
        raise RuntimeError("cublasLtCreate failed")
    product = Product(library, handle.value, m, n, k)
    return product, cupy.empty(product.workspace_bytes, "uint8")


def gemm(*given: Any) -> None:
    """Computes C on the current stream.

    Args:
        given: Arrays of CuPy in the order of the operation's tensors, C last; then m, n, k, and the factors.
    """
    import cupy

    tensors = len(given) - 3 - EPILOGUE_ALPHA - EPILOGUE_BETA
    arrays, sizes, numbers = given[:tensors], given[tensors : tensors + 3], given[tensors + 3 :]
    stream = cupy.cuda.get_current_stream().ptr
    product, workspace = _prepared(cupy.cuda.runtime.getDevice(), stream, *map(int, sizes))
    product(stream, workspace.data.ptr, factors(*map(float, numbers)), *(x.data.ptr for x in arrays))
