"""Products with an epilogue, and with an operand that stays: a matrix that is packed once.

An epilogue is alpha, beta, a bias, an activation, a residual sum. The call is that of a kernel that applies the
epilogue before it stores, where one is known to be faster; else the library's product, and its element-wise
functions behind it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy

from tuner.declare.epilogue import ACTIVATIONS, Epilogue
from tuner.declare.problem import EMULATED
from tuner.errors import InputError, UnknownName
from tuner.python.arrays import (
    Family,
    Opaque,
    Operand,
    common_family,
    dense_strides,
    family_of,
    given_back,
    shares_memory_with_others,
    view,
)
from tuner.python.calls import PackedForm, Prepared, kernel_call, packed_form
from tuner.python.decisions import Decision, warn_once
from tuner.python.operands import (
    CallRequest,
    check_places,
    finished_request,
    is_written_directly,
    letter,
    matmul_request,
    placed,
    request_of,
)
from tuner.python.policy import EMULATED_DTYPES, precision_of
from tuner.python.preparing import decision_for, prepare, prepare_kept, prepared_by


class Finish(TypedDict, total=False):
    """What is done to a product: ``activation(alpha * a @ b + beta * c + bias) + residual``.

    Attributes:
        bias: Shape (N,) or (1, N): an element for each column; shape (M, 1): one for each row.
        activation: ``relu``, ``gelu`` (by erf), ``gelu-tanh`` (its approximation) or ``silu``.
        alpha: A number; 1 unless given.
        beta: A number; 1 unless given, where `c` is.
        c: Shape (M, N).
        residual: Shape (M, N), added last.
    """

    bias: Any
    activation: str
    alpha: float
    beta: float
    c: Any
    residual: Any


@dataclass(frozen=True)
class AskedEpilogue:
    """An epilogue as a call gives it.

    Attributes:
        epilogue: Its parts.
        arrays: The further arrays by argument, in a kernel's order.
        factors: alpha and beta, where they are parts.
    """

    epilogue: Epilogue
    arrays: dict[str, Any]
    factors: dict[str, float]


#: Arguments' kinds, epilogue and factors -> the call.
PREPARED: dict[Hashable, Prepared] = {}


def product(a: Any, b: Any, out: Any, given: Finish, asked_precision: str = "") -> Any:
    """A product with an epilogue; see `tuner.matmul`.

    Raises:
        TypeError: An unknown argument, what is no array, arrays of several libraries, or of whole numbers.
        ValueError: Shapes that do not fit, several devices, `beta` without `c`, a read-only `out`.
        UnknownName: No such activation or precision.
        InputError: The call asks for a precision that is not for its arrays, or `b` is packed.
    """
    if isinstance(b, Opaque):
        raise InputError("matmul: an epilogue is for arrays, got a packed operand; leave one of them out")
    precision = precision_of(asked_precision)
    a, b = (numpy.asarray(each) if isinstance(each, (list, tuple)) else each for each in (a, b))
    if family_of(a) is None and shares_memory_with_others(a):
        return _of_others(a, b, out, given, asked_precision)
    asked = _read(given, a, b)
    arrays = (a, b, *asked.arrays.values())
    family = common_family("matmul", {"a": a, "b": b, **asked.arrays}, out)
    assert family is not None, "arrays of other libraries were viewed before"
    to = out if out is None or is_written_directly(family.operand(out)) else None
    if not asked.epilogue:
        result = family.matmul(a, b, to)
    else:
        kinds: list[Hashable] = [(type(each), family.key(each)) for each in arrays]
        written = None if to is None else family.key(to)
        key = asked.epilogue, *kinds, written, *asked.factors.values(), precision
        call = PREPARED.get(key)
        if call is None:
            request = _request(asked, family, arrays, to).in_precision(precision, asked_precision)
            by_library = _by_library(family, asked)

            def prepared(decision: Decision | None) -> Prepared:
                if decision is not None:
                    decision = replace(decision, problem=decision.problem.with_values(asked.factors))
                return prepared_by(request, family, decision, by_library)

            call = prepare_kept(PREPARED, key, request, family, a, prepared)
        result = call(*arrays, to)
    if out is None or to is not None:
        return result
    family.assign(out, result)
    return out


def _read(given: Finish, a: Any, b: Any) -> AskedEpilogue:
    """What is to be done, checked as far as it does not need the arrays' library."""
    unknown = [name for name in given if name not in Finish.__annotations__]
    if unknown:
        known = ", ".join(Finish.__annotations__)
        raise TypeError(f"matmul: beside a, b, out and precision it takes {known}, got {unknown[0]}")
    activation, c, residual = given.get("activation") or "", given.get("c"), given.get("residual")
    if activation and activation not in ACTIVATIONS:
        raise UnknownName("activation", activation, ACTIVATIONS)
    alpha, beta = float(given.get("alpha", 1.0)), float(given.get("beta", 0.0 if c is None else 1.0))
    if c is None and beta:
        raise ValueError(f"matmul: beta multiplies c, got beta={beta} without c; give c=, or leave beta out")
    bias, kind = given.get("bias"), ""
    if bias is not None:
        bias, kind = _bias(bias, a, b)
    epilogue = Epilogue(alpha != 1.0, beta != 0.0, kind, activation, residual is not None)
    arrays = {"c": c if epilogue.beta else None, "bias": bias, "residual": residual}
    factors = {"alpha": alpha, "beta": beta}
    return AskedEpilogue(
        epilogue,
        {name: each for name, each in arrays.items() if each is not None},
        {name: factors[name] for name in epilogue.factors},
    )


