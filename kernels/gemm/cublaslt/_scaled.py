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
#: What says where scales are, in the order of those of A and B.
SCALE_POINTERS = (B_SCALE, A_SCALE)[: 2 * bool(SCALES)]
#: Stands for scales while cuBLASLt is asked for proposals: it looks at the alignment alone.
SOMEWHERE = 4096


class Product(Product):
    """A product of operands of 8 bits."""

    def proposals(self) -> list[Result]:
        """What the heuristic proposes, its first choice first."""
        for attribute, value in (
            (BIAS_TYPE, c_int32(RESULT)),
            (FAST_ACCUMULATION, ctypes.c_int8(FAST)),
            *zip((A_MODE, B_MODE), map(c_int32, MODES.get(SCALES, ())), strict=False),
        ):
            self._set(self._description, "Desc", attribute, value)
        for attribute in SCALE_POINTERS:
            self._set(self._description, "Desc", attribute, c_void_p(SOMEWHERE))
        for layout, kind in ((self._a, A_TYPE), (self._b, B_TYPE), (self._c, RESULT)):
            number = c_uint32(kind)
            self.check("cublasLtMatrixLayoutSetAttribute", layout, LAYOUT_TYPE, byref(number), c_size_t(4))
        return super().proposals()

    def calls(self, workspace: int, alpha: int, beta: int, *addresses: Any) -> list[Call]:
        """See `_matmul.py`; the scales of A and B follow the operands."""
        a, b, *more = addresses
        pointing, rest = map(self._pointing, SCALE_POINTERS, more), more[len(SCALE_POINTERS) :]
        return [*pointing, *super().calls(workspace, alpha, beta, a, b, *rest)]
