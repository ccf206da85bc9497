"""Operands that stay: a matrix that is packed once, and multiplied with many others."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from tuner.declare.problem import EMULATED
from tuner.errors import InputError
from tuner.python.arrays import Family, Opaque, Operand, dense_strides
from tuner.python.calls import PackedForm, Prepared, kernel_call, packed_form
from tuner.python.decisions import Decision, warn_once
from tuner.python.dispatch import request_of
from tuner.python.gpu_arrays import family_of
from tuner.python.operands import CallRequest, letter, matmul_request, placed
from tuner.python.precision import EMULATED_DTYPES
from tuner.python.preparing import decision_for, prepared_by, watched


class Packed(Opaque):
    """A matrix as an emulated kernel takes it, for `tuner.matmul`; its memory goes with it.

    Attributes:
        shape: (K, N), as of the array that was packed.
        dtype: Name of the element type.
        device: ``cpu`` or ``cuda:0``.
        bytes: Memory that it holds: the packed form, and a copy of the matrix for products that the plain
            kernel has to compute.
    """

    def __init__(self, array: Any, family: Family, form: PackedForm | None) -> None:
        """Takes over an array that nobody else writes, and its packed form; None where there is none."""
        operand = family.operand(array)
        self.shape, self.dtype, self.device = operand.shape, operand.dtype, operand.device
        self.bytes = operand.bytes + (form.bytes if form else 0)
        self._array, self._family, self._form = array, family, form
        self._calls: dict[Hashable, Prepared] = {}

    def __repr__(self) -> str:
        return f"<packed {self.dtype} of shape {self.shape} on {self.device}, {self.bytes} bytes>"

    def product(self, a: Any, out: Any, asked: str) -> Any:
        """``a @ self``; see `tuner.matmul`."""
        if asked not in ("", EMULATED):
            raise InputError(
                f"matmul: a packed operand is for precision {EMULATED!r}, got {asked!r}; multiply by the array "
                "that it was packed from"
            )
        family = self._family
        for name, array in (("a", a), ("out", out)):
            if array is not None and type(array) is not family.base:
                self._check(name, array)
        key = (family.key(a), None if out is None else family.key(out))
        call = self._calls.get(key)
        if call is None:
            for name, array in (("a", a), ("out", out)):
                if array is not None:
                    self._check(name, array)
            request = request_of("matmul", family, (a, self._array), out)
            call = self._calls[key] = self._prepared(request.in_precision(EMULATED, EMULATED), a)
        return call(a, self._array, out)

    def _check(self, name: str, array: Any) -> None:
        family = family_of(array)
        if family is not self._family:
            raise TypeError(
                f"matmul: {name} is an array of {self._family.name} as the packed operand is, got "
                f"{type(array).__name__}; convert it"
            )
        dtype = family.operand(array).dtype
        if dtype != self.dtype:
            raise InputError(
                f"matmul: {name} is {self.dtype} as the packed operand is, got {dtype}; convert it"
            )

    def _prepared(self, request: CallRequest, a: Any) -> Prepared:
        """The call with the packed form, where the problem's kernel takes it; else with the copy."""
        form = self._form

        def prepared(decision: Decision | None) -> Prepared:
            if form is not None and decision is not None and decision.kernel is not None and not request.copied:
                return kernel_call(request, decision, self._family, form)
            return prepared_by(request, self._family, decision)

        return watched(request, self._family, a, prepared)


def pack(b: Any, *, rows: int = 0) -> Packed:
    """Packs the right operand of products once: weights, or the matrix of an iterative solver.

    What is packed stays as it was, whatever happens to the array.

    Args:
        b: Matrix of shape (K, N), float32, of NumPy, CuPy or PyTorch.
        rows: Rows of the left operands to come, for which the kernel is chosen; K unless given. Others work.

    Returns:
        An operand for ``tuner.matmul(a, packed)``, in the ``emulated`` precision. Where no kernel that packs
        was measured to be faster it holds a copy alone.

    Raises:
        TypeError: No array of these libraries.
        ValueError: Not a matrix.
        InputError: Not float32.
    """
    family = family_of(b)
    if family is None:
        raise TypeError(f"pack: b is an array of NumPy, CuPy or PyTorch, got {type(b).__name__}")
    operand = family.operand(b)
    if operand.ndim != 2:
        raise ValueError(f"pack: b has two dimensions, got shape {operand.shape}")
    if operand.dtype not in EMULATED_DTYPES:
        raise InputError(f"pack: b is float32, got {operand.dtype}; convert it with .astype('float32')")
    turned = letter(placed("b", operand)) == "t"
    copy = family.dense(b, turned)
    array = copy.T if turned else copy
    return Packed(array, family, _form(array, family, rows))


def _form(array: Any, family: Family, rows: int) -> PackedForm | None:
    """The packed form that the kernel for such products takes; None where it takes none."""
    operand = family.operand(array)
    shape = (rows or operand.shape[0], operand.shape[0])
    a = Operand(
        family.name,
        shape,
        dense_strides(shape, operand.itemsize),
        operand.dtype,
        operand.itemsize,
        operand.device,
    )
    request = matmul_request(a, operand, None).in_precision(EMULATED, EMULATED)
    try:
        decision: Decision | None = decision_for(request)
        if decision is None or decision.kernel is None:
            return None
        return packed_form(array, request, decision, family)
    except Exception as error:  # as for a call: a kernel that cannot be had is no reason to fail
        warn_once(f"an operand is not packed: {type(error).__name__}: {error}")
        return None


def fallbacks() -> int:
    """How many emulated products of this process the plain kernels had to compute, on all GPUs.

    Waits for what is queued. Products of exported kernels are not counted.
    """
    import sys

    launching = sys.modules.get("tuner.devices.cuda.launching")
    return launching.counted() if launching is not None else 0
