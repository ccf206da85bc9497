"""Products with an epilogue: alpha, beta, a bias, an activation, a residual sum.

The call is that of a kernel that applies the epilogue before it stores, where one is known to be faster; else
the library's product, and its element-wise functions behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy

from tuner.declare.epilogue import ACTIVATIONS, Epilogue
from tuner.errors import InputError, UnknownName
from tuner.python.arrays import Family, Opaque
from tuner.python.calls import Prepared, kernel_call
from tuner.python.decisions import Decision, warn_once
from tuner.python.gpu_arrays import common_family, family_of, shares_memory_with_others
from tuner.python.misses import consult, is_miss
from tuner.python.operands import (
    CallRequest,
    check_places,
    finished_request,
    is_written_directly,
    matmul_request,
)
from tuner.python.precision import chosen
from tuner.python.preparing import PREPARING, decision_or_none, keep, watched


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
    precision = chosen(asked_precision)
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
            if is_miss(request, decision_or_none(request)):
                consult(request, family, a)  # which may wait, and so is not done under the lock
            with PREPARING.lock:
                call = watched(request, family, a, lambda decision: _by(decision, request, family, asked))
                keep(PREPARED, key, call)
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
    from tuner.python.gpu_arrays import given_back, view

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


def _by(decision: Decision | None, request: CallRequest, family: Family, asked: AskedEpilogue) -> Prepared:
    """The call of a decision's kernel; the library's where that cannot be had."""
    if decision is not None and decision.kernel is not None:
        try:
            problem = decision.problem.with_values(asked.factors)
            return kernel_call(request, replace(decision, problem=problem), family)
        except Exception as error:
            warn_once(
                f"{request.problem} is left to the library, since the kernel cannot be had: "
                f"{type(error).__name__}: {error}"
            )
    return _by_library(family, asked)


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
