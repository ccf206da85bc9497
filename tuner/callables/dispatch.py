"""From a call to the prepared call that it is, found by what is cheap to read of the arrays.

The first call with arrays of some kind looks its problem up, compiles and prepares; every later one finds what
was prepared in a dict. Looking it up takes no lock; preparing takes one, so that nothing is compiled twice.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy

from tuner.callables import measuring
from tuner.callables.arrays import NUMPY, Family, Opaque, index_of
from tuner.callables.calls import Prepared, kernel_call, library_call
from tuner.callables.decisions import Decision, decide, forget, warn_once
from tuner.callables.families import family_of, shares_memory_with_others
from tuner.callables.misses import FORGET, Miss, by_policy, consult, count, is_miss
from tuner.callables.policy import chosen as chosen_policy
from tuner.callables.precision import CHOSEN, chosen
from tuner.callables.requests import Request, gemv_request, matmul_request, transpose_request
from tuner.callables.rereading import Rereading
from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import EMULATED, IEEE
from tuner.results.record import ProblemKey

#: Prepared calls that a function keeps, and decisions that are kept; the oldest go first.
KEPT = 4096
#: Function -> what names its arrays, and what their request is.
ARGUMENTS = {"matmul": ("a", "b"), "gemv": ("a", "x"), "transpose": ("a",)}
REQUESTS: dict[str, Callable[..., Request]] = {
    "matmul": matmul_request, "gemv": gemv_request, "transpose": transpose_request,
}  # fmt: skip

_key_of: dict[type, Callable[[Any], Hashable]] = {numpy.ndarray: NUMPY.key}
_prepared: dict[str, dict[Hashable, Prepared]] = {name: {} for name in ARGUMENTS}
_gemv, _transpose = _prepared["gemv"], _prepared["transpose"]
#: Precision -> prepared products.
_matmul: dict[str, dict[Hashable, Prepared]] = {IEEE: _prepared["matmul"], EMULATED: {}}
_decided: dict[tuple[ProblemKey, str], Decision] = {}
_devices: dict[str, DeviceInfo] = {}
_lock = threading.RLock()


def _after_fork() -> None:
    """Another thread of the parent may have held the lock."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def matmul(a: Any, b: Any, out: Any = None, *, precision: str = "") -> Any:
    """The product of two arrays, by the kernel that was measured to be fastest, or the library where it is.

    Args:
        a: Array of NumPy, CuPy or PyTorch, or of a library that shares its memory by DLPack or the CUDA array
            interface. Shape (M, K); one axis, or more than two, as `numpy.matmul` has them.
        b: Of the same library, on the same device. Shape (K, N). Or what `tuner.pack` made of such an array.
        out: Where to put the result, of shape (M, N); a new array unless given. May overlap `a` and `b`.
        precision: ``ieee``, products and sums in the dtype itself; or ``emulated``, any arithmetic that is as
            exact as the library's for the inputs at hand, for float32. Empty: that of the surrounding
            `tuner.precision`, else of the environment's TUNER_PRECISION, else ``ieee``.

    Returns:
        The result, an array of the same library, or `out`. On a GPU it is queued on the library's current
        stream.

    Raises:
        ValueError: Shapes that do not fit together, several devices, an `out` that cannot be written.
        TypeError: What is no array, or arrays of several libraries.
        UnknownName: No such precision.
        InputError: `precision` is ``emulated``, or `b` packed, and an array is not float32.
    """
    try:
        prepared = _matmul[precision or CHOSEN.get()]
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
    with _lock:
        for prepared in (*_prepared.values(), *_matmul.values()):
            prepared.clear()
        _decided.clear()
        forget()
        measuring.PROCESS.forget()


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
    precision = chosen(asked) if function == "matmul" else IEEE
    arrays = tuple(numpy.asarray(each) if _is_nested(each) else each for each in arrays)
    family = common_family(function, arrays, out)
    given = (*arrays, *(() if out is None else (out,)))
    if family is None:
        from tuner.callables.foreign import called

        public = partial(matmul, precision=asked) if asked else _PUBLIC[function]
        return called(public, arrays, out)
    request = request_of(function, family, arrays, out).in_precision(precision, asked)
    kept = _matmul[precision] if function == "matmul" else _prepared[function]
    if is_miss(request, _decision(request)):
        consult(request, family, arrays[0])  # which may wait, and so is not done under the lock
    with _lock:
        call = prepare(request, family, arrays[0])
        if all(type(each) is family.base for each in given):
            _remember(kept, family, given, call)
    return call(*arrays, out)


def _is_nested(given: Any) -> bool:
    """What NumPy's functions take in place of an array."""
    return isinstance(given, (list, tuple, int, float, complex, numpy.generic))


def common_family(function: str, arrays: tuple[Any, ...], out: Any) -> Family | None:
    """The library of all arrays; None for one that shares its memory.

    Raises:
        TypeError: What is no array, or arrays of several libraries.
    """
    named = dict(zip(ARGUMENTS[function], arrays, strict=True)) | ({} if out is None else {"out": out})
    families = {name: family_of(array) for name, array in named.items()}
    for name, family in families.items():
        if family is None and not shares_memory_with_others(named[name]):
            raise TypeError(
                f"{function}: {name} is an array of NumPy, CuPy or PyTorch, or one that offers DLPack or the "
                f"CUDA array interface, got {type(named[name]).__name__}"
            )
    kinds = {name: family.name if family else type(named[name]).__name__ for name, family in families.items()}
    if len(set(kinds.values())) > 1:
        said = ", ".join(f"{name} of {kind}" for name, kind in kinds.items())
        raise TypeError(f"{function}: all arrays are of one library, got {said}; convert one of them")
    return families["a"]