def _bias(bias: Any, a: Any, b: Any) -> tuple[Any, str]:
    """A bias as a vector, and whether it is for rows or columns."""
    shape, (m, n) = tuple(bias.shape), (tuple(a.shape)[-2:-1], tuple(b.shape)[-1:])
    if shape in (n, (1, *n)):
        return bias.reshape(-1), "bias-col"
    if shape == (*m, 1):
        return bias.reshape(-1), "bias-row"
    raise ValueError(
        "matmul: bias has an element for each column, shape (N,), or for each row, shape (M, 1); "
        f"got shape {shape} for a of shape {tuple(a.shape)} and b of shape {tuple(b.shape)}"
    )


def _of_others(a: Any, b: Any, out: Any, given: Finish, asked_precision: str) -> Any:
    """Another library's arrays, by views of them."""
    viewed: dict[str, Any] = {
        name: view(each) if name in ("bias", "c", "residual") and each is not None else each
        for name, each in given.items()
    }
    to = None if out is None else view(out)
    result = product(view(a), view(b), to, Finish(**viewed), asked_precision)  # type: ignore[typeddict-item]
    return given_back(result, a) if out is None else out


def _request(asked: AskedEpilogue, family: Family, arrays: Sequence[Any], out: Any) -> CallRequest:
    """What a call with an epilogue asks for."""
    operands = {
        name: family.operand(each) for name, each in zip(("a", "b", *asked.arrays), arrays, strict=True)
    }
    to = None if out is None else family.operand(out)
    check_places("matmul", operands.values(), to)
    plain = matmul_request(operands.pop("a"), operands.pop("b"), to)
    return finished_request(plain, asked.epilogue, operands)


def _by_library(family: Family, asked: AskedEpilogue) -> Prepared:
    """The library's product, then its element-wise functions."""
    names, epilogue, factors = tuple(asked.arrays), asked.epilogue, asked.factors
    matmul: Callable[..., Any] = family.matmul

    def call(a: Any, b: Any, *more: Any) -> Any:
        *arrays, out = more
        named = {"c_in" if name == "c" else name: each for name, each in zip(names, arrays, strict=True)}
        result = family.finish(matmul(a, b, None), epilogue, named | factors)
        if out is None:
            return result
        family.assign(out, result)
        return out

    return call


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

        return prepare(request, self._family, a, prepared)


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
    launching = sys.modules.get("tuner.devices.cuda.launching")
    return launching.counted() if launching is not None else 0
