"""From a call to the prepared call that it is, found by what is cheap to read of the arrays.

The first call with arrays of some kind looks its problem up, compiles and prepares; every later one finds what
was prepared in a dict. Looking it up takes no lock; preparing takes one, so that nothing is compiled twice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Unpack

import numpy

from tuner.declare.problem import EMULATED, IEEE
from tuner.python.arrays import NUMPY, Family, Opaque, called, common_family
from tuner.python.calls import Prepared
from tuner.python.decisions import REREADING
from tuner.python.finishing import PREPARED, Finish, product
from tuner.python.operands import ARGUMENTS, request_of
from tuner.python.policy import PRECISION, precision_of
from tuner.python.policy import chosen as policy
from tuner.python.preparing import PREPARING, forget_all, prepare_kept

_key_of: dict[type, Callable[[Any], Hashable]] = {numpy.ndarray: NUMPY.key}
_prepared: dict[str, dict[Hashable, Prepared]] = {name: {} for name in ARGUMENTS}
_gemv, _transpose = _prepared["gemv"], _prepared["transpose"]
#: Precision -> prepared products.
_matmul: dict[str, dict[Hashable, Prepared]] = {IEEE: _prepared["matmul"], EMULATED: {}}


def matmul(a: Any, b: Any, out: Any = None, *, precision: str = "", **finish: Unpack[Finish]) -> Any:
    """The product of two arrays, by the kernel that was measured to be fastest, or the library where it is.

    Args:
        a: Array of NumPy, CuPy or PyTorch, or of a library that shares its memory by DLPack or the CUDA array
            interface. Shape (M, K); one axis, or more than two, as `numpy.matmul` has them.
        b: Of the same library, on the same device. Shape (K, N). Or what `tuner.pack` made of such an array.
        out: Where to put the result, of shape (M, N); a new array unless given. May overlap `a` and `b`.
        precision: ``ieee``, products and sums in the dtype itself; or ``emulated``, any arithmetic that is as
            exact as the library's for the inputs at hand, for float32. Empty: that of the surrounding
            `tuner.precision`, else of the environment's TUNER_PRECISION, else ``ieee``.
        finish: What is done to the product before it is stored: ``activation(alpha * a @ b + beta * c + bias)
            + residual``, by arguments of these names; see `Finish`.

    Returns:
        The result, an array of the same library, or `out`. On a GPU it is queued on the library's current
        stream.

    Raises:
        ValueError: Shapes that do not fit together, several devices, an `out` that cannot be written.
        TypeError: What is no array, or arrays of several libraries.
        UnknownName: No such precision, or policy in the environment (`tuner.on_miss`).
        InputError: `precision` is ``emulated``, or `b` packed, and an array is not float32; or `b` is packed,
            and there is more to do than to multiply.
    """
    if finish:
        return product(a, b, out, finish, precision)
    try:
        prepared = _matmul[precision or PRECISION.get()]
        if out is None:
            call = prepared[_key_of[type(a)](a), _key_of[type(b)](b)]
        else:
            call = prepared[_key_of[type(a)](a), _key_of[type(b)](b), _key_of[type(out)](out)]
    except (KeyError, AttributeError, TypeError, RuntimeError):
        return _first("matmul", (a, b), out, precision)
    return call(a, b, out)


def gemv(a: Any, x: Any, out: Any = None) -> Any:
    """The product of a matrix and a vector; see `matmul`.

    Args:
        a: Shape (M, N).
        x: Shape (N,).
        out: Shape (M,); a new array unless given.

    Returns:
        The result, or `out`.

    Raises:
        ValueError: As for `matmul`.
        TypeError: As for `matmul`.
    """
    try:
        if out is None:
            call = _gemv[_key_of[type(a)](a), _key_of[type(x)](x)]
        else:
            call = _gemv[_key_of[type(a)](a), _key_of[type(x)](x), _key_of[type(out)](out)]
    except (KeyError, AttributeError, TypeError, RuntimeError):
        return _first("gemv", (a, x), out)
    return call(a, x, out)


def transpose(a: Any, out: Any = None) -> Any:
    """An array's transpose as a row-major array of its own, not as a view; see `matmul`.

    Args:
        a: Shape (M, N); other numbers of axes are turned round as `numpy.transpose` does.
        out: Shape (N, M); a new array unless given.

    Returns:
        The result, or `out`.

    Raises:
        ValueError: As for `matmul`.
        TypeError: As for `matmul`.
    """
    try:
        if out is None:
            call = _transpose[_key_of[type(a)](a)]
        else:
            call = _transpose[_key_of[type(a)](a), _key_of[type(out)](out)]
    except (KeyError, AttributeError, TypeError, RuntimeError):
        return _first("transpose", (a,), out)
    return call(a, out)


def clear_caches() -> None:
    """Forgets what was looked up and prepared, so that the next calls see new records."""
    with PREPARING.lock:
        for prepared in (*_prepared.values(), *_matmul.values()):
            prepared.clear()
        PREPARED.clear()
        forget_all()


def _first(function: str, arrays: tuple[Any, ...], out: Any, asked: str = "") -> Any:
    """A call with arrays of a kind that was not met before, or that is not to be remembered.

    Args:
        function: One of `ARGUMENTS`.
        arrays: What it is called with.
        out: As the caller gave it.
        asked: The precision that the call itself says; empty where it says none.
    """
    if isinstance(arrays[-1], Opaque) and function == "matmul":
        return arrays[-1].product(arrays[0], out, asked)
    precision = precision_of(asked) if function == "matmul" else IEEE
    policy()  # or say that there is no such policy, before anything is prepared
    arrays = tuple(numpy.asarray(each) if _is_nested(each) else each for each in arrays)
    family = common_family(function, dict(zip(ARGUMENTS[function], arrays, strict=True)), out)
    given = (*arrays, *(() if out is None else (out,)))
    if family is None:
        public = partial(matmul, precision=asked) if asked else _PUBLIC[function]
        return called(public, arrays, out)
    request = request_of(function, family, arrays, out).in_precision(precision, asked)
    kept = _matmul[precision] if function == "matmul" else _prepared[function]
    call = prepare_kept(kept, _key(family, given), request, family, arrays[0])
    return call(*arrays, out)


def _is_nested(given: Any) -> bool:
    """What NumPy's functions take in place of an array."""
    return isinstance(given, (list, tuple, int, float, complex, numpy.generic))


def _key(family: Family, given: tuple[Any, ...]) -> Hashable | None:
    """By what a call with such arrays is kept; None if it is not to be remembered."""
    if not all(type(array) is family.base for array in given):
        return None
    try:
        keys = tuple(family.key(array) for array in given)
    except RuntimeError:  # what has no strides
        return None
    _key_of.setdefault(family.base, family.key)
    return keys if len(keys) > 1 else keys[0]


REREADING.forget = clear_caches
_PUBLIC: dict[str, Callable[..., Any]] = {"matmul": matmul, "gemv": gemv, "transpose": transpose}
