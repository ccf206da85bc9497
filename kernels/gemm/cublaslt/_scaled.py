# ruff: noqa: F821
"""Products of operands of 8 bits: beside what `_matmul.py` says, their scales, and a result of another dtype.

It comes behind that file, whose product it refines. SCALES is 1 for one scale an operand, 2 for one a row and
a column, 3 for one a block, 0 for none; A_TYPE, B_TYPE and RESULT are numbers of ``cudaDataType``; with FAST
tensor cores keep sums throughout, in the bits that they have for it.
"""

#: ``cublasLtMatmulDescAttributes_t``: scales, their modes, sums; ``cublasLtMatrixLayoutAttribute_t``.
A_SCALE, B_SCALE, A_MODE, B_MODE, FAST_ACCUMULATION, LAYOUT_TYPE = 17, 18, 31, 32, 25, 0
#: ``cublasLtMatmulMatrixScale_t`` of B, which comes first, and of A, by SCALES (cuBLAS 12.9).
MODES = {2: (3, 3), 3: (5, 4)}
#: Stands for scales while cuBLASLt is asked for proposals: it looks at the alignment alone.
SOMEWHERE = 4096


class Product(Product):
    """A product of operands of 8 bits."""

    _scaling = threading.Lock()

    def proposals(self) -> list[Result]:
        """What the heuristic proposes, its first choice first."""
        for attribute, value in (
            (BIAS_TYPE, c_int32(RESULT)),
            (FAST_ACCUMULATION, ctypes.c_int8(FAST)),
            *zip((A_MODE, B_MODE), map(c_int32, MODES.get(SCALES, ())), strict=False),
        ):
            self._set(self._description, "Desc", attribute, value)
        self._scaled_by(*(SOMEWHERE, SOMEWHERE) * bool(SCALES))
        for layout, kind in ((self._a, A_TYPE), (self._b, B_TYPE), (self._c, RESULT)):
            number = c_uint32(kind)
            self.check("cublasLtMatrixLayoutSetAttribute", layout, LAYOUT_TYPE, byref(number), c_size_t(4))
        return super().proposals()

    def _scaled_by(self, *scales: int) -> None:
        """Sets the addresses of the scales of A and B."""
        for attribute, address in zip((B_SCALE, A_SCALE), scales, strict=False):
            self._set(self._description, "Desc", attribute, c_void_p(address))

    def __call__(self, stream: int, workspace: int, alpha: Any, beta: Any, *addresses: int) -> int:
        """Queues a run; see `_matmul.py`. The scales of A and B follow the operands."""
        a, b, *more = addresses
        scales, rest = more[: 2 * bool(SCALES)], more[2 * bool(SCALES) :]
        with self._scaling:
            self._scaled_by(*scales)
            return super().__call__(stream, workspace, alpha, beta, a, b, *rest)


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
    status = product(stream, workspace.data.ptr, *factors(*map(float, numbers)), *(x.data.ptr for x in arrays))
    if status:
        raise RuntimeError(f"cublasLtMatmul: {STATUSES.get(status, f'status {status}')}")