def request_of(function: str, family: Family, arrays: tuple[Any, ...], out: Any) -> Request:
    """What a call asks for.

    Raises:
        ValueError: Shapes, devices or an `out` that are not possible.
    """
    operands = [family.operand(each) for each in arrays]
    to = None if out is None else family.operand(out)
    devices = {each.device for each in (*operands, *([to] if to else []))}
    if len(devices) > 1:
        raise ValueError(
            f"{function}: all arrays are on one device, got {' and '.join(sorted(devices))}; copy one of them"
        )
    if to is not None and not to.writable:
        raise ValueError(f"{function}: out is written, got an array that is read-only; give another")
    return REQUESTS[function](*operands, to)


def _remember(kept: dict[Hashable, Prepared], family: Family, given: tuple[Any, ...], call: Prepared) -> None:
    try:
        keys = tuple(family.key(array) for array in given)
    except RuntimeError:  # what has no strides
        return
    _key_of.setdefault(family.base, family.key)
    _keep(kept, keys if len(keys) > 1 else keys[0], call)


def _keep(kept: dict[Any, Any], key: Hashable, value: Any) -> None:
    while len(kept) >= KEPT:
        del kept[next(iter(kept))]
    kept[key] = value


def decision_for(request: Request) -> Decision | None:
    """What runs, by records and by what has to be copied; None where it is no problem for a kernel."""
    if request.problem is None:
        return None
    with _lock:
        found = _decided.get((request.problem, request.device))
        if found is None:
            _rereading.begin()
            found = decide(request.problem, device_info(request.device))
            _keep(_decided, (request.problem, request.device), found)
    if is_miss(request, found):
        found = by_policy(found, chosen_policy())
    copies = request.copied
    if found.kernel is None or not copies or found.worth_copying(request.copied_bytes, len(copies)):
        return found
    names = ", ".join(each.argument for each in copies)
    why = f"a copy of {names} ({copies[0].copied}) is taken to cost more than the kernel saves"
    return replace(found, kernel=None, config=None, why=why)


def device_info(device: str) -> DeviceInfo:
    """Identity and limits of ``cpu`` or ``cuda:N``."""
    found = _devices.get(device)
    if found is None:
        if device == "cpu":
            from tuner.devices.detect import cpu_info

            found = cpu_info()
        else:
            from tuner.devices.calling import device_info as gpu_info

            found = gpu_info(index_of(device))
        _devices[device] = found
    return found


def prepare(request: Request, family: Family, array: Any) -> Prepared:
    """The call of the kernel; the library's where that cannot be had, which is no reason to fail.

    Args:
        request: What is asked for.
        family: Library of the arrays.
        array: One of them.
    """
    return watched(request, family, array, lambda decision: prepared_by(request, family, decision))


def watched(
    request: Request, family: Family, array: Any, prepared: Callable[[Decision | None], Prepared]
) -> Prepared:
    """The call of what is decided; where that may change, one that asks what is decided now.

    Args:
        request: What is asked for.
        family: Library of the arrays.
        array: One of them.
        prepared: The call of a decision.
    """

    def decided() -> tuple[Prepared, bool]:
        with _lock:
            decision = _decision(request)
            return prepared(decision), is_miss(request, decision)

    decision = _decision(request)
    if not is_miss(request, decision):
        return prepared(decision)
    assert decision is not None, "a miss has a decision"
    miss = Miss(request, family, decided)
    count(miss, decision)
    miss.decided(array)
    return miss.call()


def _decision(request: Request) -> Decision | None:
    """What is decided; None where there is no problem for a kernel, or where the lookup failed."""
    try:
        return decision_for(request)
    except Exception as error:
        _warn_left(request, error)
        return None


def prepared_by(request: Request, family: Family, decision: Decision | None) -> Prepared:
    """The call of a decision's kernel, or the library's.

    Args:
        request: What is asked for.
        family: Library of the arrays.
        decision: What runs; None for the library of the arrays.
    """
    try:
        if decision is not None and decision.kernel is not None:
            return kernel_call(request, decision, family)
        return library_call(request, decision, family)
    except Exception as error:
        _warn_left(request, error)
        return library_call(request, None, family)


def _warn_left(request: Request, error: Exception) -> None:
    warn_once(
        f"{request.function} of {request.problem} is left to the library, since the kernel cannot be had: "
        f"{type(error).__name__}: {error}"
    )


def _forget_problem(problem: ProblemKey, device: str) -> None:
    """Has a problem looked up again: it was measured."""
    _decided.pop((problem, device), None)


FORGET.append(_forget_problem)
_rereading = Rereading(clear_caches)
_PUBLIC: dict[str, Callable[..., Any]] = {"matmul": matmul, "gemv": gemv, "transpose": transpose}
